/* Lowering of the binary elementwise ops: one row an op. Operands have one shape: the graph broadcasts. */
#include "backend/pjrt/emit.h"

/* By y modulo 32, where StableHLO's shifts by 32 and more give 0. */
static void lower_shift(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    trd__hlo x = trd__hlo_operand(e, n, 0), y = trd__hlo_operand(e, n, 1);
    trd__hlo by[2] = {y, trd__hlo_fill(e, y.dtype, &y.shape, 31)};
    trd__hlo operands[2] = {x, trd__emit_elementwise(e, "and", by, 2)};
    results[0] = trd__emit_elementwise(e, row->hlo, operands, 2);
}

const trd__pjrt_op trd__pjrt_binary[] = {
    {.op = &trd__op_add, .lower = trd__pjrt_elementwise, .hlo = "add"},
    {.op = &trd__op_sub, .lower = trd__pjrt_elementwise, .hlo = "subtract"},
    {.op = &trd__op_mul, .lower = trd__pjrt_elementwise, .hlo = "multiply"},
    {.op = &trd__op_div, .lower = trd__pjrt_elementwise, .hlo = "divide"},
    {.op = &trd__op_max, .lower = trd__pjrt_elementwise, .hlo = "maximum"},
    {.op = &trd__op_min, .lower = trd__pjrt_elementwise, .hlo = "minimum"},
    {.op = &trd__op_pow, .lower = trd__pjrt_elementwise, .hlo = "power", .wide = true},
    {.op = &trd__op_and, .lower = trd__pjrt_elementwise, .hlo = "and"},
    {.op = &trd__op_or, .lower = trd__pjrt_elementwise, .hlo = "or"},
    {.op = &trd__op_xor, .lower = trd__pjrt_elementwise, .hlo = "xor"},
    {.op = &trd__op_shift_left, .lower = lower_shift, .hlo = "shift_left"},
    {.op = &trd__op_shift_right, .lower = lower_shift, .hlo = "shift_right_logical"},
    {0}};
