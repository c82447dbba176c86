/* The parts of the CPU backend that are no kernels: sets, executables, the executor, and how compile's stages
 * hand a program on. Kernels never include this header.
 *
 * Invariants: an executable is read-only once compiled, its counters apart; the arena and the scratch belong
 * to the backend, are shared by all executables (runs are in order) and only grow while nothing runs. */
#ifndef TRD_BACKEND_CPU_CPU_H
#define TRD_BACKEND_CPU_CPU_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cpu/bf16_product.h"

/* Where a value lives: bytes from the start of a region. Slot s is region s. What a repeat's body sees of
 * something stacked moves by a row an iteration. */
enum {
    TRD__REGION_ARENA = TRD__MAX_SLOTS,
    TRD__REGION_CONSTANTS,
    TRD__REGION_NONE, /* null operand, constant-0 accumulator or unused result */
    TRD__REGION_COUNT = TRD__REGION_NONE
};
typedef struct trd__place {
    int region;
    size_t offset, stride; /* stride: from row to row of a loop; 0: the same place in every iteration */
    size_t bytes;          /* of the value, or of its row; known to steps only */
} trd__place;

/* The steps of a repeat's body, which run count times. */
typedef struct trd__cpu_loop {
    int first, last; /* steps */
    int64_t count;
    bool reverse; /* rows count - 1 .. 0 */
} trd__cpu_loop;

/* One kernel call of a run: a node's or a fused group's. */
typedef struct trd__cpu_step {
    const trd__cpu_kernel *kernel;
    const trd_node *node;      /* a group's last node, for messages */
    const trd__cpu_loop *loop; /* it is in; NULL: runs once */
    const void *state;
    trd__place *inputs, *outputs;
    int input_count, output_count;
    int workers, phases; /* workers: 1 or all */
    size_t worker_bytes, shared_bytes;
    uint64_t bytes_read, bytes_written; /* by one call of it */
    double flops;
    const char *name;        /* the op's; of a group, those of its members */
    const trd__label *label; /* NULL without a recorder */
} trd__cpu_step;

struct trd__executable {
    trd__arena *arena; /* everything below but the program */
    trd__program *program;
    char *name;
    const trd__label *label; /* NULL without a recorder */
    trd__cpu_step *steps;
    int step_count;
    unsigned char *constants;
    size_t constant_bytes;
    size_t worker_scratch, shared_scratch;
    trd__memory_report report;
    uint64_t layouts[TRD__MAX_SLOTS]; /* keys of the sets that fit its slots */
    uint64_t last_ticket;             /* of its newest run; dispatching thread only */
    _Atomic uint64_t runs, busy_ns;   /* counted by the executor */
    _Atomic uint64_t least_ns;        /* of a run, 0: none yet */
};

typedef struct trd__cpu_set {
    trd__set base;
    trd__arena *arena; /* names and tables */
    unsigned char *memory;
    size_t bytes;
    size_t needed_bytes; /* without the entries that stay sparse */
    size_t *offsets;
    uint64_t layout;
    uint64_t last_use, last_write; /* tickets; dispatching thread only */
} trd__cpu_set;

/* The executor: one thread that is worker 0 of the pool and takes runs from a fixed ring. */
typedef struct trd__executor trd__executor;

typedef struct trd__run {
    trd__executable *executable;
    unsigned char *regions[TRD__REGION_COUNT];
    unsigned char *worker_scratch, *shared_scratch;
    uint64_t ticket;
    uint64_t submitted_ns; /* when it was queued; 0: it is not recorded */
} trd__run;

/* recorder: NULL for none. */
trd_status trd__executor_create(int workers, trd__recorder *recorder, trd__executor **executor);
void trd__executor_free(trd__executor *executor); /* drains first; NULL is fine */
/* Queues a run and sets its ticket; blocks while the ring is full. */
trd_status trd__executor_submit(trd__executor *executor, trd__run *run);
bool trd__executor_done(trd__executor *executor, uint64_t ticket);
void trd__executor_wait(trd__executor *executor, uint64_t ticket);
uint64_t trd__executor_last(const trd__executor *executor); /* newest ticket; dispatching thread only */
trd_status trd__executor_error(trd__executor *executor);    /* the sticky error, its message set */
void trd__executor_reset(trd__executor *executor);
trd__backend_stats trd__executor_stats(const trd__executor *executor);

/* The runner: all steps of a run inside one wake-up of the pool. */
typedef struct trd__runner trd__runner;
trd_status trd__runner_create(int workers, trd__runner **runner);
void trd__runner_free(trd__runner *runner); /* NULL is fine */
/* track: where the kernel calls are recorded; NULL: nowhere. */
void trd__runner_run(trd__runner *runner, const trd__run *run, trd__track *track);
/* The first failure a kernel reported since the last reset; NULL: none. */
const char *trd__runner_fault(const trd__runner *runner);
void trd__runner_reset(trd__runner *runner);

typedef struct trd__cpu_backend {
    trd__backend base;
    trd_log_sink log;
    trd__cpu_info info;
    trd__bf16_way bf16_way;
    bool bf16_chosen;                /* at the first program with bfloat16 */
    trd__bf16_product *bf16_product; /* what info.bf16_product points to; owned */
    trd__executor *executor;
    trd__recorder *recorder; /* NULL: none */
    unsigned char *arena, *scratch;
    size_t arena_bytes, scratch_bytes, set_bytes;
    size_t needed_bytes; /* of set_bytes, without the entries that stay sparse */
} trd__cpu_backend;

trd_status trd__cpu_set_create(const char *name, const trd__entry *entries, int count, trd__cpu_set **set);
void trd__cpu_set_free(trd__cpu_set *set); /* NULL is fine */
/* Offsets (NULL: not asked for) of entries packed into one buffer; returns its size. */
size_t trd__cpu_layout(const trd__entry *entries, int count, size_t *offsets);

trd_status trd__cpu_compile(const trd__cpu_info *info, const trd_log_sink *log, const trd__program *program,
                            const trd__compile_options *options, trd__executable **executable);
/* Makes the labels of a program and its kernel calls. */
trd_status trd__cpu_label(trd__recorder *recorder, trd__executable *executable);
uint64_t trd__cpu_fingerprint(const trd__executable *executable, const trd__cpu_info *info);
void trd__cpu_executable_free(trd__executable *executable); /* NULL is fine */

#endif
