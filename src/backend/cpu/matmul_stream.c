/* Products of at most TRD__STREAM_ROWS rows with a weight stored (N, K), as every step of generation has
 * them: workers share the weight's rows, and each is read once. */
#include "backend/cpu/matmul.h"
#include "backend/cpu/row_math.h"
#include "backend/cpu/stream_math.h"

enum {
    GRAIN = 16,            /* weight rows: a cache line of results */
    SMALL_WEIGHT = 1 << 16 /* bytes of weight that one worker reads while the others would be called */
};

typedef struct stream_plan {
    const trd__stream_math *math;
    const trd__row_math *rows;
    trd__matmul_dims dims;
    trd_dtype x, weight, out;
} stream_plan;

static const char *refuse(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    const trd__matmul_attr *attr = n->attr;
    trd__matmul_dims d = trd__matmul_dims_of(n);
    if (attr->transpose_x || !attr->transpose_y || d.y_batch) return "only x times a weight stored (N, K)";
    if (d.m > TRD__STREAM_ROWS) return "too many rows: blocks of them reuse the weight";
    if (n->input_count > 2 && n->inputs[2].node) return "no accumulator";
    bool known = trd__is_f32_or_bf16(attr->dtype);
    for (int i = 0; i < 2; i++) known = known && trd__is_f32_or_bf16(trd__type_of(n->inputs[i])->dtype);
    return known ? NULL : "only float32 and bfloat16";
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    stream_plan *p = trd__arena_alloc(plan->arena, 1, sizeof *p);
    if (!p) return TRD_NO_MEMORY;
    *p = (stream_plan){.math = trd__stream_math_for(plan->info->isa),
                       .rows = trd__row_math_for(plan->info->isa),
                       .dims = trd__matmul_dims_of(n),
                       .x = trd__type_of(n->inputs[0])->dtype,
                       .weight = trd__type_of(n->inputs[1])->dtype,
                       .out = ((const trd__matmul_attr *)n->attr)->dtype};
    plan->state = p;
    /* x as float32, and weight rows of the last, partial call. */
    size_t wide = p->x == TRD_F32 ? 0 : (size_t)(p->dims.m * p->dims.k);
    plan->worker_bytes = (wide + (size_t)(TRD__STREAM_COLUMNS * p->dims.k)) * sizeof(float);
    plan->workers = (size_t)(p->dims.n * p->dims.k) * trd_dtype_bytes(p->weight) < SMALL_WEIGHT ? 1 : 0;
    return TRD_OK;
}

static void multiply(const stream_plan *p, const float *x, const unsigned char *weight, float *out)
{
    if (p->weight == TRD_F32)
        p->math->f32(x, p->dims.m, (const float *)(const void *)weight, p->dims.k, out);
    else
        p->math->bf16(x, p->dims.m, (const trd__bf16 *)(const void *)weight, p->dims.k, out);
}

static void store(const stream_plan *p, const float *results, void *out, int64_t column, int64_t count)
{
    for (int64_t r = 0; r < p->dims.m; r++) {
        const float *from = results + r * TRD__STREAM_COLUMNS;
        int64_t at = r * p->dims.n + column;
        if (p->out == TRD_F32)
            memcpy((float *)out + at, from, (size_t)count * sizeof *from);
        else
            for (int64_t c = 0; c < count; c++) ((trd__bf16 *)out)[at + c] = trd__f32_to_bf16(from[c]);
    }
}

static void run(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const stream_plan *p = call->state;
    int64_t k = p->dims.k, begin, end, columns = TRD__STREAM_COLUMNS;
    size_t row_bytes = (size_t)k * trd_dtype_bytes(p->weight);
    const unsigned char *weight = call->inputs[1];
    float results[TRD__STREAM_ROWS * TRD__STREAM_COLUMNS], *scratch = call->worker_scratch;
    trd__partition(call->worker, call->workers, p->dims.n, GRAIN, &begin, &end);
    if (begin >= end || p->dims.m == 0) return;
    const float *x = call->inputs[0];
    if (p->x != TRD_F32) {
        p->rows->widen(call->inputs[0], scratch, p->dims.m * k);
        x = scratch;
        scratch += p->dims.m * k;
    }
    for (; begin + columns <= end; begin += columns) {
        multiply(p, x, weight + (size_t)begin * row_bytes, results);
        store(p, results, call->outputs[0], begin, columns);
    }
    if (begin == end) return;
    memset(scratch, 0, (size_t)(columns * k) * sizeof *scratch);
    memcpy(scratch, weight + (size_t)begin * row_bytes, (size_t)(end - begin) * row_bytes);
    multiply(p, x, (const unsigned char *)(const void *)scratch, results);
    store(p, results, call->outputs[0], begin, end - begin);
}

const trd__cpu_kernel trd__matmul_stream = {.name = "stream", .refuse = refuse, .plan = plan, .run = run};
