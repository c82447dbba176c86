/* Rotary embedding: the table of cosines and sines, and the rotation's variant list with the plain kernel,
 * which takes every float dtype. Angles are float64 and rounded to float32 after cosine and sine. */
#include "backend/cpu/rope.h"

#include <math.h>

enum { TABLE_GRAIN = 16 };

static trd_status plan_table(const trd_node *n, trd__cpu_plan *plan)
{
    const trd__rope_table_attr *attr = n->attr;
    int64_t pairs = n->results[0].shape.dim[2];
    double *frequencies = trd__arena_alloc(plan->arena, (size_t)pairs, sizeof *frequencies);
    if (!frequencies) return TRD_NO_MEMORY;
    for (int64_t i = 0; i < pairs; i++) frequencies[i] = trd__rope_frequency(&attr->options, i, 2 * pairs);
    plan->state = frequencies;
    return TRD_OK;
}

static void run_table(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_shape *shape = &call->node->results[0].shape; /* (B, T, pairs, 2) */
    const int32_t *positions = call->inputs[0];
    const double *frequencies = call->state;
    float *table = call->outputs[0];
    int64_t pairs = shape->dim[2], begin, end;
    trd__partition(call->worker, call->workers, shape->dim[0] * shape->dim[1], TABLE_GRAIN, &begin, &end);
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < pairs; i++) {
            double angle = (double)positions[row] * frequencies[i];
            table[2 * (row * pairs + i)] = (float)cos(angle);
            table[2 * (row * pairs + i) + 1] = (float)sin(angle);
        }
}

static trd_status plan_rotate(const trd_node *n, trd__cpu_plan *plan)
{
    (void)n;
    plan->workers = 1;
    plan->in_place[0] = 0 + 1;
    return TRD_OK;
}

static void rotate_row(const trd__cpu_call *call, trd_dtype dtype, size_t at, size_t size, const float *table,
                       size_t pairs)
{
    double direction = ((const trd__rope_attr *)call->node->attr)->inverse ? -1.0 : 1.0;
    for (size_t i = 0; i < pairs; i++) {
        double x = trd__load(dtype, call->inputs[0], at + i);
        double y = trd__load(dtype, call->inputs[0], at + i + pairs);
        double c = (double)table[2 * i], s = direction * (double)table[2 * i + 1];
        trd__store(dtype, call->outputs[0], at + i, x * c - y * s);
        trd__store(dtype, call->outputs[0], at + i + pairs, y * c + x * s);
    }
    for (size_t i = 2 * pairs; i < size; i++)
        trd__store(dtype, call->outputs[0], at + i, trd__load(dtype, call->inputs[0], at + i));
}

static void run_rotate(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__type *x = &call->node->results[0];
    int64_t rows = x->shape.dim[0] * x->shape.dim[1], heads = x->shape.dim[2], size = x->shape.dim[3];
    int64_t pairs = trd__type_of(call->node->inputs[1])->shape.dim[2];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < heads; h++)
            rotate_row(call, x->dtype, (size_t)((row * heads + h) * size), (size_t)size,
                       (const float *)call->inputs[1] + 2 * row * pairs, (size_t)pairs);
}

static const trd__cpu_kernel table = {.name = "reference", .plan = plan_table, .run = run_table};
static const trd__cpu_kernel rotate = {.name = "reference", .plan = plan_rotate, .run = run_rotate};
static const trd__cpu_kernel *const table_variants[] = {&table, NULL};
static const trd__cpu_kernel *const rotate_variants[] = {&trd__rope_rows, &rotate, NULL};

const trd__cpu_op trd__cpu_rope[] = {{.op = &trd__op_rope_table, .variants = table_variants},
                                     {.op = &trd__op_rope, .variants = rotate_variants},
                                     {0}};
