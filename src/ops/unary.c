/* Elementwise ops of one operand: a table row an op. In a gradient column x is the operand, z the result and
 * dz the result's cotangent. */
#include <stdio.h>

#include "ops/rules.h"

/* X(op, builder, dtypes, gradient) */
#define DIFFERENTIABLE(X)                                                                                    \
    X(neg, trd_neg, TRD__NUMBERS, trd_neg(b, dz))                                                            \
    X(abs, trd_abs, TRD__NUMBERS, trd_mul(b, dz, trd__sign(b, x)))                                           \
    X(exp, trd_exp, TRD__FLOATS, trd_mul(b, dz, z))                                                          \
    X(log, trd_log, TRD__FLOATS, trd_div(b, dz, x))                                                          \
    X(sqrt, trd_sqrt, TRD__FLOATS, trd_div(b, trd__times(b, dz, 0.5), z))                                    \
    X(rsqrt, trd_rsqrt, TRD__FLOATS, trd_div(b, trd_mul(b, trd__times(b, dz, -0.5), z), x))                  \
    X(tanh, trd_tanh, TRD__FLOATS, trd_mul(b, dz, one_minus(b, trd_square(b, z))))                           \
    X(sigmoid, trd_sigmoid, TRD__FLOATS, trd_mul(b, dz, trd_mul(b, z, one_minus(b, z))))                     \
    X(square, trd_square, TRD__NUMBERS, trd_mul(b, dz, trd__times(b, x, 2)))

/* X(op, builder, dtypes): the result has the operand's dtype and no gradient passes. */
#define FIXED(X)                                                                                             \
    X(sign, trd__sign, TRD__NUMBERS)                                                                         \
    X(not, trd_not, TRD__BOOLEAN)                                                                            \
    X(stop_gradient, trd_stop_gradient, TRD__ANY)

static trd_status infer_same(const trd_node *n, trd__type *results, unsigned dtypes)
{
    TRD_TRY(trd__want(n, 0, "x", dtypes));
    results[0] = *trd__operand(n, 0);
    return TRD_OK;
}

static trd_value one_minus(trd_builder *b, trd_value x)
{
    return trd_sub(b, trd_scalar(b, trd_value_dtype(x), 1), x);
}

#define DEFINE_RULE(op_name, builder, dtypes)                                                                \
    static trd_status op_name##_infer(const trd_node *n, trd__type *results)                                 \
    {                                                                                                        \
        return infer_same(n, results, dtypes);                                                               \
    }                                                                                                        \
    trd_value builder(trd_builder *b, trd_value x)                                                           \
    {                                                                                                        \
        return trd__add_node(b, &trd__op_##op_name, NULL, &x, 1);                                            \
    }

#define DEFINE_DIFFERENTIABLE(op_name, builder, dtypes, gradient_of_x)                                       \
    DEFINE_RULE(op_name, builder, dtypes)                                                                    \
    static void op_name##_gradient(trd_builder *b, const trd_node *n, const trd_value *dzs,                  \
                                   const bool *needs, trd_value *dx)                                         \
    {                                                                                                        \
        trd_value x = n->inputs[0], z = {n, 0}, dz = dzs[0];                                                 \
        (void)needs, (void)x, (void)z;                                                                       \
        dx[0] = gradient_of_x;                                                                               \
    }                                                                                                        \
    const trd_op trd__op_##op_name = {.name = #op_name,                                                      \
                                      .min_inputs = 1,                                                       \
                                      .max_inputs = 1,                                                       \
                                      .results = 1,                                                          \
                                      .flags = TRD__OP_ELEMENTWISE,                                          \
                                      .cost = TRD__COST_CHEAP,                                               \
                                      .infer = op_name##_infer,                                              \
                                      .gradient = op_name##_gradient};
DIFFERENTIABLE(DEFINE_DIFFERENTIABLE)

#define DEFINE_FIXED(op_name, builder, dtypes)                                                               \
    DEFINE_RULE(op_name, builder, dtypes)                                                                    \
    const trd_op trd__op_##op_name = {.name = #op_name,                                                      \
                                      .min_inputs = 1,                                                       \
                                      .max_inputs = 1,                                                       \
                                      .results = 1,                                                          \
                                      .flags = TRD__OP_ELEMENTWISE | TRD__OP_NOT_DIFFERENTIABLE,             \
                                      .cost = TRD__COST_CHEAP,                                               \
                                      .infer = op_name##_infer};
FIXED(DEFINE_FIXED)

static trd_status is_finite_infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(infer_same(n, results, TRD__FLOATS));
    results[0].dtype = TRD_BOOL;
    return TRD_OK;
}

trd_value trd_is_finite(trd_builder *b, trd_value x)
{
    return trd__add_node(b, &trd__op_is_finite, NULL, &x, 1);
}

const trd_op trd__op_is_finite = {.name = "is_finite",
                                  .min_inputs = 1,
                                  .max_inputs = 1,
                                  .results = 1,
                                  .flags = TRD__OP_ELEMENTWISE | TRD__OP_NOT_DIFFERENTIABLE,
                                  .cost = TRD__COST_CHEAP,
                                  .infer = is_finite_infer};

static trd_status cast_infer(const trd_node *n, trd__type *results)
{
    const trd__cast_attr *attr = n->attr;
    TRD_TRY(infer_same(n, results, TRD__ANY));
    if (!(TRD__ANY & TRD__DTYPE_BIT(attr->dtype)))
        return trd__fail(TRD_UNSUPPORTED, "cast: %s is reserved, no kernel makes it",
                         trd_dtype_name(attr->dtype));
    results[0].dtype = attr->dtype;
    return TRD_OK;
}

/* Between floats the cotangent is cast back. A product that only now is widened is made in the wide dtype
 * instead, so that a bfloat16 copy of a float32 weight costs no rounding of the weight's gradient. */
static void cast_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                          trd_value *dx)
{
    (void)needs;
    trd_dtype from = trd__operand(n, 0)->dtype;
    if (!(TRD__FLOATS & TRD__DTYPE_BIT(from)) || !(TRD__FLOATS & TRD__DTYPE_BIT(n->results[0].dtype))) return;
    const trd_node *product = dz[0].node;
    if (product && product->op == &trd__op_matmul && product->input_count == 2 &&
        trd_dtype_bytes(from) > trd_dtype_bytes(product->results[0].dtype)) {
        const trd__matmul_attr *attr = product->attr;
        dx[0] =
            trd_matmul(b, product->inputs[0], product->inputs[1], attr->transpose_x, attr->transpose_y, from);
    } else {
        dx[0] = trd_cast(b, dz[0], from);
    }
}

static void cast_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__cast_attr *attr = n->attr;
    snprintf(text, bytes, "dtype=%s", trd_dtype_name(attr->dtype));
}

trd_value trd_cast(trd_builder *b, trd_value x, trd_dtype dtype)
{
    if (!trd_is_null(x) && trd_value_dtype(x) == dtype) return x;
    return trd__add_node(b, &trd__op_cast, &(trd__cast_attr){dtype}, &x, 1);
}

const trd_op trd__op_cast = {.name = "cast",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .results = 1,
                             .attr_size = sizeof(trd__cast_attr),
                             .flags = TRD__OP_ELEMENTWISE,
                             .cost = TRD__COST_CHEAP,
                             .infer = cast_infer,
                             .gradient = cast_gradient,
                             .print = cast_print};
