/* Root-mean-square norm over the last axis: y = x / sqrt(mean(x^2) + eps) * scale (Zhang & Sennrich 2019).
 * The gradient is an op of its own, because it and the sum for the scale's gradient read the same rows. With
 * r = 1 / sqrt(mean(x^2) + eps), h = x r and g = dy scale: dx = r (g - h mean(g h)), dscale = sum(dy h). */
#include <stdio.h>

#include "ops/rules.h"

static trd_status check_operands(const trd_node *n)
{
    TRD_TRY(trd__want_rank(n, 0, "x", TRD__FLOATS, 1));
    const trd__type *x = trd__operand(n, 0);
    trd_shape scale = TRD__SHAPE(x->shape.dim[x->shape.rank - 1]);
    return trd__want_type(n, 1, "scale", x->dtype, &scale);
}

static trd_status infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(check_operands(n));
    results[0] = *trd__operand(n, 0);
    return TRD_OK;
}

static trd_status grad_infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(check_operands(n));
    const trd__type *x = trd__operand(n, 0), *scale = trd__operand(n, 1), *accumulator = trd__operand(n, 3);
    TRD_TRY(trd__want_type(n, 2, "dy", x->dtype, &x->shape));
    results[0] = *x;
    results[1] = *scale;
    if (!accumulator) return TRD_OK;
    TRD_TRY(trd__want(n, 3, "accumulator", TRD__FLOATS));
    TRD_TRY(trd__want_type(n, 3, "accumulator", accumulator->dtype, &scale->shape));
    results[1] = *accumulator;
    return TRD_OK;
}

static void gradient(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs, trd_value *dx)
{
    trd_value inputs[4] = {n->inputs[0], n->inputs[1], dy[0]};
    const trd_node *grad = trd__node_add(b, &trd__op_rms_norm_grad, n->attr, inputs, 4);
    if (needs[0]) dx[0] = trd__result(grad, 0);
    if (needs[1]) dx[1] = trd__result(grad, 1);
}

static bool accumulates_into(trd_builder *b, const trd_node *n, int result, trd_value accumulator,
                             trd_value *results)
{
    if (result != 1 || !trd_is_null(n->inputs[3])) return false;
    trd_value inputs[4] = {n->inputs[0], n->inputs[1], n->inputs[2], accumulator};
    const trd_node *grad = trd__node_add(b, n->op, n->attr, inputs, 4);
    for (int i = 0; i < 2; i++) results[i] = trd__result(grad, i);
    return true;
}

/* r of x, both in the dtype the math is done in. */
static trd_value inverse_norm(trd_builder *b, trd_value x, const trd__rms_norm_attr *attr)
{
    trd_value eps = trd_scalar(b, trd_value_dtype(x), attr->eps);
    return trd_rsqrt(b, trd_add(b, trd__mean_last(b, trd_square(b, x)), eps));
}

static void expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    trd_dtype dtype = trd__operand(n, 0)->dtype, wide = trd__compute_dtype(dtype);
    trd_value x = trd_cast(b, n->inputs[0], wide), scale = trd_cast(b, n->inputs[1], wide);
    trd_value h = trd_mul(b, x, inverse_norm(b, x, n->attr));
    results[0] = trd_cast(b, trd_mul(b, h, scale), dtype);
}

static void grad_expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    const trd__type *type = trd__operand(n, 0);
    trd_dtype wide = trd__compute_dtype(type->dtype);
    trd_value x = trd_cast(b, n->inputs[0], wide), scale = trd_cast(b, n->inputs[1], wide);
    trd_value dy = trd_cast(b, n->inputs[2], wide), r = inverse_norm(b, x, n->attr);
    trd_value h = trd_mul(b, x, r), g = trd_mul(b, dy, scale);
    trd_value dx = trd_mul(b, r, trd_sub(b, g, trd_mul(b, h, trd__mean_last(b, trd_mul(b, g, h)))));
    results[0] = trd_cast(b, dx, type->dtype);
    unsigned rows = (1u << (type->shape.rank - 1)) - 1;
    trd_value dscale = trd_reduce_sum(b, trd_mul(b, dy, h), rows, false, wide);
    results[1] = trd_is_null(n->inputs[3]) ? trd_cast(b, dscale, n->results[1].dtype)
                                           : trd_accumulate(b, n->inputs[3], dscale);
}

static void print(const trd_node *n, char *text, size_t bytes)
{
    const trd__rms_norm_attr *attr = n->attr;
    snprintf(text, bytes, "eps=%g", attr->eps);
}

trd_value trd_rms_norm(trd_builder *b, trd_value x, trd_value scale, double eps)
{
    trd_value inputs[2] = {x, scale};
    return trd__add_node(b, &trd__op_rms_norm, &(trd__rms_norm_attr){eps}, inputs, 2);
}

const trd_op trd__op_rms_norm = {.name = "rms_norm",
                                 .min_inputs = 2,
                                 .max_inputs = 2,
                                 .results = 1,
                                 .attr_size = sizeof(trd__rms_norm_attr),
                                 .cost = TRD__COST_CHEAP,
                                 .infer = infer,
                                 .gradient = gradient,
                                 .expand = expand,
                                 .print = print};

const trd_op trd__op_rms_norm_grad = {.name = "rms_norm_grad",
                                      .min_inputs = 4,
                                      .max_inputs = 4,
                                      .optional_inputs = 1u << 3,
                                      .results = 2,
                                      .attr_size = sizeof(trd__rms_norm_attr),
                                      .flags = TRD__OP_ALIASES,
                                      .cost = TRD__COST_CHEAP,
                                      .alias_input = 3,
                                      .infer = grad_infer,
                                      .expand = grad_expand,
                                      .accumulates_into = accumulates_into,
                                      .print = print};
