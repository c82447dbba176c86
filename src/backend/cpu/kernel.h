/* What a CPU kernel is. A kernel is planned once (it books scratch and names its parallelism) and then run by
 * every worker of the pool; running allocates nothing and touches no thread or queue itself.
 *
 * Each op has an ordered list of variants, best first, the plain reference kernel last; the first that does
 * not refuse the node wins. Reference kernels take every float dtype (f64 included: finite differences run on
 * them). Determinism: the bits of what is computed are a function of the info alone, and of nothing that
 * depends on time. Work is dealt by (worker, workers), or, where cores may be unequally fast, in numbered
 * pieces that whoever is free takes: then nothing may be summed by who took it.
 *
 * Accumulators: operand i = op->alias_input of an op with TRD__OP_ALIASES. For a result r with in_place[r] =
 * i + 1 either outputs[r] == inputs[i] (the executor copies beforehand where it must), so the kernel adds in
 * place; or inputs[i] is NULL although node->inputs[i] is not null: that operand is a constant 0, the output
 * buffer is undefined and the kernel must define every element (beta = 0), rows nobody adds to included. */
#ifndef TRD_BACKEND_CPU_KERNEL_H
#define TRD_BACKEND_CPU_KERNEL_H

#include <stdatomic.h>

#include "base/dtype.h"
#include "base/pool.h"
#include "base/shape.h"
#include "ops/attrs.h"

/* Operands and results of one kernel call. */
enum { TRD__KERNEL_INPUTS = 64, TRD__KERNEL_RESULTS = 8 };

enum { TRD__CACHE_LINE = 64 }; /* bytes, to prefetch by */

typedef enum trd__isa { TRD__ISA_BASELINE, TRD__ISA_AVX2, TRD__ISA_AVX512 } trd__isa;

typedef struct trd__bf16_product trd__bf16_product;

typedef struct trd__cpu_info {
    trd__isa isa;
    int workers;
    bool reference_only;
    const trd__bf16_product *bf16_product; /* NULL: bfloat16 operands are widened */
} trd__cpu_info;

/* Filled by a kernel's plan; zeroed before. */
typedef struct trd__cpu_plan {
    const trd__cpu_info *info;
    trd__arena *arena;   /* for state; lives as long as the executable */
    size_t worker_bytes; /* scratch per worker, 64-byte aligned */
    size_t shared_bytes; /* scratch shared by the workers of the call */
    int workers;         /* out: 1 = run on one thread (small work), 0 = all */
    int phases;          /* out: number of run calls with a barrier after each; 0 means 1 */
    void *state;         /* out: read-only plan data for run */
    /* out: in_place[result] = input + 1 whose buffer the result may take when that input dies here; 0: none.
     * An op with TRD__OP_ALIASES sets it for its accumulator: guaranteed there, see above. Elsewhere the
     * kernel must cope with both, equal and distinct pointers. */
    int in_place[TRD__KERNEL_RESULTS];
} trd__cpu_plan;

typedef struct trd__cpu_fault trd__cpu_fault;

typedef struct trd__cpu_call {
    const trd_node *node;
    const void *const *inputs; /* NULL where the operand is null, or a constant-0 accumulator */
    void *const *outputs;      /* NULL where the result is unused */
    void *worker_scratch;
    void *shared_scratch;
    const void *state;
    int worker, workers;
    const int64_t *row;     /* of what is stacked, in a loop; NULL outside one. For messages */
    _Atomic int64_t *taken; /* see trd__cpu_take */
    trd__cpu_fault *fault;
} trd__cpu_call;

/* The number of a piece of work that no worker has yet: 0, 1, 2 ... in each phase of a call. */
static inline int64_t trd__cpu_take(const trd__cpu_call *call)
{
    return atomic_fetch_add_explicit(call->taken, 1, memory_order_relaxed);
}

/* Reports that this run failed (an id out of range, the product library's error); the first one is kept with
 * op and program and makes the backend's sticky error. The kernel goes on with harmless values. */
void trd__cpu_fail(const trd__cpu_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef struct trd__cpu_kernel {
    const char *name; /* "reference", "avx512", "gemm" */
    const char *(*refuse)(const trd_node *n,
                          const trd__cpu_info *info);           /* the reason, NULL = accepts; may be NULL */
    trd_status (*plan)(const trd_node *n, trd__cpu_plan *plan); /* may be NULL: one worker, no scratch */
    void (*run)(const trd__cpu_call *call, int phase);
} trd__cpu_kernel;

/* Asks for memory that is read soon, into the second-level cache. The processor does so by itself within a
 * page once it has seen a few lines, which short rows and blocks do not wait for. */
static inline void trd__prefetch(const void *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += TRD__CACHE_LINE) __builtin_prefetch((const char *)from + at, 0, 2);
}

/* One row per op of a family; a family's table ends with a zeroed row. Elementwise ops also have a row in
 * tiles_body.h, which is what the fuser chains. */
typedef struct trd__cpu_op {
    const trd_op *op;
    const trd__cpu_kernel *const *variants; /* NULL-terminated */
} trd__cpu_op;

/* The row of an op, NULL if the CPU has no kernel for it (then it is expanded). */
const trd__cpu_op *trd__cpu_find(const trd_op *op);
/* First variant that accepts n, NULL if none. */
const trd__cpu_kernel *trd__cpu_choose(const trd_node *n, const trd__cpu_info *info);

trd__isa trd__cpu_detect(void); /* what this processor has */
bool trd__cpu_has_bf16(void);   /* instructions that multiply bfloat16: AVX-512 BF16 or AMX */

#endif
