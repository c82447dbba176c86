/* Lowering of the ops with computed indices. An index out of range is clamped by a gather and dropped by a
 * scatter: whoever makes indices checks them, a device cannot fail in the middle of a program. */
#include <inttypes.h>

#include "backend/pjrt/emit.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "ops/rules.h"

/* 0, 1, ..., count - 1 behind first. */
static const char *counting(trd__emitter *e, int first, int count)
{
    int64_t numbers[TRD_MAX_RANK];
    for (int i = 0; i < count; i++) numbers[i] = first + i;
    return trd__hlo_list(e, numbers, count);
}

static void lower_gather_rows(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo operands[2] = {trd__hlo_operand(e, n, 0), trd__hlo_operand(e, n, 1)};
    int rank = operands[1].shape.rank;
    results[0] =
        trd__emit(e, operands[0].dtype, &n->results[0].shape, operands, 2,
                  "\"stablehlo.gather\"(%s, %s) <{dimension_numbers = #stablehlo.gather<offset_dims = "
                  "[%d], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = %d>, "
                  "slice_sizes = array<i64: 1, %" PRId64 ">}>",
                  operands[0].name, operands[1].name, rank, rank, operands[0].shape.dim[1]);
}

/* A scatter whose body is `body` of the old element %old and the new one %new. */
static trd__hlo scatter(trd__emitter *e, const trd__hlo operands[3], const char *dimension_numbers,
                        bool unique, const char *body)
{
    const trd_shape scalar = trd__shape_scalar();
    const char *type = trd__hlo_type(e, operands[0].dtype, &scalar);
    bool add = body != NULL;
    return trd__emit(
        e, operands[0].dtype, &operands[0].shape, operands, 3,
        "\"stablehlo.scatter\"(%s, %s, %s) <{scatter_dimension_numbers = #stablehlo.scatter<%s>, "
        "unique_indices = %s}> ({\n"
        "    ^bb0(%%old: %s, %%new: %s):\n%s%s%s"
        "      stablehlo.return %s : %s\n    })",
        operands[0].name, operands[1].name, operands[2].name, dimension_numbers, unique ? "true" : "false",
        type, type, add ? body : "", add ? type : "", add ? "\n" : "", add ? "%both" : "%new", type);
}

/* What rows are added in: float32 for narrow floats, so that a row is rounded once however often it occurs.
 */
static trd_dtype rows_dtype(trd_dtype to, trd_dtype from)
{
    if (to == TRD_F64 || from == TRD_F64) return TRD_F64;
    return trd__dtype_is_float(to) ? trd__compute_dtype(to) : to;
}

static void lower_scatter_add_rows(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row,
                                   trd__hlo *results)
{
    (void)row;
    trd__hlo ids = trd__hlo_operand(e, n, 0), updates = trd__hlo_operand(e, n, 1), base;
    trd_dtype to = n->results[0].dtype, wide = rows_dtype(to, updates.dtype);
    bool zero = n->input_count < 3 || trd__is_zero(n->inputs[2]);
    base = zero ? trd__hlo_fill(e, wide, &n->results[0].shape, 0)
                : trd__hlo_convert(e, trd__hlo_operand(e, n, 2), wide);
    const trd__hlo operands[3] = {base, ids, trd__hlo_convert(e, updates, wide)};
    const char *numbers = trd__hlo_text(e,
                                        "update_window_dims = [%d], inserted_window_dims = [0], "
                                        "scatter_dims_to_operand_dims = [0], index_vector_dim = %d",
                                        ids.shape.rank, ids.shape.rank);
    trd__hlo sum = scatter(e, operands, numbers, false, "      %both = stablehlo.add %old, %new : ");
    results[0] = trd__hlo_convert(e, sum, to);
}

static void lower_take_last(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo operands[2] = {trd__hlo_operand(e, n, 0), trd__hlo_operand(e, n, 1)};
    int rank = operands[1].shape.rank;
    int64_t ones[TRD_MAX_RANK];
    for (int i = 0; i <= rank; i++) ones[i] = 1;
    const char *batch = counting(e, 0, rank);
    results[0] = trd__emit(
        e, operands[0].dtype, &n->results[0].shape, operands, 2,
        "\"stablehlo.gather\"(%s, %s) <{dimension_numbers = #stablehlo.gather<"
        "collapsed_slice_dims = [%d], operand_batching_dims = [%s], "
        "start_indices_batching_dims = [%s], start_index_map = [%d], index_vector_dim = %d>, "
        "slice_sizes = array<i64: %s>}>",
        operands[0].name, operands[1].name, rank, batch, batch, rank, rank, trd__hlo_list(e, ones, rank + 1));
}

/* value where the last axis counts to index, else 0: elementwise, so that it melts into what reads it. */
static void lower_put_last(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo values = trd__hlo_operand(e, n, 0), index = trd__hlo_operand(e, n, 1);
    const trd_shape *shape = &n->results[0].shape;
    int64_t axes[TRD_MAX_RANK];
    for (int i = 0; i < index.shape.rank; i++) axes[i] = i;
    trd__hlo pair[2] = {trd__hlo_iota(e, TRD_I32, shape, shape->rank - 1),
                        trd__hlo_broadcast(e, index, shape, axes)};
    trd__hlo here = trd__emit(e, TRD_BOOL, shape, pair, 2, "stablehlo.compare EQ, %s, %s, SIGNED",
                              pair[0].name, pair[1].name);
    trd__hlo choice[3] = {here, trd__hlo_broadcast(e, values, shape, axes),
                          trd__hlo_fill(e, values.dtype, shape, 0)};
    results[0] = trd__emit(e, values.dtype, shape, choice, 3, "stablehlo.select %s, %s, %s", choice[0].name,
                           choice[1].name, choice[2].name);
}

/* Row start[b] + t of batch b takes update (b, t); a scatter drops the rows outside. */
static void lower_update_rows(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo cache = trd__hlo_operand(e, n, 0), update = trd__hlo_operand(e, n, 1);
    const trd_shape places = trd__leading(&update.shape, 2);
    trd__hlo sum[2] = {trd__hlo_broadcast(e, trd__hlo_operand(e, n, 2), &places, (const int64_t[]){0}),
                       trd__hlo_iota(e, TRD_I32, &places, 1)};
    const trd__hlo operands[3] = {cache, trd__emit_elementwise(e, "add", sum, 2), update};
    const char *numbers = trd__hlo_text(e,
                                        "update_window_dims = [%s], inserted_window_dims = [1], "
                                        "input_batching_dims = [0], scatter_indices_batching_dims = [0], "
                                        "scatter_dims_to_operand_dims = [1], index_vector_dim = 2",
                                        counting(e, 2, cache.shape.rank - 2));
    results[0] = scatter(e, operands, numbers, true, NULL);
}

const trd__pjrt_op trd__pjrt_index[] = {{.op = &trd__op_gather_rows, .lower = lower_gather_rows},
                                        {.op = &trd__op_scatter_add_rows, .lower = lower_scatter_add_rows},
                                        {.op = &trd__op_take_last, .lower = lower_take_last},
                                        {.op = &trd__op_put_last, .lower = lower_put_last},
                                        {.op = &trd__op_update_rows, .lower = lower_update_rows},
                                        {0}};
