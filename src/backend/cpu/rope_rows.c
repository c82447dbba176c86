/* The rotary rotation by heads with the vector loops: a token's cosines and sines are taken apart once and
 * serve all its heads, which are read and written together. */
#include "backend/cpu/rope.h"
#include "backend/cpu/row_math.h"

enum { SMALL = 1 << 13 };

typedef struct rows_plan {
    const trd__row_math *math;
    int64_t tokens, heads, size, pairs;
} rows_plan;

static const char *refuse(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    return trd__is_f32_or_bf16(n->results[0].dtype) ? NULL : "only float32 and bfloat16";
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    const trd_shape *x = &n->results[0].shape;
    rows_plan *p = trd__arena_alloc(plan->arena, 1, sizeof *p);
    if (!p) return TRD_NO_MEMORY;
    *p = (rows_plan){trd__row_math_for(plan->info->isa), x->dim[0] * x->dim[1], x->dim[2], x->dim[3],
                     trd__type_of(n->inputs[1])->shape.dim[2]};
    plan->state = p;
    plan->worker_bytes = (size_t)(2 * p->pairs + p->heads * p->size) * sizeof(float);
    plan->workers = trd__shape_count(x) < SMALL ? 1 : 0;
    plan->in_place[0] = 0 + 1;
    return TRD_OK;
}

static void run(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const rows_plan *p = call->state;
    float direction = ((const trd__rope_attr *)call->node->attr)->inverse ? -1.0f : 1.0f;
    trd_dtype dtype = call->node->results[0].dtype;
    float *cosines = call->worker_scratch, *sines = cosines + p->pairs, *wide = sines + p->pairs;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, p->tokens, 1, &begin, &end);
    for (int64_t token = begin; token < end; token++) {
        const float *table = (const float *)call->inputs[1] + 2 * token * p->pairs;
        for (int64_t i = 0; i < p->pairs; i++) {
            cosines[i] = table[2 * i];
            sines[i] = direction * table[2 * i + 1];
        }
        int64_t at = token * p->heads * p->size, n = p->heads * p->size;
        const float *x = trd__row_read(p->math, dtype, call->inputs[0], at, n, wide);
        float *y = trd__row_target(dtype, call->outputs[0], at, wide);
        p->math->rotate(x, cosines, sines, y, p->heads, p->size, p->pairs);
        trd__row_write(p->math, dtype, y, call->outputs[0], at, n);
    }
}

const trd__cpu_kernel trd__rope_rows = {.name = "rows", .refuse = refuse, .plan = plan, .run = run};
