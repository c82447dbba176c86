/* Runs one CPU kernel on hand-made nodes: what the kernel tests share.
 *
 * A case owns its operands; a kernel is planned as the compiler would and then run by a real pool, every
 * phase behind a barrier, so the split over workers is tested too. Scratch is filled with NaN bytes before a
 * run. */
#ifndef TEST_BACKEND_KERNELS_H
#define TEST_BACKEND_KERNELS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/cpu/kernel.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "support/normal.h"

enum { MAX_OPERANDS = 8, MAX_OUTPUTS = 4 };

typedef struct tensor {
    trd__type type;
    void *data; /* NULL: a null operand */
    trd_node leaf;
} tensor;

typedef struct kernel_case {
    const trd_op *op;
    const void *attr;
    tensor inputs[MAX_OPERANDS];
    int input_count;
    tensor outputs[MAX_OUTPUTS];
    int output_count;
    uint64_t seed;
    const trd__bf16_product *bf16_product; /* what plans see of it */
} kernel_case;

static inline size_t tensor_count(const tensor *t)
{
    return (size_t)trd__shape_count(&t->type.shape);
}
static inline size_t tensor_bytes(const tensor *t)
{
    return tensor_count(t) * trd_dtype_bytes(t->type.dtype);
}

static inline tensor tensor_make(trd_dtype dtype, trd_shape shape)
{
    tensor t = {.type = {.dtype = dtype, .shape = shape}};
    t.data = trd__alloc_aligned(tensor_bytes(&t) + 64);
    memset(t.data, 0xff, tensor_bytes(&t)); /* NaN: an element left undefined shows */
    return t;
}

/* A float input of normal deviates times spread. */
static inline tensor *case_random(kernel_case *c, trd_dtype dtype, trd_shape shape, double spread)
{
    tensor *t = &c->inputs[c->input_count++];
    *t = tensor_make(dtype, shape);
    for (size_t i = 0; i < tensor_count(t); i++)
        trd__store(dtype, t->data, i, spread * test_normal(c->seed, (uint64_t)c->input_count, i));
    return t;
}
static inline tensor *case_input(kernel_case *c, trd_dtype dtype, trd_shape shape)
{
    c->inputs[c->input_count] = tensor_make(dtype, shape);
    return &c->inputs[c->input_count++];
}
static inline void case_null(kernel_case *c)
{
    c->inputs[c->input_count++] = (tensor){0};
}
static inline void case_output(kernel_case *c, trd_dtype dtype, trd_shape shape)
{
    c->outputs[c->output_count++] = tensor_make(dtype, shape);
}

static inline void case_free(kernel_case *c)
{
    for (int i = 0; i < c->input_count; i++) trd__free(c->inputs[i].data);
    for (int i = 0; i < c->output_count; i++) trd__free(c->outputs[i].data);
}

typedef struct kernel_run {
    const trd__cpu_kernel *kernel;
    trd__cpu_call call;
    size_t worker_bytes;
    int phase, workers;
    _Atomic int64_t taken;
} kernel_run;

static inline void kernel_task(void *context, int worker, int workers)
{
    kernel_run *r = context;
    if (worker >= r->workers) return;
    trd__cpu_call call = r->call;
    call.worker = worker;
    call.workers = r->workers < workers ? r->workers : workers;
    call.worker_scratch = (unsigned char *)r->call.worker_scratch + (size_t)worker * r->worker_bytes;
    r->kernel->run(&call, r->phase);
}

/* The variant called name, or the last (reference) when name is NULL. Fails the test when it refuses. */
static inline const trd__cpu_kernel *kernel_named(const trd__cpu_op *rows, const trd_op *op, const char *name)
{
    for (; rows->op; rows++)
        for (int i = 0; rows->op == op && rows->variants[i]; i++)
            if (name ? strcmp(rows->variants[i]->name, name) == 0 : !rows->variants[i + 1])
                return rows->variants[i];
    fail_msg("%s: no kernel named %s", op->name, name ? name : "(reference)");
    return NULL;
}

/* Runs kernel; outputs go to outs (in order; NULL = unused). An aliased accumulator is copied in first. */
static inline void case_run(kernel_case *c, const trd__cpu_kernel *kernel, trd__isa isa, int workers,
                            tensor *outs)
{
    trd__cpu_info info = {.isa = isa, .workers = workers, .bf16_product = c->bf16_product};
    trd__arena *arena = trd__arena_create();
    trd__cpu_plan plan = {.info = &info, .arena = arena, .workers = kernel->plan ? 0 : 1};
    trd_value values[MAX_OPERANDS];
    trd__type results[MAX_OUTPUTS];
    const void *inputs[MAX_OPERANDS];
    void *outputs[MAX_OUTPUTS];
    for (int i = 0; i < c->input_count; i++) {
        tensor *t = &c->inputs[i];
        t->leaf = (trd_node){.results = &t->type, .result_count = 1};
        values[i] = t->data ? (trd_value){&t->leaf, 0} : (trd_value){NULL, 0};
        inputs[i] = t->data;
    }
    for (int i = 0; i < c->output_count; i++) {
        results[i] = c->outputs[i].type;
        outputs[i] = outs[i].data;
    }
    trd_node node = {.op = c->op,
                     .attr = c->attr,
                     .inputs = values,
                     .input_count = c->input_count,
                     .results = results,
                     .result_count = c->output_count};
    if (kernel->refuse) assert_null(kernel->refuse(&node, &info));
    if (kernel->plan) assert_int_equal(kernel->plan(&node, &plan), TRD_OK);
    for (int i = 0; i < c->output_count; i++) {
        int from = plan.in_place[i] - 1;
        if (from < c->input_count - 1 || from < 0 || !outputs[i] || !inputs[from]) continue;
        memcpy(outputs[i], inputs[from], tensor_bytes(&c->outputs[i]));
        inputs[from] = outputs[i];
    }
    kernel_run r = {.kernel = kernel, .worker_bytes = (plan.worker_bytes + 63) / 64 * 64};
    r.workers = plan.workers == 1 ? 1 : workers;
    size_t scratch = r.worker_bytes * (size_t)workers;
    r.call = (trd__cpu_call){.node = &node, .inputs = inputs, .outputs = outputs, .state = plan.state};
    r.call.taken = &r.taken;
    r.call.worker_scratch = trd__alloc_aligned(scratch);
    r.call.shared_scratch = trd__alloc_aligned(plan.shared_bytes);
    memset(r.call.worker_scratch, 0xff, scratch);
    memset(r.call.shared_scratch, 0xff, plan.shared_bytes);
    trd__pool *pool;
    assert_int_equal(trd__pool_create(workers, &pool), TRD_OK);
    for (r.phase = 0; r.phase < (plan.phases ? plan.phases : 1); r.phase++) {
        r.taken = 0;
        trd__pool_run(pool, kernel_task, &r);
    }
    trd__pool_free(pool);
    trd__free(r.call.worker_scratch);
    trd__free(r.call.shared_scratch);
    trd__arena_free(arena);
}

/* Relative L2 distance of two tensors; infinite when found has a NaN. */
static inline double tensor_distance(const tensor *expected, const tensor *found)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < tensor_count(expected); i++) {
        double x = trd__load(expected->type.dtype, expected->data, i);
        double y = trd__load(found->type.dtype, found->data, i);
        if (isnan(y)) return INFINITY;
        difference += (x - y) * (x - y);
        size += x * x;
    }
    return difference == 0 ? 0 : sqrt(difference / (size + 1e-30));
}

/* Runs the plain kernel and the variant called name with every instruction set this processor has and with
 * one and several workers: outputs must agree to tolerance, and a second run must give the same bits. */
static inline void case_compare(kernel_case *c, const trd__cpu_op *rows, const char *name, double tolerance)
{
    tensor outs[MAX_OUTPUTS], again[MAX_OUTPUTS];
    for (int i = 0; i < c->output_count; i++) {
        outs[i] = tensor_make(c->outputs[i].type.dtype, c->outputs[i].type.shape);
        again[i] = tensor_make(c->outputs[i].type.dtype, c->outputs[i].type.shape);
    }
    case_run(c, kernel_named(rows, c->op, NULL), TRD__ISA_BASELINE, 1, c->outputs);
    for (int isa = TRD__ISA_BASELINE; isa <= (int)trd__cpu_detect(); isa++)
        for (int workers = 1; workers <= 3; workers++) {
            case_run(c, kernel_named(rows, c->op, name), (trd__isa)isa, workers, outs);
            case_run(c, kernel_named(rows, c->op, name), (trd__isa)isa, workers, again);
            for (int i = 0; i < c->output_count; i++) {
                double distance = tensor_distance(&c->outputs[i], &outs[i]);
                if (!(distance <= tolerance))
                    fail_msg("%s %s, isa %d, %d workers, seed %d: result %d is off by %g", c->op->name, name,
                             isa, workers, (int)c->seed, i, distance);
                assert_int_equal(memcmp(outs[i].data, again[i].data, tensor_bytes(&outs[i])), 0);
            }
        }
    for (int i = 0; i < c->output_count; i++) {
        trd__free(outs[i].data);
        trd__free(again[i].data);
    }
}

#endif
