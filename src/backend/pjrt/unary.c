/* Lowering of the unary elementwise ops: one row an op. */
#include "backend/pjrt/emit.h"

static void lower_square(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo x = trd__hlo_operand(e, n, 0), operands[2] = {x, x};
    results[0] = trd__emit_elementwise(e, "multiply", operands, 2);
}

static void lower_is_finite(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo x = trd__hlo_operand(e, n, 0);
    results[0] = trd__emit(e, TRD_BOOL, &x.shape, &x, 1, "stablehlo.is_finite %s", x.name);
}

/* Both sides agree: towards 0 for integers, x != 0 for bool. */
static void lower_cast(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    results[0] = trd__hlo_convert(e, trd__hlo_operand(e, n, 0), n->results[0].dtype);
}

static void lower_stop_gradient(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row,
                                trd__hlo *results)
{
    (void)row;
    results[0] = trd__hlo_operand(e, n, 0);
}

const trd__pjrt_op trd__pjrt_unary[] = {
    {.op = &trd__op_neg, .lower = trd__pjrt_elementwise, .hlo = "negate"},
    {.op = &trd__op_abs, .lower = trd__pjrt_elementwise, .hlo = "abs"},
    {.op = &trd__op_sign, .lower = trd__pjrt_elementwise, .hlo = "sign"},
    {.op = &trd__op_exp, .lower = trd__pjrt_elementwise, .hlo = "exponential", .wide = true},
    {.op = &trd__op_log, .lower = trd__pjrt_elementwise, .hlo = "log", .wide = true},
    {.op = &trd__op_sqrt, .lower = trd__pjrt_elementwise, .hlo = "sqrt", .wide = true},
    {.op = &trd__op_rsqrt, .lower = trd__pjrt_elementwise, .hlo = "rsqrt", .wide = true},
    {.op = &trd__op_tanh, .lower = trd__pjrt_elementwise, .hlo = "tanh", .wide = true},
    {.op = &trd__op_sigmoid, .lower = trd__pjrt_elementwise, .hlo = "logistic", .wide = true},
    {.op = &trd__op_square, .lower = lower_square},
    {.op = &trd__op_not, .lower = trd__pjrt_elementwise, .hlo = "not"},
    {.op = &trd__op_is_finite, .lower = lower_is_finite},
    {.op = &trd__op_cast, .lower = lower_cast},
    {.op = &trd__op_stop_gradient, .lower = lower_stop_gradient},
    {0}};
