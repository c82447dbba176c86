/* rms_norm and its gradient by blocks of rows with the vector loops. A worker takes a run of rows; for the
 * scale's gradient each keeps its own sum, and phase 1 adds the sums in the order of the workers. There may
 * be as many rows as tokens times heads: a few are added in float32, and their sums in float64. */
#include "backend/cpu/rms_norm.h"
#include "backend/cpu/row_math.h"

/* Rows of a block: as many as have BLOCK elements, which lie in the L1 cache with what is made of them. */
enum { ROW_GRAIN = 4, COLUMN_GRAIN = 64, FEW_ROWS = TRD__NORM_ROWS, BLOCK = 1 << 11, SMALL = 1 << 14 };

typedef struct rows_plan {
    const trd__row_math *math;
    trd__norm_dims d;
    int64_t width;    /* channels rounded up to whole cache lines */
    int64_t at_once;  /* rows of a block, at most FEW_ROWS */
    int64_t elements; /* of a block, rounded up like width */
} rows_plan;

static const char *refuse(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    bool known = true;
    for (int i = 0; i < n->input_count; i++)
        known = known && (!n->inputs[i].node || trd__is_f32_or_bf16(trd__type_of(n->inputs[i])->dtype));
    for (int i = 0; i < n->result_count; i++) known = known && trd__is_f32_or_bf16(n->results[i].dtype);
    return known ? NULL : "only float32 and bfloat16";
}

static int64_t whole_lines(int64_t floats)
{
    return (floats + 15) / 16 * 16;
}

static rows_plan *make_plan(const trd_node *n, trd__cpu_plan *plan)
{
    rows_plan *p = trd__arena_alloc(plan->arena, 1, sizeof *p);
    if (!p) return NULL;
    p->math = trd__row_math_for(plan->info->isa);
    p->d = trd__norm_dims_of(n);
    int64_t fit = BLOCK / (p->d.channels > 0 ? p->d.channels : 1);
    p->at_once = fit < 1 ? 1 : fit < FEW_ROWS ? fit : FEW_ROWS;
    p->width = whole_lines(p->d.channels);
    p->elements = whole_lines(p->at_once * p->d.channels);
    plan->state = p;
    plan->workers = p->d.rows * p->d.channels < SMALL ? 1 : 0;
    return p;
}

static trd_status plan_forward(const trd_node *n, trd__cpu_plan *plan)
{
    rows_plan *p = make_plan(n, plan);
    if (!p) return TRD_NO_MEMORY;
    plan->worker_bytes = (size_t)(p->elements + p->width) * sizeof(float);
    plan->in_place[0] = 0 + 1;
    return TRD_OK;
}

static void run_forward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const rows_plan *p = call->state;
    const trd__norm_dims *d = &p->d;
    float *wide = call->worker_scratch, *wide_scale = wide + p->elements;
    const float *scale = trd__row_read(p->math, d->scale_dtype, call->inputs[1], 0, d->channels, wide_scale);
    int64_t begin, end;
    trd__partition(call->worker, call->workers, d->rows, ROW_GRAIN, &begin, &end);
    for (int64_t row = begin; row < end; row += p->at_once) {
        int64_t rows = end - row < p->at_once ? end - row : p->at_once;
        int64_t at = row * d->channels, n = rows * d->channels;
        const float *x = trd__row_read(p->math, d->dtype, call->inputs[0], at, n, wide);
        float *y = trd__row_target(d->dtype, call->outputs[0], at, wide);
        p->math->norm(x, scale, d->eps, y, rows, d->channels);
        trd__row_write(p->math, d->dtype, y, call->outputs[0], at, n);
    }
}

static trd_status plan_backward(const trd_node *n, trd__cpu_plan *plan)
{
    rows_plan *p = make_plan(n, plan);
    if (!p) return TRD_NO_MEMORY;
    int workers = plan->workers == 1 ? 1 : plan->info->workers;
    plan->worker_bytes = (size_t)(2 * p->elements + 2 * p->width) * sizeof(float);
    plan->shared_bytes = (size_t)(workers * p->width) * sizeof(double);
    plan->phases = 2;
    plan->in_place[0] = 2 + 1;
    if (n->inputs[3].node) plan->in_place[1] = 3 + 1;
    return TRD_OK;
}

/* sum += few, few = 0 */
static void add_few(double *sum, float *few, int64_t n)
{
    for (int64_t c = 0; c < n; c++) {
        sum[c] += (double)few[c];
        few[c] = 0.0f;
    }
}

/* dx of a worker's rows, and its sum for the scale's gradient. */
static void gradient_rows(const rows_plan *p, const trd__cpu_call *call)
{
    const trd__norm_dims *d = &p->d;
    float *wide_x = call->worker_scratch, *wide_dy = wide_x + p->elements;
    float *wide_scale = wide_dy + p->elements, *few = wide_scale + p->width;
    double *d_scale = (double *)call->shared_scratch + call->worker * p->width;
    const float *scale = trd__row_read(p->math, d->scale_dtype, call->inputs[1], 0, d->channels, wide_scale);
    for (int64_t c = 0; c < d->channels; c++) d_scale[c] = few[c] = 0.0f;
    int64_t begin, end, added = 0;
    trd__partition(call->worker, call->workers, d->rows, ROW_GRAIN, &begin, &end);
    for (int64_t row = begin; row < end; row += p->at_once) {
        int64_t rows = end - row < p->at_once ? end - row : p->at_once;
        int64_t at = row * d->channels, n = rows * d->channels;
        const float *x = trd__row_read(p->math, d->dtype, call->inputs[0], at, n, wide_x);
        const float *dy = trd__row_read(p->math, d->dtype, call->inputs[2], at, n, wide_dy);
        float *dx = call->outputs[0] ? trd__row_target(d->dtype, call->outputs[0], at, wide_dy) : NULL;
        p->math->norm_gradient(x, scale, d->eps, dy, dx, few, rows, d->channels);
        if (dx) trd__row_write(p->math, d->dtype, dx, call->outputs[0], at, n);
        added += rows;
        if (added + p->at_once <= FEW_ROWS && row + rows < end) continue;
        add_few(d_scale, few, d->channels);
        added = 0;
    }
}

/* Of one worker's sum, in a loop that the compiler makes vectors of. */
static void scale_gradient_of_one(const double *sum, const float *accumulator, float *out, int64_t n)
{
    if (accumulator)
        for (int64_t c = 0; c < n; c++) out[c] = (float)(sum[c] + (double)accumulator[c]);
    else
        for (int64_t c = 0; c < n; c++) out[c] = (float)sum[c];
}

static void scale_gradient(const rows_plan *p, const trd__cpu_call *call)
{
    const double *sums = call->shared_scratch;
    const void *accumulator = call->inputs[3];
    trd_dtype out = call->node->results[1].dtype;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, p->d.channels, COLUMN_GRAIN, &begin, &end);
    if (call->workers == 1 && out == TRD_F32 && call->outputs[1]) {
        scale_gradient_of_one(sums, accumulator, call->outputs[1], p->d.channels);
        return;
    }
    for (int64_t c = begin; call->outputs[1] && c < end; c++) {
        double sum = sums[c];
        for (int w = 1; w < call->workers; w++) sum += sums[w * p->width + c];
        if (accumulator) sum += trd__load(out, accumulator, (size_t)c);
        trd__store(out, call->outputs[1], (size_t)c, sum);
    }
}

static void run_backward(const trd__cpu_call *call, int phase)
{
    if (phase == 0)
        gradient_rows(call->state, call);
    else
        scale_gradient(call->state, call);
}

const trd__cpu_kernel trd__rms_norm_rows = {
    .name = "rows", .refuse = refuse, .plan = plan_forward, .run = run_forward};
const trd__cpu_kernel trd__rms_norm_grad_rows = {
    .name = "rows", .refuse = refuse, .plan = plan_backward, .run = run_backward};
