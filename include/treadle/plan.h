/* What training needs and what it did: memory and FLOPs before anything runs, the compiled programs, host and
 * device time. Thread-safety: as in engine.h, one thread at a time per engine. */
#ifndef TREADLE_PLAN_H
#define TREADLE_PLAN_H

#include <treadle/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of trd_plan.recomputation. */
enum { TRD_RECOMPUTATION_TEXT = 192 };

/* What a config needs before anything runs: bytes by kind (inputs: with results and scalars of the runs in
 * flight) and FLOPs, exact. */
typedef struct trd_plan {
    uint64_t parameter_bytes;   /* in weight_dtype */
    uint64_t optimizer_bytes;   /* moments, counts, history of spikes */
    uint64_t gradient_bytes;    /* accumulators in grad_dtype */
    uint64_t model_state_bytes; /* what the model keeps from micro-batch to micro-batch */
    uint64_t input_bytes;       /* payloads, results and scalars of the runs in flight */
    uint64_t activation_bytes;  /* the largest arena of a program */
    uint64_t scratch_bytes;     /* of the kernels */
    uint64_t peak_bytes;        /* the device's memory in training and evaluation: the sum of the above */
    uint64_t checkpoint_bytes;  /* one checkpoint at the end of a step, on disk */
    uint64_t snapshot_bytes;    /* host memory beside the peak: what a save copies before training goes on */
    double flops_per_step;      /* gradient_accumulation_steps micro-batches with all weights 1 */
    double recomputed_flops; /* of a step, beside them: what the remat policy computes again, an operation an
                                element where it is no product */
    char recomputation[TRD_RECOMPUTATION_TEXT]; /* what that is, in words: chosen by remat_policy auto */
    int64_t parameters;                         /* elements, tied weights once */
    int devices;             /* of the mesh: bytes up to peak_bytes are those of each; 1: no mesh */
    double flops_per_device; /* of flops_per_step, the batch and the tensor axis sharing them evenly */
    bool
        compiled; /* false: the backend cannot open that mesh, so activations and scratch are not known (0) */
} trd_plan;
/* The plan of an engine, whose programs are built for it where they were not yet. */
TRD_API trd_status trd_engine_plan(trd_engine *engine, trd_plan *plan);
/* The same without loading or allocating weights. */
TRD_API trd_status trd_plan_options(const trd_engine_options *options, trd_plan *plan);

/* A compiled program. Programs with one fingerprint do the same work in the same order, in any process. */
typedef struct trd_program_info {
    const char
        *name;  /* "first", "accum", "update", "eval", "train_step", "forward", "define", "add"; static */
    int length; /* T of its payloads, in tokens; 0: it takes none */
    uint64_t fingerprint;   /* of its graph, kernels, memory plan and worker count */
    double flops;           /* model FLOPs of one run: matrix products and attention */
    uint64_t bytes_read;    /* tensor bytes its kernels load in one run */
    uint64_t bytes_written; /* and store */
    uint64_t peak_bytes;    /* memory it computes in at its peak, beside the state: temporaries and scratch */
    uint64_t temporary_bytes;   /* activations and temporaries, as they are placed */
    uint64_t lower_bound_bytes; /* the most of them that is live at once, which no placing goes below; 0: the
                                   backend does not say */
    int kernels;                /* kernel calls of one run */
    uint64_t runs;              /* finished ones */
    uint64_t busy_ns;           /* their device time */
    uint64_t least_ns;          /* that of the shortest one, 0: none yet */
} trd_program_info;
/* What an engine has compiled so far: families of payloads in the order they were met, then updates. A change
 * of the loss drops all of them. */
TRD_API int trd_engine_program_count(const trd_engine *engine);
/* Program index < trd_engine_program_count. */
TRD_API trd_program_info trd_engine_program(const trd_engine *engine, int index);
enum { TRD_PROGRAM_KINDS = 7 }; /* the most programs of one payload shape */
/* Every program of a config, compiled without loading or allocating weights, at most capacity of them.
 * TRD_PROGRAM_KINDS are enough. */
TRD_API trd_status trd_plan_programs(const trd_engine_options *options, trd_program_info *programs,
                                     int capacity, int *count);

/* Counts since the engine was created. */
typedef struct trd_engine_stats {
    uint64_t host_ns;       /* host time inside fwd_bwd and update, waiting on the throttler left out */
    uint64_t busy_ns;       /* device time executing */
    uint64_t micro_batches; /* dispatched */
    uint64_t updates;       /* dispatched */
    uint64_t saves;         /* begun */
    uint64_t save_ns;       /* host time they held the caller: an earlier save waited for, and the copy */
    int workers;            /* device threads */
} trd_engine_stats;
/* Returns once everything queued has run: for measuring; the step path never needs it. */
TRD_API trd_status trd_engine_wait(trd_engine *engine);
/* Never waits. */
TRD_API trd_engine_stats trd_engine_get_stats(const trd_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
