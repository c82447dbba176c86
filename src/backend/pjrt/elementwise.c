/* The lowering that the elementwise families share: row->hlo of the operands, in the compute dtype where the
 * row is wide. A sum, product or quotient of two narrow floats needs no widening: formed in float32 and
 * rounded once it has the same bits. */
#include "backend/pjrt/emit.h"
#include "ops/rules.h"

void trd__pjrt_elementwise(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    trd__hlo operands[TRD__MAX_INPUTS];
    for (int i = 0; i < n->input_count; i++) {
        operands[i] = trd__hlo_operand(e, n, i);
        if (row->wide) operands[i] = trd__hlo_convert(e, operands[i], trd__compute_dtype(operands[i].dtype));
    }
    trd__hlo value = trd__emit_elementwise(e, row->hlo, operands, n->input_count);
    results[0] = trd__hlo_convert(e, value, n->results[0].dtype);
}
