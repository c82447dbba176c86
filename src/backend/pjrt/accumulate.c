/* Lowering of accumulate: added in the wider of both dtypes, float32 at least, and rounded once. */
#include "backend/pjrt/emit.h"
#include "ops/rules.h"

static void lower_accumulate(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo accumulator = trd__hlo_operand(e, n, 0), x = trd__hlo_operand(e, n, 1);
    if (trd__is_zero(n->inputs[0])) {
        results[0] = trd__hlo_convert(e, x, accumulator.dtype);
        return;
    }
    trd_dtype wide = trd__compute_dtype(x.dtype == TRD_F64 ? x.dtype : accumulator.dtype);
    trd__hlo pair[2] = {trd__hlo_convert(e, accumulator, wide), trd__hlo_convert(e, x, wide)};
    results[0] = trd__hlo_convert(e, trd__emit_elementwise(e, "add", pair, 2), accumulator.dtype);
}

const trd__pjrt_op trd__pjrt_accumulate[] = {{.op = &trd__op_accumulate, .lower = lower_accumulate}, {0}};
