/* Lowering of the reductions. Sums of everything are kept in float64: a loss, a count, a norm. Sums over some
 * axes are kept in the wider of float32, the operand's and the result's dtype, as the device adds them in
 * many lanes at once and float64 costs half of those or, on most accelerators, nearly all. */
#include <math.h>

#include "backend/pjrt/emit.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "ops/rules.h"

static unsigned all_axes(const trd_shape *shape)
{
    return (1u << shape->rank) - 1;
}

/* Everything to one number, the first axis last, so that the rows of a large operand may be added at once. */
static trd__hlo sum_all(trd__emitter *e, trd__hlo x)
{
    trd__hlo rows = trd__hlo_reduce(e, "add", x, all_axes(&x.shape) & ~1u, 0);
    return trd__hlo_reduce(e, "add", rows, all_axes(&rows.shape), 0);
}

static trd_dtype sum_dtype(const trd_node *n)
{
    trd_dtype from = trd__type_of(n->inputs[0])->dtype, to = n->results[0].dtype;
    if (!trd__dtype_is_float(from)) return to == TRD_I32 || from == TRD_BOOL ? TRD_I32 : TRD_I64;
    if (trd__shape_count(&n->results[0].shape) == 1) return TRD_F64;
    return to == TRD_F64 ? TRD_F64 : trd__compute_dtype(from);
}

static void lower_sum(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    const trd__reduce_attr *attr = n->attr;
    trd__hlo x = trd__hlo_convert(e, trd__hlo_operand(e, n, 0), sum_dtype(n));
    bool all = attr->axes_mask == all_axes(&x.shape);
    trd__hlo sum = all ? sum_all(e, x) : trd__hlo_reduce(e, "add", x, attr->axes_mask, 0);
    results[0] = trd__hlo_reshape(e, trd__hlo_convert(e, sum, n->results[0].dtype), &n->results[0].shape);
}

static void lower_max(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    const trd__reduce_attr *attr = n->attr;
    trd__hlo x = trd__hlo_operand(e, n, 0);
    double least = trd__dtype_is_float(x.dtype) ? -INFINITY : (double)INT32_MIN;
    trd__hlo largest = trd__hlo_reduce(e, "maximum", x, attr->axes_mask, least);
    results[0] = trd__hlo_reshape(e, trd__hlo_convert(e, largest, n->results[0].dtype), &n->results[0].shape);
}

static void lower_sum_squares(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo x = trd__hlo_convert(e, trd__hlo_operand(e, n, 0), TRD_F64), operands[2] = {x, x};
    results[0] = sum_all(e, trd__emit_elementwise(e, "multiply", operands, 2));
}

const trd__pjrt_op trd__pjrt_reduce[] = {{.op = &trd__op_reduce_sum, .lower = lower_sum},
                                         {.op = &trd__op_reduce_max, .lower = lower_max},
                                         {.op = &trd__op_sum_squares, .lower = lower_sum_squares},
                                         {.op = &trd__op_replica_sum, .lower = trd__pjrt_replica_sum},
                                         {0}};
