/* Lowering of the matrix product: one dot_general on the operands as they are stored. Products of narrow
 * floats are summed in float32 and rounded once, behind the accumulator if there is one. */
#include "backend/pjrt/emit.h"
#include "ops/rules.h"

/* What operand i was widened from, a null value if it was not. */
static trd_value narrow_operand(const trd_node *n, int i)
{
    const trd_node *from = n->inputs[i].node;
    if (from->op != &trd__op_cast) return (trd_value){NULL, 0};
    trd_dtype dtype = trd__type_of(from->inputs[0])->dtype;
    bool narrow = dtype == TRD_BF16 || dtype == TRD_F16;
    return narrow && from->results[0].dtype == TRD_F32 ? from->inputs[0] : (trd_value){NULL, 0};
}

/* Both operands. Two that were only widened to float32 are taken as they were: products of narrow floats are
 * exact in float32, and devices form them faster. */
static void take_operands(trd__emitter *e, const trd_node *n, trd__hlo operands[2])
{
    trd_value x = narrow_operand(n, 0), y = narrow_operand(n, 1);
    bool narrow = !trd_is_null(x) && !trd_is_null(y) && trd__type_of(x)->dtype == trd__type_of(y)->dtype;
    operands[0] = trd__hlo_read(e, n, narrow ? x : n->inputs[0]);
    operands[1] = trd__hlo_read(e, n, narrow ? y : n->inputs[1]);
}

static const char *const precisions[] = {[TRD__PRECISION_DEFAULT] = "",
                                         [TRD__PRECISION_HIGH] = ", precision = [HIGH, HIGH]",
                                         [TRD__PRECISION_HIGHEST] = ", precision = [HIGHEST, HIGHEST]"};

static void lower_matmul(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    const trd__matmul_attr *attr = n->attr;
    trd__hlo operands[2];
    take_operands(e, n, operands);
    int x_rank = operands[0].shape.rank, y_rank = operands[1].shape.rank;
    bool batched = y_rank > 2;
    int64_t batch[TRD_MAX_RANK];
    for (int i = 0; i < x_rank; i++) batch[i] = i;
    const char *axes = trd__hlo_list(e, batch, batched ? x_rank - 2 : 0);
    trd_dtype wide = trd__compute_dtype(operands[0].dtype);
    trd__hlo product = trd__emit(e, wide, &n->results[0].shape, operands, 2,
                                 "stablehlo.dot_general %s, %s, %s%s%s%s%scontracting_dims = [%d] x [%d]%s",
                                 operands[0].name, operands[1].name, batched ? "batching_dims = [" : "",
                                 batched ? axes : "", batched ? "] x [" : "", batched ? axes : "",
                                 batched ? "], " : "", x_rank - (attr->transpose_x ? 2 : 1),
                                 y_rank - (attr->transpose_y ? 1 : 2), precisions[e->precision]);
    if (n->input_count > 2 && !trd__is_zero(n->inputs[2])) {
        trd_dtype sum = attr->dtype == TRD_F64 ? TRD_F64 : wide;
        trd__hlo pair[2] = {trd__hlo_convert(e, trd__hlo_operand(e, n, 2), sum),
                            trd__hlo_convert(e, product, sum)};
        product = trd__emit_elementwise(e, "add", pair, 2);
    }
    results[0] = trd__hlo_convert(e, product, attr->dtype);
}

const trd__pjrt_op trd__pjrt_matmul[] = {{.op = &trd__op_matmul, .lower = lower_matmul}, {0}};
