/* Lowering of the ops that move elements without computing. */
#include <inttypes.h>
#include <stdio.h>

#include "backend/pjrt/emit.h"

static void lower_reshape(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    results[0] = trd__hlo_reshape(e, trd__hlo_operand(e, n, 0), &n->results[0].shape);
}

static void lower_transpose(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    const trd__transpose_attr *attr = n->attr;
    trd__hlo x = trd__hlo_operand(e, n, 0);
    int64_t permutation[TRD_MAX_RANK];
    for (int i = 0; i < x.shape.rank; i++) permutation[i] = attr->permutation[i];
    results[0] = trd__emit(e, x.dtype, &n->results[0].shape, &x, 1, "stablehlo.transpose %s, dims = [%s]",
                           x.name, trd__hlo_list(e, permutation, x.shape.rank));
}

/* NumPy's rule: the operand's axes are the last ones of the result. */
static void lower_broadcast(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo x = trd__hlo_operand(e, n, 0);
    const trd_shape *shape = &n->results[0].shape;
    int64_t axes[TRD_MAX_RANK];
    for (int i = 0; i < x.shape.rank; i++) axes[i] = shape->rank - x.shape.rank + i;
    results[0] = trd__hlo_broadcast(e, x, shape, axes);
}

static void lower_slice(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    enum { LIMITS_TEXT = 48 * TRD_MAX_RANK };
    const trd__slice_attr *attr = n->attr;
    trd__hlo x = trd__hlo_operand(e, n, 0);
    char limits[LIMITS_TEXT] = "";
    size_t used = 0;
    for (int i = 0; i < x.shape.rank; i++)
        used +=
            (size_t)snprintf(limits + used, sizeof limits - used, "%s%" PRId64 ":%" PRId64, i ? ", " : "",
                             i == attr->axis ? attr->begin : 0, i == attr->axis ? attr->end : x.shape.dim[i]);
    results[0] =
        trd__emit(e, x.dtype, &n->results[0].shape, &x, 1, "stablehlo.slice %s [%s]", x.name, limits);
}

static void lower_pad(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    const trd__pad_attr *attr = n->attr;
    const trd_shape scalar = {0};
    trd__hlo x = trd__hlo_operand(e, n, 0);
    trd__hlo operands[2] = {x, trd__hlo_fill(e, x.dtype, &scalar, attr->value)};
    int64_t before[TRD_MAX_RANK] = {0}, after[TRD_MAX_RANK] = {0}, between[TRD_MAX_RANK] = {0};
    before[attr->axis] = attr->before;
    after[attr->axis] = attr->after;
    int rank = x.shape.rank;
    results[0] = trd__emit(e, x.dtype, &n->results[0].shape, operands, 2,
                           "stablehlo.pad %s, %s, low = [%s], high = [%s], interior = [%s]", x.name,
                           operands[1].name, trd__hlo_list(e, before, rank), trd__hlo_list(e, after, rank),
                           trd__hlo_list(e, between, rank));
}

static void lower_concat(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    const trd__concat_attr *attr = n->attr;
    trd__hlo parts[TRD__CONCAT_PARTS];
    for (int i = 0; i < n->input_count; i++) parts[i] = trd__hlo_operand(e, n, i);
    results[0] =
        trd__emit(e, parts[0].dtype, &n->results[0].shape, parts, n->input_count,
                  "stablehlo.concatenate %s, dim = %d", trd__hlo_names(e, parts, n->input_count), attr->axis);
}

const trd__pjrt_op trd__pjrt_shape[] = {{.op = &trd__op_reshape, .lower = lower_reshape},
                                        {.op = &trd__op_transpose, .lower = lower_transpose},
                                        {.op = &trd__op_broadcast, .lower = lower_broadcast},
                                        {.op = &trd__op_slice, .lower = lower_slice},
                                        {.op = &trd__op_pad, .lower = lower_pad},
                                        {.op = &trd__op_concat, .lower = lower_concat},
                                        {0}};
