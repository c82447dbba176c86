/* Rotary position embedding (Su et al. 2021). The table of cosines and sines is an op of its own, shared by
 * every layer; it is plain (no op of the language makes a cosine), so it has no expand. The rotation of a
 * pair (a, c) is (a cos - c sin, c cos + a sin); its gradient is the rotation by the negative angle. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ops/rules.h"

/* -- rope_table -- */

/* Lanes of the head that are rotated. */
static int64_t rotary_lanes(const trd__rope_table_attr *attr)
{
    double share = attr->options.partial_rotary_factor;
    return share > 0 ? (int64_t)((double)attr->head_dim * share) : attr->head_dim;
}

/* Inverse frequency of pair i of a rotary dimension. Llama 3.1's scaling leaves short waves alone, divides
 * long ones by the factor and blends linearly in between. */
double trd__rope_frequency(const trd_rope_options *o, int64_t i, int64_t rotary)
{
    double f = pow(o->theta, -2.0 * (double)i / (double)rotary);
    if (o->scaling == TRD_ROPE_LINEAR) return f / o->factor;
    if (o->scaling != TRD_ROPE_LLAMA3) return f;
    double turns = o->original_max_position_embeddings * f / (2.0 * 3.14159265358979323846);
    if (turns < o->low_freq_factor) return f / o->factor;
    if (turns > o->high_freq_factor) return f;
    double blend = (turns - o->low_freq_factor) / (o->high_freq_factor - o->low_freq_factor);
    return (1.0 - blend) * f / o->factor + blend * f;
}

static trd_status table_infer(const trd_node *n, trd__type *results)
{
    const trd__rope_table_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "positions", TRD__INT32));
    const trd__type *positions = trd__operand(n, 0);
    if (positions->shape.rank != 2) return trd__fail_shape(n, "positions", "rank 2, (B, T)", positions);
    int64_t rotary = rotary_lanes(attr);
    if (rotary < 2 || rotary % 2 || rotary > attr->head_dim)
        return trd__fail(TRD_SHAPE,
                         "rope_table: expected an even number of rotated lanes within the head of %" PRId64
                         ", found %" PRId64,
                         attr->head_dim, rotary);
    if (!(attr->options.theta > 0))
        return trd__fail(TRD_INVALID_ARGUMENT, "rope_table: expected a positive theta, found %g",
                         attr->options.theta);
    trd_shape shape = TRD__SHAPE(positions->shape.dim[0], positions->shape.dim[1], rotary / 2, 2);
    results[0] = trd__plain_type(TRD_F32, &shape);
    for (int i = 0; i < 2; i++) results[0].axes[i] = positions->axes[i];
    return TRD_OK;
}

static void table_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__rope_table_attr *attr = n->attr;
    snprintf(text, bytes, "theta=%g scaling=%d factor=%g", attr->options.theta, (int)attr->options.scaling,
             attr->options.factor);
}

const trd_op trd__op_rope_table = {.name = "rope_table",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .results = 1,
                                   .attr_size = sizeof(trd__rope_table_attr),
                                   .flags = TRD__OP_NOT_DIFFERENTIABLE,
                                   .cost = TRD__COST_CHEAP,
                                   .infer = table_infer,
                                   .print = table_print};

/* -- rope -- */

static trd_status rope_infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(trd__want(n, 0, "x", TRD__FLOATS));
    const trd__type *x = trd__operand(n, 0), *table = trd__operand(n, 1);
    if (x->shape.rank != 4) return trd__fail_shape(n, "x", "rank 4, (B, T, H, D)", x);
    int64_t pairs = table->shape.rank == 4 ? table->shape.dim[2] : 0;
    if (2 * pairs > x->shape.dim[3])
        return trd__fail_shape_of(n, "x", x, "heads of at least the %" PRId64 " rotated lanes", 2 * pairs);
    trd_shape expected = TRD__SHAPE(x->shape.dim[0], x->shape.dim[1], pairs, 2);
    TRD_TRY(trd__want_type(n, 1, "table", TRD_F32, &expected));
    results[0] = *x;
    return TRD_OK;
}

static trd_value rotate(trd_builder *b, trd_value x, trd_value table, bool inverse)
{
    trd__rope_attr attr = {inverse};
    return trd__add_node(b, &trd__op_rope, &attr, (trd_value[]){x, table}, 2);
}

static void rope_gradient(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs,
                          trd_value *dx)
{
    const trd__rope_attr *attr = n->attr;
    if (needs[0]) dx[0] = rotate(b, dy[0], n->inputs[1], !attr->inverse);
}

/* Column 0 (cosines) or 1 (sines) of the table as (B, T, 1, pairs) in dtype. */
static trd_value table_column(trd_builder *b, trd_value table, int column, trd_dtype dtype)
{
    trd_shape shape = trd_value_shape(table);
    trd_value part = trd_slice(b, table, 3, column, column + 1);
    part = trd_reshape(b, part, TRD__SHAPE(shape.dim[0], shape.dim[1], 1, shape.dim[2]));
    return trd_cast(b, part, dtype);
}

static void rope_expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    const trd__rope_attr *attr = n->attr;
    const trd__type *type = trd__operand(n, 0);
    trd_dtype wide = trd__compute_dtype(type->dtype);
    int64_t lanes = type->shape.dim[3], pairs = trd__operand(n, 1)->shape.dim[2];
    trd_value x = n->inputs[0];
    trd_value a = trd_cast(b, trd_slice(b, x, 3, 0, pairs), wide);
    trd_value c = trd_cast(b, trd_slice(b, x, 3, pairs, 2 * pairs), wide);
    trd_value cosine = table_column(b, n->inputs[1], 0, wide), sine = table_column(b, n->inputs[1], 1, wide);
    if (attr->inverse) sine = trd_neg(b, sine);
    trd_value first = trd_sub(b, trd_mul(b, a, cosine), trd_mul(b, c, sine));
    trd_value second = trd_add(b, trd_mul(b, c, cosine), trd_mul(b, a, sine));
    trd_value parts[3] = {trd_cast(b, first, type->dtype), trd_cast(b, second, type->dtype)};
    int count = 2;
    if (lanes > 2 * pairs) parts[count++] = trd_slice(b, x, 3, 2 * pairs, lanes);
    results[0] = trd_concat(b, parts, count, 3);
}

static void rope_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__rope_attr *attr = n->attr;
    snprintf(text, bytes, "inverse=%d", attr->inverse);
}

/* Fields are copied one by one: the caller's padding bytes must not tell equal tables apart. */
trd_value trd_rope(trd_builder *b, trd_value x, const trd_rows *rows, const trd_rope_options *options)
{
    trd_shape shape = trd_value_shape(x);
    trd__rope_table_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.head_dim = shape.rank ? shape.dim[shape.rank - 1] : 0;
    attr.options.theta = options->theta;
    attr.options.scaling = options->scaling;
    attr.options.factor = options->factor;
    attr.options.low_freq_factor = options->low_freq_factor;
    attr.options.high_freq_factor = options->high_freq_factor;
    attr.options.original_max_position_embeddings = options->original_max_position_embeddings;
    attr.options.partial_rotary_factor = options->partial_rotary_factor;
    trd_value table = trd__add_node(b, &trd__op_rope_table, &attr, &rows->positions, 1);
    return rotate(b, x, table, false);
}

const trd_op trd__op_rope = {.name = "rope",
                             .min_inputs = 2,
                             .max_inputs = 2,
                             .results = 1,
                             .attr_size = sizeof(trd__rope_attr),
                             .cost = TRD__COST_CHEAP,
                             .infer = rope_infer,
                             .gradient = rope_gradient,
                             .expand = rope_expand,
                             .print = rope_print};
