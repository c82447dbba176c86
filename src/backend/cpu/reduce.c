/* Kernels of the reductions. Float sums are kept in float64 and rounded once; the order of additions depends
 * on the number of workers only where a sum is split among them (sum_squares). */
#include <math.h>

#include "backend/cpu/tiles.h"

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
/* -- Sums over neighbouring axes: (outer, reduced, inner), by blocks of inner with float64 sums in L1 -- */

typedef struct triple {
    int64_t outer, reduced, inner;
} triple;

/* False when the reduced axes are not neighbours. */
static bool triple_of(const trd_node *n, triple *t)
{
    const trd__reduce_attr *attr = n->attr;
    const trd_shape *shape = &trd__type_of(n->inputs[0])->shape;
    *t = (triple){1, 1, 1};
    bool began = false, ended = false;
    for (int i = 0; i < shape->rank; i++) {
        bool reduced = attr->axes_mask >> i & 1u;
        if (shape->dim[i] == 1) continue;
        if (reduced && ended) return false;
        began = began || reduced;
        ended = began && !reduced;
        *(reduced ? &t->reduced : ended ? &t->inner : &t->outer) *= shape->dim[i];
    }
    return true;
}

static const char *refuse_blocks(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    triple t;
    if (n->op != &trd__op_reduce_sum) return "only sums";
    if (!trd__tile_takes(trd__type_of(n->inputs[0])->dtype))
        return "the operand is no float of at most 32 bits";
    return triple_of(n, &t) ? NULL : "the reduced axes are not neighbours";
}

static trd_status plan_blocks(const trd_node *n, trd__cpu_plan *p)
{
    p->workers = trd__shape_count(&trd__type_of(n->inputs[0])->shape) < PARALLEL_ELEMENTS ? 1 : 0;
    p->worker_bytes = TRD__TILE * (sizeof(double) + sizeof(float));
    p->state = (void *)(uintptr_t)trd__tiles_for(p->info->isa);
    return TRD_OK;
}

static void sum_row(const trd__cpu_call *call, const triple *t, trd_dtype dtype, int64_t outer)
{
    const trd__tiles *tiles = call->state;
    float *values = call->worker_scratch;
    double partials[TRD__PARTIALS] = {0}, sum = 0;
    for (int64_t at = 0; at < t->reduced; at += TRD__TILE) {
        int count = t->reduced - at < TRD__TILE ? (int)(t->reduced - at) : TRD__TILE;
        tiles->load(values, dtype, call->inputs[0], outer * t->reduced + at, count);
        tiles->sum(partials, values, count);
    }
    for (int i = 0; i < TRD__PARTIALS; i++) sum += partials[i];
    trd__store(call->node->results[0].dtype, call->outputs[0], (size_t)outer, sum);
}

/* Columns [first, first + count) of one outer index. */
static void sum_columns(const trd__cpu_call *call, const triple *t, trd_dtype dtype, int64_t outer,
                        int64_t first, int count)
{
    const trd__tiles *tiles = call->state;
    double *sums = call->worker_scratch;
    float *values = (float *)(sums + TRD__TILE);
    for (int i = 0; i < count; i++) sums[i] = 0;
    for (int64_t r = 0; r < t->reduced; r++) {
        tiles->load(values, dtype, call->inputs[0], (outer * t->reduced + r) * t->inner + first, count);
        for (int i = 0; i < count; i++) sums[i] += (double)values[i];
    }
    for (int i = 0; i < count; i++)
        trd__store(call->node->results[0].dtype, call->outputs[0], (size_t)(outer * t->inner + first + i),
                   sums[i]);
}

static void run_blocks(const trd__cpu_call *call, int phase)
{
    (void)phase;
    triple t;
    triple_of(call->node, &t);
    trd_dtype dtype = trd__type_of(call->node->inputs[0])->dtype;
    int64_t begin, end;
    if (t.inner == 1) {
        trd__partition(call->worker, call->workers, t.outer, 1, &begin, &end);
        for (int64_t outer = begin; outer < end; outer++) sum_row(call, &t, dtype, outer);
        return;
    }
    int64_t grain = 64, blocks = (t.inner + TRD__TILE - 1) / TRD__TILE;
    if (t.outer == 1) { /* a bias gradient: the workers share its columns */
        trd__partition(call->worker, call->workers, t.inner, grain, &begin, &end);
        for (int64_t at = begin; at < end; at += TRD__TILE)
            sum_columns(call, &t, dtype, 0, at, end - at < TRD__TILE ? (int)(end - at) : TRD__TILE);
        return;
    }
    trd__partition(call->worker, call->workers, t.outer * blocks, 1, &begin, &end);
    for (int64_t block = begin; block < end; block++) {
        int64_t first = block % blocks * TRD__TILE;
        int count = t.inner - first < TRD__TILE ? (int)(t.inner - first) : TRD__TILE;
        sum_columns(call, &t, dtype, block / blocks, first, count);
    }
}

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
static const trd__cpu_kernel blocks = {
    .name = "blocks", .refuse = refuse_blocks, .plan = plan_blocks, .run = run_blocks};
static const trd__cpu_kernel *const reduce_variants[] = {&blocks, &reduce, NULL};
static const trd__cpu_kernel *const sum_squares_variants[] = {&sum_squares, NULL};

const trd__cpu_op trd__cpu_reduce[] = {{.op = &trd__op_reduce_sum, .variants = reduce_variants},
                                       {.op = &trd__op_reduce_max, .variants = reduce_variants},
                                       {.op = &trd__op_sum_squares, .variants = sum_squares_variants},
                                       {0}};
