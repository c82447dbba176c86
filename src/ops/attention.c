/* Causal grouped-query attention over packed segments: softmax(q k^T / sqrt(D)) v (Dao et al. 2022 for the
 * saved log-sum-exp and the gradient from it). A query of segment 0 is padding: output 0, gradient 0, and no
 * rule here may turn it into a NaN. In the expansion the H / G query heads that share a key head are rows of
 * one product: (B, G, R T, D) by (B, G, S, D). */
#include <math.h>
#include <stdio.h>

#include "ops/rules.h"

enum { Q, K, V, SEGMENTS, POSITIONS, OUTPUT = 4, LSE, D_OUTPUT }; /* positions forward only */

typedef struct dims {
    int64_t batch, queries, heads, head_dim, keys, groups;
} dims;

static dims sizes(const trd_node *n)
{
    const trd_shape *q = &trd__operand(n, Q)->shape, *k = &trd__operand(n, K)->shape;
    return (dims){q->dim[0], q->dim[1], q->dim[2], q->dim[3], k->dim[1], k->dim[2]};
}

/* Checks q, k, v and segments, which forward and gradient share. */
static trd_status check_operands(const trd_node *n)
{
    const trd__attention_attr *attr = n->attr;
    TRD_TRY(trd__want(n, Q, "q", TRD__FLOATS));
    const trd__type *q = trd__operand(n, Q), *k = trd__operand(n, K);
    if (q->shape.rank != 4) return trd__fail_shape(n, "q", "rank 4, (B, T, H, D)", q);
    if (k->shape.rank != 4) return trd__fail_shape(n, "k", "rank 4, (B, S, G, D)", k);
    trd_shape keys = TRD__SHAPE(q->shape.dim[0], attr->cached ? k->shape.dim[1] : q->shape.dim[1],
                                k->shape.dim[2], q->shape.dim[3]);
    TRD_TRY(trd__want_type(n, K, "k", q->dtype, &keys));
    TRD_TRY(trd__want_type(n, V, "v", q->dtype, &keys));
    if (keys.dim[2] < 1 || q->shape.dim[2] % keys.dim[2])
        return trd__fail_shape(n, "k", "a number of heads that divides q's", k);
    trd_shape rows = trd__leading(&q->shape, 2);
    return trd__want_type(n, SEGMENTS, "segments", TRD_I32, &rows);
}

static trd__type lse_type(const trd_node *n)
{
    const trd__type *q = trd__operand(n, Q);
    trd_shape shape = TRD__SHAPE(q->shape.dim[0], q->shape.dim[2], q->shape.dim[1]);
    trd__type type = trd__plain_type(trd__compute_dtype(q->dtype), &shape);
    type.axes[0] = q->axes[0];
    type.axes[1] = q->axes[2];
    type.axes[2] = q->axes[1];
    return type;
}

static trd_status infer(const trd_node *n, trd__type *results)
{
    const trd__attention_attr *attr = n->attr;
    TRD_TRY(check_operands(n));
    const trd__type *q = trd__operand(n, Q);
    trd_shape rows = trd__leading(&q->shape, 2);
    if (n->input_count != (attr->cached ? 5 : 4))
        return trd__fail(TRD_INVALID_ARGUMENT, "attention: expected positions with a cache and only then");
    if (attr->cached) TRD_TRY(trd__want_type(n, POSITIONS, "positions", TRD_I32, &rows));
    results[0] = *q;
    results[1] = lse_type(n);
    return TRD_OK;
}

static trd_status grad_infer(const trd_node *n, trd__type *results)
{
    const trd__attention_attr *attr = n->attr;
    TRD_TRY(check_operands(n));
    if (attr->cached) return trd__fail(TRD_UNSUPPORTED, "attention_grad: a cache has no gradient");
    const trd__type *q = trd__operand(n, Q);
    trd__type lse = lse_type(n);
    TRD_TRY(trd__want_type(n, OUTPUT, "output", q->dtype, &q->shape));
    TRD_TRY(trd__want_type(n, LSE, "log-sum-exp", lse.dtype, &lse.shape));
    TRD_TRY(trd__want_type(n, D_OUTPUT, "d_output", q->dtype, &q->shape));
    for (int i = 0; i < 3; i++) results[i] = *trd__operand(n, i);
    return TRD_OK;
}

static void gradient(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs, trd_value *dx)
{
    if (!trd_is_null(dy[1])) {
        trd_builder_fail(b, TRD_UNSUPPORTED,
                         "attention: its log-sum-exp is saved for the gradient and is "
                         "not differentiable itself");
        return;
    }
    trd_value inputs[7] = {n->inputs[Q], n->inputs[K], n->inputs[V], n->inputs[SEGMENTS],
                           {n, 0},       {n, 1},       dy[0]};
    const trd_node *grad = trd__node_add(b, &trd__op_attention_grad, n->attr, inputs, 7);
    for (int i = 0; i < 3; i++)
        if (needs[i]) dx[i] = trd__result(grad, i);
}

/* Two products over the causal half of (T, T); over all cached keys when decoding. */
static double flops(const trd_node *n)
{
    const trd__attention_attr *attr = n->attr;
    dims d = sizes(n);
    double pairs = (double)d.batch * (double)d.heads * (double)d.queries * (double)d.keys;
    return 2 * 2.0 * pairs * (double)d.head_dim * (attr->cached ? 1 : 0.5);
}

/* Twice the forward: recomputed scores are no model FLOPs. */
static double grad_flops(const trd_node *n)
{
    return 2 * flops(n);
}

/* -- expansion -- */

/* q-like (B, T, H, D) -> (B, G, R T, D) in the compute dtype. */
static trd_value group_queries(trd_builder *b, trd_value x, const dims *d)
{
    int64_t shared = d->heads / d->groups;
    x = trd_reshape(b, x, TRD__SHAPE(d->batch, d->queries, d->groups, shared, d->head_dim));
    x = trd_transpose(b, x, (int[]){0, 2, 3, 1, 4});
    x = trd_reshape(b, x, TRD__SHAPE(d->batch, d->groups, shared * d->queries, d->head_dim));
    return trd_cast(b, x, trd__compute_dtype(trd_value_dtype(x)));
}

/* The inverse of group_queries, in dtype. */
static trd_value ungroup_queries(trd_builder *b, trd_value x, const dims *d, trd_dtype dtype)
{
    int64_t shared = d->heads / d->groups;
    x = trd_reshape(b, x, TRD__SHAPE(d->batch, d->groups, shared, d->queries, d->head_dim));
    x = trd_transpose(b, x, (int[]){0, 3, 1, 2, 4});
    return trd_cast(b, trd_reshape(b, x, TRD__SHAPE(d->batch, d->queries, d->heads, d->head_dim)), dtype);
}

/* k-like (B, S, G, D) <-> (B, G, S, D). */
static trd_value swap_middle(trd_builder *b, trd_value x, trd_dtype dtype)
{
    return trd_cast(b, trd_transpose(b, x, (int[]){0, 2, 1, 3}), dtype);
}

/* Which key each query sees: (B, 1, 1, T, S), to be broadcast over heads. */
static trd_value visible(trd_builder *b, const trd_node *n, const dims *d)
{
    const trd__attention_attr *attr = n->attr;
    trd_value segments = n->inputs[SEGMENTS];
    trd_shape square = TRD__SHAPE(d->batch, 1, 1, d->queries, d->keys);
    trd_shape column = TRD__SHAPE(d->batch, 1, 1, d->queries, 1),
              row = TRD__SHAPE(d->batch, 1, 1, 1, d->keys);
    trd_value query_segment = trd_reshape(b, segments, column);
    trd_value key = trd_iota(b, TRD_I32, square, 4);
    trd_value seen = trd_greater(b, query_segment, trd_scalar(b, TRD_I32, 0));
    if (attr->cached)
        return trd_and(b, seen, trd_less_equal(b, key, trd_reshape(b, n->inputs[POSITIONS], column)));
    seen = trd_and(b, seen, trd_equal(b, query_segment, trd_reshape(b, segments, row)));
    return trd_and(b, seen, trd_less_equal(b, key, trd_iota(b, TRD_I32, square, 3)));
}

/* Scaled scores as (B, G, R, T, S). */
static trd_value scores(trd_builder *b, const trd_node *n, const dims *d, trd_value q, trd_value k)
{
    const trd__attention_attr *attr = n->attr;
    trd_value product = trd_matmul(b, q, k, false, true, trd_value_dtype(q));
    product =
        trd_reshape(b, product, TRD__SHAPE(d->batch, d->groups, d->heads / d->groups, d->queries, d->keys));
    return trd__times(b, product, attr->scale);
}

/* (B, G, R, T, S) -> (B, G, R T, S) */
static trd_value merge_rows(trd_builder *b, trd_value x, const dims *d)
{
    return trd_reshape(b, x, TRD__SHAPE(d->batch, d->groups, d->heads / d->groups * d->queries, d->keys));
}

static void expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    dims d = sizes(n);
    trd_dtype dtype = trd__operand(n, Q)->dtype, wide = trd__compute_dtype(dtype);
    trd_value q = group_queries(b, n->inputs[Q], &d);
    trd_value k = swap_middle(b, n->inputs[K], wide), v = swap_middle(b, n->inputs[V], wide);
    trd_value mask = visible(b, n, &d), zero = trd_scalar(b, wide, 0);
    /* A row without visible keys keeps the finite lowest score, so that nothing below becomes a NaN. */
    trd_value masked = trd_select(b, mask, scores(b, n, &d, q, k), trd_scalar(b, wide, -1e30));
    trd_value largest = trd_reduce_max(b, masked, 1u << 4, true);
    trd_value weights = trd__mask(b, mask, trd_exp(b, trd_sub(b, masked, largest)));
    trd_value total = trd__sum_last(b, weights);
    trd_value any = trd_greater(b, total, zero);
    trd_value divisor = trd_select(b, any, total, trd_scalar(b, wide, 1));
    trd_value p = merge_rows(b, trd_div(b, weights, divisor), &d);
    results[0] = ungroup_queries(b, trd_matmul(b, p, v, false, false, wide), &d, dtype);
    trd_value lse = trd__mask(b, any, trd_add(b, largest, trd_log(b, divisor)));
    results[1] = trd_reshape(b, lse, TRD__SHAPE(d.batch, d.heads, d.queries));
}

static void grad_expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    const trd__attention_attr *attr = n->attr;
    dims d = sizes(n);
    trd_dtype dtype = trd__operand(n, Q)->dtype, wide = trd__compute_dtype(dtype);
    trd_shape per_query = TRD__SHAPE(d.batch, d.queries, 1, 1);
    trd_value valid =
        trd_greater(b, trd_reshape(b, n->inputs[SEGMENTS], per_query), trd_scalar(b, TRD_I32, 0));
    trd_value q = group_queries(b, n->inputs[Q], &d);
    trd_value d_out = group_queries(b, trd__mask(b, valid, n->inputs[D_OUTPUT]), &d);
    trd_value k = swap_middle(b, n->inputs[K], wide), v = swap_middle(b, n->inputs[V], wide);
    trd_value mask = visible(b, n, &d);
    trd_value lse =
        trd_reshape(b, n->inputs[LSE], TRD__SHAPE(d.batch, d.groups, d.heads / d.groups, d.queries, 1));
    trd_value p = trd__mask(b, mask, trd_exp(b, trd_sub(b, scores(b, n, &d, q, k), lse)));
    trd_value total = trd__sum_last(b, p); /* 1 but for the rounding of the log-sum-exp; 0 without keys */
    total = trd_select(b, trd_greater(b, total, trd_scalar(b, wide, 0)), total, trd_scalar(b, wide, 1));
    p = merge_rows(b, trd_div(b, p, total), &d);
    trd_value dp = trd_matmul(b, d_out, v, false, true, wide);
    /* Not d_out . output, which may have been rounded to fewer bits than a saturated softmax needs. */
    trd_value delta = trd__sum_last(b, trd_mul(b, p, dp));
    trd_value ds = trd__times(b, trd_mul(b, p, trd_sub(b, dp, delta)), attr->scale);
    results[0] = ungroup_queries(b, trd_matmul(b, ds, k, false, false, wide), &d, dtype);
    results[1] = trd_cast(b, swap_middle(b, trd_matmul(b, ds, q, true, false, wide), wide), dtype);
    results[2] = trd_cast(b, swap_middle(b, trd_matmul(b, p, d_out, true, false, wide), wide), dtype);
}

static void print(const trd_node *n, char *text, size_t bytes)
{
    const trd__attention_attr *attr = n->attr;
    snprintf(text, bytes, "scale=%g cached=%d", attr->scale, attr->cached);
}

trd_value trd_attention(trd_builder *b, trd_value q, trd_value k, trd_value v, const trd_rows *rows)
{
    trd_shape shape = trd_value_shape(q);
    double head_dim = shape.rank ? (double)shape.dim[shape.rank - 1] : 1;
    trd__attention_attr attr = {.scale = 1 / sqrt(head_dim > 0 ? head_dim : 1), .cached = rows->cached};
    trd_value inputs[5] = {q, k, v, rows->segments, rows->positions};
    return trd__add_node(b, &trd__op_attention, &attr, inputs, rows->cached ? 5 : 4);
}

const trd_op trd__op_attention = {.name = "attention",
                                  .min_inputs = 4,
                                  .max_inputs = 5,
                                  .results = 2,
                                  .attr_size = sizeof(trd__attention_attr),
                                  .cost = TRD__COST_PRODUCT,
                                  .infer = infer,
                                  .gradient = gradient,
                                  .expand = expand,
                                  .flops = flops,
                                  .print = print};

const trd_op trd__op_attention_grad = {.name = "attention_grad",
                                       .min_inputs = 7,
                                       .max_inputs = 7,
                                       .results = 3,
                                       .attr_size = sizeof(trd__attention_attr),
                                       .cost = TRD__COST_PRODUCT,
                                       .infer = grad_infer,
                                       .expand = grad_expand,
                                       .flops = grad_flops,
                                       .print = print};
