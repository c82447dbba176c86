/* Kernels of the reductions. Float sums are kept in float64 and rounded once; the order of additions depends
 * on the number of workers only where a sum is split among them (sum_squares). */
#include <math.h>

#include "backend/cpu/kernel.h"

enum { PARALLEL_ELEMENTS = 1 << 15 };

/* The kept and the reduced axes of an operand, each with the operand's strides. */
typedef struct axes {
    int kept_rank, reduced_rank;
    int64_t kept[TRD_MAX_RANK], kept_stride[TRD_MAX_RANK], kept_count;
    int64_t reduced[TRD_MAX_RANK], reduced_stride[TRD_MAX_RANK], reduced_count;
} axes;

static axes axes_of(const trd_node *n)
{
    const trd__reduce_attr *attr = n->attr;
    const trd_shape *shape = &trd__type_of(n->inputs[0])->shape;
    axes a = {.kept_count = 1, .reduced_count = 1};
    int64_t strides[TRD_MAX_RANK], stride = 1;
    for (int i = shape->rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape->dim[i];
    }
    for (int i = 0; i < shape->rank; i++) {
        if (attr->axes_mask >> i & 1u) {
            a.reduced[a.reduced_rank] = shape->dim[i];
            a.reduced_stride[a.reduced_rank++] = strides[i];
            a.reduced_count *= shape->dim[i];
        } else {
            a.kept[a.kept_rank] = shape->dim[i];
            a.kept_stride[a.kept_rank++] = strides[i];
            a.kept_count *= shape->dim[i];
        }
    }
    return a;
}

static int64_t offset_of(int64_t index, int rank, const int64_t *dims, const int64_t *strides)
{
    int64_t offset = 0;
    for (int i = rank - 1; i >= 0; i--) {
        offset += index % dims[i] * strides[i];
        index /= dims[i];
    }
    return offset;
}

static void run_reduce(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    axes a = axes_of(n);
    trd_dtype dtype = trd__type_of(n->inputs[0])->dtype;
    bool sum = n->op == &trd__op_reduce_sum;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, a.kept_count, 16, &begin, &end);
    for (int64_t k = begin; k < end; k++) {
        int64_t base = offset_of(k, a.kept_rank, a.kept, a.kept_stride);
        double value = sum ? 0.0 : -INFINITY;
        for (int64_t r = 0; r < a.reduced_count; r++) {
            int64_t at = base + offset_of(r, a.reduced_rank, a.reduced, a.reduced_stride);
            double x = trd__load(dtype, call->inputs[0], (size_t)at);
            value = sum ? value + x : (x > value || isnan(x) ? x : value);
        }
        trd__store(n->results[0].dtype, call->outputs[0], (size_t)k, value);
    }
}

static trd_status plan_reduce(const trd_node *n, trd__cpu_plan *p)
{
    p->workers = trd__shape_count(&trd__type_of(n->inputs[0])->shape) < PARALLEL_ELEMENTS ? 1 : 0;
    return TRD_OK;
}

/* In float64: a float32 square would overflow where the value does not. */
static double square_of(trd_dtype dtype, const void *x, int64_t i)
{
    double value = trd__load(dtype, x, (size_t)i);
    return value * value;
}

/* Phase 0: a partial sum a worker; phase 1: worker 0 adds them in order. */
static void run_sum_squares(const trd__cpu_call *call, int phase)
{
    const trd__type *x = trd__type_of(call->node->inputs[0]);
    double *partial = call->shared_scratch;
    if (phase == 0) {
        int64_t begin, end;
        double sum = 0;
        trd__partition(call->worker, call->workers, trd__shape_count(&x->shape), 64, &begin, &end);
        for (int64_t i = begin; i < end; i++) sum += square_of(x->dtype, call->inputs[0], i);
        partial[call->worker] = sum;
        return;
    }
    if (call->worker != 0) return;
    double sum = 0;
    for (int w = 0; w < call->workers; w++) sum += partial[w];
    *(double *)call->outputs[0] = sum;
}

static trd_status plan_sum_squares(const trd_node *n, trd__cpu_plan *p)
{
    TRD_TRY(plan_reduce(n, p));
    p->phases = 2;
    p->shared_bytes = (size_t)p->info->workers * sizeof(double);
    return TRD_OK;
}

static const trd__cpu_kernel reduce = {.name = "reference", .plan = plan_reduce, .run = run_reduce};
static const trd__cpu_kernel sum_squares = {
    .name = "reference", .plan = plan_sum_squares, .run = run_sum_squares};
static const trd__cpu_kernel *const reduce_variants[] = {&reduce, NULL};
static const trd__cpu_kernel *const sum_squares_variants[] = {&sum_squares, NULL};

const trd__cpu_op trd__cpu_reduce[] = {{.op = &trd__op_reduce_sum, .variants = reduce_variants},
                                       {.op = &trd__op_reduce_max, .variants = reduce_variants},
                                       {.op = &trd__op_sum_squares, .variants = sum_squares_variants},
                                       {0}};
