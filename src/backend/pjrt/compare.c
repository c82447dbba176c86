/* Lowering of the comparisons, one row an op, and of select. Floats compare as IEEE 754 says: with a NaN only
 * "not equal" is true. */
#include "backend/pjrt/emit.h"
#include "base/dtype.h"

static void lower_compare(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    trd__hlo operands[2] = {trd__hlo_operand(e, n, 0), trd__hlo_operand(e, n, 1)};
    trd_dtype dtype = operands[0].dtype;
    bool is_unsigned = dtype == TRD_BOOL || dtype == TRD_U8;
    results[0] = trd__emit(e, TRD_BOOL, &operands[0].shape, operands, 2, "stablehlo.compare %s, %s, %s, %s",
                           row->hlo, operands[0].name, operands[1].name,
                           trd__dtype_is_float(dtype) ? "FLOAT"
                           : is_unsigned              ? "UNSIGNED"
                                                      : "SIGNED");
}

static void lower_select(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo operands[3];
    for (int i = 0; i < 3; i++) operands[i] = trd__hlo_operand(e, n, i);
    results[0] =
        trd__emit(e, operands[1].dtype, &operands[1].shape, operands, 3, "stablehlo.select %s, %s, %s",
                  operands[0].name, operands[1].name, operands[2].name);
}

const trd__pjrt_op trd__pjrt_compare[] = {{.op = &trd__op_equal, .lower = lower_compare, .hlo = "EQ"},
                                          {.op = &trd__op_not_equal, .lower = lower_compare, .hlo = "NE"},
                                          {.op = &trd__op_less, .lower = lower_compare, .hlo = "LT"},
                                          {.op = &trd__op_less_equal, .lower = lower_compare, .hlo = "LE"},
                                          {.op = &trd__op_greater, .lower = lower_compare, .hlo = "GT"},
                                          {.op = &trd__op_greater_equal, .lower = lower_compare, .hlo = "GE"},
                                          {.op = &trd__op_select, .lower = lower_select},
                                          {0}};
