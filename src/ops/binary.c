/* Elementwise ops of two operands: a table row an op. The nodes take operands of one shape; the builders
 * broadcast as NumPy does by inserting broadcast nodes, whose gradient is the sum over the repeated axes. In
 * the gradient columns x and y are the operands, z the result and dz its cotangent. */
#include "ops/rules.h"

/* X(op, builder, dtypes, flags, gradient of x, gradient of y) */
#define DIFFERENTIABLE(X)                                                                                    \
    X(add, trd_add, TRD__NUMBERS, TRD__OP_COMMUTATIVE, dz, dz)                                               \
    X(sub, trd_sub, TRD__NUMBERS, 0, dz, trd_neg(b, dz))                                                     \
    X(mul, trd_mul, TRD__NUMBERS, TRD__OP_COMMUTATIVE, trd_mul(b, dz, y), trd_mul(b, dz, x))                 \
    X(div, trd_div, TRD__FLOATS, 0, trd_div(b, dz, y), trd_neg(b, trd_div(b, trd_mul(b, dz, z), y)))         \
    X(max, trd_max, TRD__NUMBERS, TRD__OP_COMMUTATIVE, chosen(b, trd_greater(b, x, y), x, y, dz),            \
      chosen(b, trd_greater(b, y, x), x, y, dz))                                                             \
    X(min, trd_min, TRD__NUMBERS, TRD__OP_COMMUTATIVE, chosen(b, trd_less(b, x, y), x, y, dz),               \
      chosen(b, trd_less(b, y, x), x, y, dz))                                                                \
    X(pow, trd_pow, TRD__FLOATS, 0, pow_base(b, x, y, dz), pow_exponent(b, x, z, dz))

/* X(op, builder, dtypes, flags) */
#define BITWISE(X)                                                                                           \
    X(and, trd_and, TRD__BOOLEAN, TRD__OP_COMMUTATIVE)                                                       \
    X(or, trd_or, TRD__BOOLEAN, TRD__OP_COMMUTATIVE)                                                         \
    X(xor, trd_xor, TRD__INT32, TRD__OP_COMMUTATIVE)                                                         \
    X(shift_left, trd_shift_left, TRD__INT32, 0)                                                             \
    X(shift_right, trd_shift_right, TRD__INT32, 0)

/* Cotangent of the operand that `wins`; a tie gives each half. */
static trd_value chosen(trd_builder *b, trd_value wins, trd_value x, trd_value y, trd_value dz)
{
    return trd_select(b, wins, dz, trd__mask(b, trd_equal(b, x, y), trd__times(b, dz, 0.5)));
}

/* y x^(y-1), 0 for the constant x^0 (where x = 0 would give 0 * infinity). */
static trd_value pow_base(trd_builder *b, trd_value x, trd_value y, trd_value dz)
{
    trd_value one = trd_scalar(b, trd_value_dtype(y), 1), zero = trd_scalar(b, trd_value_dtype(y), 0);
    trd_value slope = trd_mul(b, y, trd_pow(b, x, trd_sub(b, y, one)));
    return trd__mask(b, trd_not_equal(b, y, zero), trd_mul(b, dz, slope));
}

/* x^y log x, for positive x only: elsewhere the power is no smooth function of its exponent. */
static trd_value pow_exponent(trd_builder *b, trd_value x, trd_value z, trd_value dz)
{
    trd_value positive = trd_greater(b, x, trd_scalar(b, trd_value_dtype(x), 0));
    return trd__mask(b, positive, trd_mul(b, dz, trd_mul(b, z, trd_log(b, x))));
}

#define DEFINE_RULE(op_name, builder, dtypes)                                                                \
    static trd_status op_name##_infer(const trd_node *n, trd__type *results)                                 \
    {                                                                                                        \
        return trd__infer_pair(n, results, dtypes);                                                          \
    }                                                                                                        \
    trd_value builder(trd_builder *b, trd_value x, trd_value y)                                              \
    {                                                                                                        \
        return trd__add_pair(b, &trd__op_##op_name, x, y);                                                   \
    }

#define DEFINE_DIFFERENTIABLE(op_name, builder, dtypes, flag_set, gradient_of_x, gradient_of_y)              \
    DEFINE_RULE(op_name, builder, dtypes)                                                                    \
    static void op_name##_gradient(trd_builder *b, const trd_node *n, const trd_value *dzs,                  \
                                   const bool *needs, trd_value *dx)                                         \
    {                                                                                                        \
        trd_value x = n->inputs[0], y = n->inputs[1], z = {n, 0}, dz = dzs[0];                               \
        (void)x, (void)y, (void)z, (void)b;                                                                  \
        if (needs[0]) dx[0] = gradient_of_x;                                                                 \
        if (needs[1]) dx[1] = gradient_of_y;                                                                 \
    }                                                                                                        \
    const trd_op trd__op_##op_name = {.name = #op_name,                                                      \
                                      .min_inputs = 2,                                                       \
                                      .max_inputs = 2,                                                       \
                                      .results = 1,                                                          \
                                      .flags = TRD__OP_ELEMENTWISE | (flag_set),                             \
                                      .cost = TRD__COST_CHEAP,                                               \
                                      .infer = op_name##_infer,                                              \
                                      .gradient = op_name##_gradient};
DIFFERENTIABLE(DEFINE_DIFFERENTIABLE)

#define DEFINE_BITWISE(op_name, builder, dtypes, flag_set)                                                   \
    DEFINE_RULE(op_name, builder, dtypes)                                                                    \
    const trd_op trd__op_##op_name = {.name = #op_name,                                                      \
                                      .min_inputs = 2,                                                       \
                                      .max_inputs = 2,                                                       \
                                      .results = 1,                                                          \
                                      .flags =                                                               \
                                          TRD__OP_ELEMENTWISE | TRD__OP_NOT_DIFFERENTIABLE | (flag_set),     \
                                      .cost = TRD__COST_CHEAP,                                               \
                                      .infer = op_name##_infer};
BITWISE(DEFINE_BITWISE)
