/* swiglu and its gradient by tiles that stay in L1, with the vector loops. */
#include "backend/cpu/row_math.h"
#include "backend/cpu/swiglu.h"

enum { TILE = 1024, SMALL = 1 << 13 };

static const char *refuse(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    return trd__is_f32_or_bf16(n->results[0].dtype) ? NULL : "only float32 and bfloat16";
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    plan->state = (void *)(uintptr_t)trd__row_math_for(plan->info->isa);
    plan->worker_bytes = 3 * TILE * sizeof(float);
    plan->workers = trd__shape_count(&n->results[0].shape) < SMALL ? 1 : 0;
    for (int result = 0; result < n->result_count; result++) plan->in_place[result] = result + 1;
    return TRD_OK;
}

static void run(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__row_math *math = call->state;
    const trd__type *type = &call->node->results[0];
    trd_dtype dtype = type->dtype;
    float *wide = call->worker_scratch;
    bool backward = call->node->input_count > 2;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, trd__shape_count(&type->shape), TILE, &begin, &end);
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t n = end - at < TILE ? end - at : TILE;
        const float *gate = trd__row_read(math, dtype, call->inputs[0], at, n, wide);
        const float *up = trd__row_read(math, dtype, call->inputs[1], at, n, wide + TILE);
        float *out[2] = {NULL, NULL};
        for (int i = 0; i < (backward ? 2 : 1); i++)
            if (call->outputs[i]) out[i] = trd__row_target(dtype, call->outputs[i], at, wide + i * TILE);
        if (backward) {
            const float *dy = trd__row_read(math, dtype, call->inputs[2], at, n, wide + 2 * TILE);
            math->swiglu_gradient(gate, up, dy, out[0], out[1], n);
        } else {
            math->swiglu(gate, up, out[0], n);
        }
        for (int i = 0; i < 2; i++)
            if (out[i]) trd__row_write(math, dtype, out[i], call->outputs[i], at, n);
    }
}

const trd__cpu_kernel trd__swiglu_tiles = {.name = "tiles", .refuse = refuse, .plan = plan, .run = run};
