/* Kernels of the ops with computed indices. An index out of range is a fault of the run, never a wild access.
 * Deterministic: scatter_add_rows splits columns among the workers, so every element is added to in order. */
#include <inttypes.h>

#include "backend/cpu/kernel.h"

enum { PARALLEL_ELEMENTS = 1 << 15 };

static bool in_range(const trd__cpu_call *call, int64_t id, int64_t limit, int64_t at)
{
    if (id >= 0 && id < limit) return true;
    trd__cpu_fail(call, "index %" PRId64 " at position %" PRId64 " is outside 0 .. %" PRId64, id, at,
                  limit - 1);
    return false;
}

/* Whether sums are kept in float32 and rounded once: for every narrow float operand. */
static bool sums_rows(const trd_node *n)
{
    trd_dtype out = n->results[0].dtype, from = trd__type_of(n->inputs[1])->dtype;
    bool wide = out == TRD_F64 || from == TRD_F64 || !trd__dtype_is_float(out);
    return !wide && (out != TRD_F32 || from != TRD_F32);
}

static trd_status plan(const trd_node *n, trd__cpu_plan *p)
{
    int64_t work = trd__shape_count(&n->results[0].shape);
    if (n->op == &trd__op_scatter_add_rows && n->input_count > 2) {
        work = trd__shape_count(&trd__type_of(n->inputs[1])->shape);
        p->in_place[0] = 2 + 1;
    }
    if (n->op == &trd__op_update_rows) {
        work = trd__shape_count(&trd__type_of(n->inputs[1])->shape);
        p->in_place[0] = 0 + 1;
    }
    if (n->op == &trd__op_scatter_add_rows && sums_rows(n))
        p->worker_bytes = 2 * sizeof(float) * (size_t)n->results[0].shape.dim[1];
    p->workers = work < PARALLEL_ELEMENTS ? 1 : 0;
    return TRD_OK;
}

static void run_gather_rows(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    const trd__type *table = trd__type_of(n->inputs[0]);
    const int32_t *ids = call->inputs[1];
    size_t row = (size_t)table->shape.dim[1] * trd_dtype_bytes(table->dtype);
    int64_t begin, end;
    trd__partition(call->worker, call->workers, trd__shape_count(&trd__type_of(n->inputs[1])->shape), 1,
                   &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)call->outputs[0] + (size_t)i * row;
        if (in_range(call, ids[i], table->shape.dim[0], i))
            memcpy(to, (const char *)call->inputs[0] + (size_t)ids[i] * row, row);
        else
            memset(to, 0, row);
    }
}

/* to[c] += from[c] for the columns [begin, end), in float32 and rounded once; zeros leave the bits alone. */
static void add_row_f32(float *restrict to, const float *restrict from, int64_t begin, int64_t end)
{
    for (int64_t c = begin; c < end; c++) to[c] = from[c] == 0 ? to[c] : to[c] + from[c];
}

static void add_row(trd_dtype to_type, void *to, size_t to_at, trd_dtype from_type, const void *from,
                    size_t from_at, int64_t begin, int64_t end)
{
    for (int64_t c = begin; c < end; c++) {
        double update = trd__load(from_type, from, from_at + (size_t)c);
        if (update == 0) continue;
        trd__store(to_type, to, to_at + (size_t)c, trd__load(to_type, to, to_at + (size_t)c) + update);
    }
}

/* Adds the updates of id ids[first] and of its repetitions: one rounding for a row, however often it occurs.
 */
static void add_summed_rows(const trd__cpu_call *call, int64_t first, int64_t count, int64_t begin,
                            int64_t end)
{
    const trd_node *n = call->node;
    const trd__type *out = &n->results[0], *updates = trd__type_of(n->inputs[1]);
    const int32_t *ids = call->inputs[0];
    int64_t columns = out->shape.dim[1];
    float *sum = call->worker_scratch, *row = sum + columns;
    size_t length = (size_t)(end - begin), update_size = trd_dtype_bytes(updates->dtype);
    memset(sum, 0, length * sizeof *sum);
    for (int64_t i = first; i < count; i++) {
        if (ids[i] != ids[first]) continue;
        trd__convert(updates->dtype,
                     (const char *)call->inputs[1] + (size_t)(i * columns + begin) * update_size, TRD_F32,
                     row, length);
        for (size_t c = 0; c < length; c++) sum[c] += row[c];
    }
    size_t at = (size_t)(ids[first] * columns + begin) * trd_dtype_bytes(out->dtype);
    char *to = (char *)call->outputs[0] + at;
    trd__convert(out->dtype, to, TRD_F32, row, length);
    for (size_t c = 0; c < length; c++) row[c] = sum[c] == 0 ? row[c] : row[c] + sum[c];
    trd__convert(TRD_F32, row, out->dtype, to, length);
}

static bool occurred_before(const int32_t *ids, int64_t i)
{
    bool found = false;
    for (int64_t j = 0; j < i; j++) found |= ids[j] == ids[i];
    return found;
}

static void run_scatter_add_rows(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    const trd__type *out = &n->results[0];
    trd_dtype from_type = trd__type_of(n->inputs[1])->dtype;
    int64_t rows = out->shape.dim[0], columns = out->shape.dim[1], begin, end;
    size_t size = trd_dtype_bytes(out->dtype);
    const int32_t *ids = call->inputs[0];
    trd__partition(call->worker, call->workers, columns, 16, &begin, &end);
    bool starts_from_zero = n->input_count < 3 || !call->inputs[2];
    for (int64_t r = 0; starts_from_zero && r < rows; r++)
        memset((char *)call->outputs[0] + (size_t)(r * columns + begin) * size, 0,
               (size_t)(end - begin) * size);
    int64_t count = trd__shape_count(&trd__type_of(n->inputs[0])->shape);
    for (int64_t i = 0; i < count; i++) {
        if (!in_range(call, ids[i], rows, i)) continue;
        size_t to_at = (size_t)(ids[i] * columns), from_at = (size_t)(i * columns);
        if (sums_rows(n)) {
            if (!occurred_before(ids, i)) add_summed_rows(call, i, count, begin, end);
        } else if (out->dtype == TRD_F32 && from_type == TRD_F32) {
            add_row_f32((float *)call->outputs[0] + to_at, (const float *)call->inputs[1] + from_at, begin,
                        end);
        } else {
            add_row(out->dtype, call->outputs[0], to_at, from_type, call->inputs[1], from_at, begin, end);
        }
    }
}

static void run_take_last(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    const trd__type *x = trd__type_of(n->inputs[0]);
    size_t size = trd_dtype_bytes(x->dtype);
    int64_t length = x->shape.dim[x->shape.rank - 1], begin, end;
    const int32_t *index = call->inputs[1];
    trd__partition(call->worker, call->workers, trd__shape_count(&n->results[0].shape), 64, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)call->outputs[0] + (size_t)i * size;
        if (in_range(call, index[i], length, i))
            memcpy(to, (const char *)call->inputs[0] + (size_t)(i * length + index[i]) * size, size);
        else
            memset(to, 0, size);
    }
}

static void run_put_last(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    const trd__type *values = trd__type_of(n->inputs[0]);
    size_t size = trd_dtype_bytes(values->dtype);
    int64_t length = ((const trd__rows_attr *)n->attr)->rows, begin, end;
    const int32_t *index = call->inputs[1];
    trd__partition(call->worker, call->workers, trd__shape_count(&values->shape), 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)call->outputs[0] + (size_t)(i * length) * size;
        memset(to, 0, (size_t)length * size);
        if (in_range(call, index[i], length, i))
            memcpy(to + (size_t)index[i] * size, (const char *)call->inputs[0] + (size_t)i * size, size);
    }
}

static void run_update_rows(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    const trd_shape *cache = &n->results[0].shape, *update = &trd__type_of(n->inputs[1])->shape;
    const int32_t *start = call->inputs[2];
    size_t row = trd_dtype_bytes(n->results[0].dtype);
    for (int i = 2; i < cache->rank; i++) row *= (size_t)cache->dim[i];
    int64_t rows = cache->dim[1], length = update->dim[1], begin, end;
    trd__partition(call->worker, call->workers, cache->dim[0], 1, &begin, &end);
    for (int64_t b = begin; b < end; b++) {
        char *to = (char *)call->outputs[0] + (size_t)(b * rows) * row;
        if (!call->inputs[0]) memset(to, 0, (size_t)rows * row);
        for (int64_t t = 0; t < length; t++) {
            int64_t at = start[b] + t;
            if (at < 0 || at >= rows) continue;
            memcpy(to + (size_t)at * row, (const char *)call->inputs[1] + (size_t)(b * length + t) * row,
                   row);
        }
    }
}

#define INDEX_OPS(X) X(gather_rows) X(scatter_add_rows) X(take_last) X(put_last) X(update_rows)
#define VARIANTS(op_name)                                                                                    \
    static const trd__cpu_kernel op_name##_reference = {                                                     \
        .name = "reference", .plan = plan, .run = run_##op_name};                                            \
    static const trd__cpu_kernel *const op_name##_variants[] = {&op_name##_reference, NULL};
INDEX_OPS(VARIANTS)

#define ROW(op_name) {.op = &trd__op_##op_name, .variants = op_name##_variants},
const trd__cpu_op trd__cpu_index[] = {INDEX_OPS(ROW){0}};
