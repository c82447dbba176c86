/* Attention: the variant lists and the plain kernels, which take every float dtype and work in float64. The
 * plain gradient recomputes the softmax in float64 instead of reading the saved log-sum-exp, so that finite
 * differences see no float32 rounding. */
#include "backend/cpu/attention.h"

#include <math.h>

trd__attention_dims trd__attention_dims_of(const trd_node *n)
{
    const trd__attention_attr *attr = n->attr;
    const trd_shape *q = &trd__type_of(n->inputs[0])->shape;
    const trd_shape *k = &trd__type_of(n->inputs[1])->shape;
    return (trd__attention_dims){.batch = q->dim[0],
                                 .queries = q->dim[1],
                                 .heads = q->dim[2],
                                 .size = q->dim[3],
                                 .keys = k->dim[1],
                                 .groups = k->dim[2],
                                 .group_heads = q->dim[2] / k->dim[2],
                                 .scale = attr->scale,
                                 .cached = attr->cached};
}

trd__key_range trd__attention_keys(const trd__attention_dims *d, const int32_t *segments,
                                   const int32_t *positions, int64_t t)
{
    if (segments[t] == 0) return (trd__key_range){0, 0};
    if (d->cached) {
        int64_t end = (int64_t)positions[t] + 1;
        return (trd__key_range){0, end < d->keys ? end : d->keys};
    }
    int64_t begin = t;
    while (begin > 0 && segments[begin - 1] == segments[t]) begin--;
    return (trd__key_range){begin, t + 1};
}

/* One operand read as float64 rows of D. */
typedef struct rows {
    trd_dtype dtype;
    const void *data;
    int64_t size;
} rows;

static rows rows_of(const trd__cpu_call *call, int input, int64_t size)
{
    return (rows){trd__type_of(call->node->inputs[input])->dtype, call->inputs[input], size};
}

static double at(const rows *r, int64_t row, int64_t i)
{
    return trd__load(r->dtype, r->data, (size_t)(row * r->size + i));
}

static double dot(const rows *x, int64_t x_row, const rows *y, int64_t y_row)
{
    double sum = 0;
    for (int64_t i = 0; i < x->size; i++) sum += at(x, x_row, i) * at(y, y_row, i);
    return sum;
}

/* Softmax of query row q_row over keys r of group g into p (indexed by key); returns the log-sum-exp. */
static double softmax_row(const trd__attention_dims *d, const rows *q, int64_t q_row, const rows *k,
                          int64_t k_base, trd__key_range r, double *p)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t s = r.begin; s < r.end; s++) {
        p[s] = d->scale * dot(q, q_row, k, k_base + s * d->groups);
        if (p[s] > largest) largest = p[s];
    }
    for (int64_t s = r.begin; s < r.end; s++) sum += p[s] = exp(p[s] - largest);
    for (int64_t s = r.begin; s < r.end; s++) p[s] /= sum;
    return r.begin < r.end ? largest + log(sum) : 0.0;
}

static trd_status plan_forward(const trd_node *n, trd__cpu_plan *plan)
{
    plan->worker_bytes = (size_t)trd__attention_dims_of(n).keys * sizeof(double);
    return TRD_OK;
}

static void run_forward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    trd__attention_dims d = trd__attention_dims_of(call->node);
    rows q = rows_of(call, 0, d.size), k = rows_of(call, 1, d.size), v = rows_of(call, 2, d.size);
    double *p = call->worker_scratch;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, d.batch * d.queries * d.heads, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t h = row % d.heads, t = row / d.heads % d.queries, b = row / d.heads / d.queries;
        const int32_t *segments = (const int32_t *)call->inputs[3] + b * d.queries;
        const int32_t *positions = d.cached ? (const int32_t *)call->inputs[4] + b * d.queries : NULL;
        trd__key_range r = trd__attention_keys(&d, segments, positions, t);
        int64_t base = b * d.keys * d.groups + h / d.group_heads;
        double log_sum = softmax_row(&d, &q, row, &k, base, r, p);
        for (int64_t i = 0; call->outputs[0] && i < d.size; i++) {
            double sum = 0;
            for (int64_t s = r.begin; s < r.end; s++) sum += p[s] * at(&v, base + s * d.groups, i);
            trd__store(q.dtype, call->outputs[0], (size_t)(row * d.size + i), sum);
        }
        if (call->outputs[1])
            trd__store(call->node->results[1].dtype, call->outputs[1],
                       (size_t)((b * d.heads + h) * d.queries + t), log_sum);
    }
}

static trd_status plan_backward(const trd_node *n, trd__cpu_plan *plan)
{
    trd__attention_dims d = trd__attention_dims_of(n);
    plan->worker_bytes = (size_t)(2 * d.keys + 2 * d.keys * d.size) * sizeof(double);
    return TRD_OK;
}

typedef struct gradient {
    trd__attention_dims d;
    rows q, k, v, dy;
    double *p, *dp;  /* (S) */
    double *dk, *dv; /* (S, D) of one group */
} gradient;

static void backward_row(const trd__cpu_call *call, gradient *g, int64_t row, int64_t base, trd__key_range r)
{
    const trd__attention_dims *d = &g->d;
    double delta = 0;
    softmax_row(d, &g->q, row, &g->k, base, r, g->p);
    for (int64_t s = r.begin; s < r.end; s++) {
        g->dp[s] = dot(&g->dy, row, &g->v, base + s * d->groups);
        delta += g->p[s] * g->dp[s];
    }
    for (int64_t i = 0; i < d->size; i++) {
        double dq = 0, q = at(&g->q, row, i), dy = at(&g->dy, row, i);
        for (int64_t s = r.begin; s < r.end; s++) {
            double ds = g->p[s] * (g->dp[s] - delta) * d->scale;
            dq += ds * at(&g->k, base + s * d->groups, i);
            g->dk[s * d->size + i] += ds * q;
            g->dv[s * d->size + i] += g->p[s] * dy;
        }
        if (call->outputs[0]) trd__store(g->q.dtype, call->outputs[0], (size_t)(row * d->size + i), dq);
    }
}

static void run_backward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    gradient g = {.d = trd__attention_dims_of(call->node)};
    const trd__attention_dims *d = &g.d;
    g.q = rows_of(call, 0, d->size), g.k = rows_of(call, 1, d->size), g.v = rows_of(call, 2, d->size);
    g.dy = rows_of(call, 6, d->size);
    g.p = call->worker_scratch, g.dp = g.p + d->keys;
    g.dk = g.dp + d->keys, g.dv = g.dk + d->keys * d->size;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, d->batch * d->groups, 1, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t b = unit / d->groups, group = unit % d->groups, base = b * d->keys * d->groups + group;
        const int32_t *segments = (const int32_t *)call->inputs[3] + b * d->queries;
        for (int64_t i = 0; i < 2 * d->keys * d->size; i++) g.dk[i] = 0;
        for (int64_t h = group * d->group_heads; h < (group + 1) * d->group_heads; h++)
            for (int64_t t = 0; t < d->queries; t++)
                backward_row(call, &g, (b * d->queries + t) * d->heads + h, base,
                             trd__attention_keys(d, segments, NULL, t));
        for (int64_t i = 0; i < d->keys * d->size; i++) {
            size_t out = (size_t)((base + i / d->size * d->groups) * d->size + i % d->size);
            if (call->outputs[1]) trd__store(g.k.dtype, call->outputs[1], out, g.dk[i]);
            if (call->outputs[2]) trd__store(g.v.dtype, call->outputs[2], out, g.dv[i]);
        }
    }
}

static const trd__cpu_kernel forward = {.name = "reference", .plan = plan_forward, .run = run_forward};
static const trd__cpu_kernel backward = {.name = "reference", .plan = plan_backward, .run = run_backward};
static const trd__cpu_kernel *const forward_variants[] = {&trd__attention_few, &trd__attention_blocked,
                                                          &forward, NULL};
static const trd__cpu_kernel *const backward_variants[] = {&trd__attention_grad_few,
                                                           &trd__attention_grad_blocked, &backward, NULL};

const trd__cpu_op trd__cpu_attention[] = {{.op = &trd__op_attention, .variants = forward_variants},
                                          {.op = &trd__op_attention_grad, .variants = backward_variants},
                                          {0}};
