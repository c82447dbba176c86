/* Dropout by tiles with the vector loops, and the plain kernel, which takes every float dtype and draws one
 * word at a time. The key is drawn from seed, counter and site by every worker for itself. */
#include "backend/cpu/row_math.h"
#include "base/rng.h"

enum { TILE = 32 * TRD__DROPOUT_GROUP, SMALL = 1 << 13 };

static trd__dropout_draw draw_of(const trd__cpu_call *call)
{
    const trd__dropout_attr *attr = call->node->attr;
    const uint32_t seed[2] = {(uint32_t)attr->seed, (uint32_t)(attr->seed >> 32)};
    const uint32_t place[2] = {(uint32_t) * (const int32_t *)call->inputs[1],
                               (uint32_t) * (const int32_t *)call->inputs[2]};
    trd__dropout_draw draw = {.threshold = trd__dropout_threshold(attr),
                              .factor = (float)(1.0 / (1.0 - attr->rate))};
    trd__threefry(seed, place, draw.key);
    return draw;
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    (void)n;
    plan->workers = 1;
    plan->in_place[0] = 0 + 1;
    return TRD_OK;
}

static void run(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__type *type = &call->node->results[0];
    const trd__dropout_attr *attr = call->node->attr;
    trd__dropout_draw draw = draw_of(call);
    int64_t count = trd__shape_count(&type->shape);
    for (int64_t i = 0; i < count; i++) {
        int64_t block = i / TRD__DROPOUT_GROUP * TRD__DROPOUT_LANES + i % TRD__DROPOUT_LANES;
        uint32_t words[2];
        trd__threefry(draw.key, (uint32_t[]){(uint32_t)block, 0}, words);
        bool kept = words[i / TRD__DROPOUT_LANES % 2] >> 8 >= draw.threshold;
        double x = trd__load(type->dtype, call->inputs[0], (size_t)i);
        trd__store(type->dtype, call->outputs[0], (size_t)i, kept ? x / (1.0 - attr->rate) : 0.0);
    }
}

static const char *refuse_tiles(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    return trd__is_f32_or_bf16(n->results[0].dtype) ? NULL : "only float32 and bfloat16";
}

static trd_status plan_tiles(const trd_node *n, trd__cpu_plan *plan)
{
    plan->state = (void *)(uintptr_t)trd__row_math_for(plan->info->isa);
    plan->worker_bytes = TILE * sizeof(float);
    plan->workers = trd__shape_count(&n->results[0].shape) < SMALL ? 1 : 0;
    plan->in_place[0] = 0 + 1;
    return TRD_OK;
}

static void run_tiles(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__row_math *math = call->state;
    const trd__type *type = &call->node->results[0];
    trd__dropout_draw draw = draw_of(call);
    int64_t begin, end;
    trd__partition(call->worker, call->workers, trd__shape_count(&type->shape), TILE, &begin, &end);
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t n = end - at < TILE ? end - at : TILE;
        const float *x = trd__row_read(math, type->dtype, call->inputs[0], at, n, call->worker_scratch);
        float *y = trd__row_target(type->dtype, call->outputs[0], at, call->worker_scratch);
        math->dropout(x, &draw, at, y, n);
        trd__row_write(math, type->dtype, y, call->outputs[0], at, n);
    }
}

static const trd__cpu_kernel reference = {.name = "reference", .plan = plan, .run = run};
static const trd__cpu_kernel tiles = {
    .name = "tiles", .refuse = refuse_tiles, .plan = plan_tiles, .run = run_tiles};
static const trd__cpu_kernel *const variants[] = {&tiles, &reference, NULL};

const trd__cpu_op trd__cpu_dropout[] = {{.op = &trd__op_dropout, .variants = variants}, {0}};
