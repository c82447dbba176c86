/* The waist: what the engine and the decode loop know of a backend. Above it nothing knows which backend
 * runs; below it nothing knows what a model or a step is.
 *
 * State travels as *sets*: one handle for a group of named tensors (graph/program.h). A set's layout is made
 * from names, shapes and dtypes before anything is compiled, so one set serves every program bound to the
 * same layout. Execution is asynchronous and in order: execute queues and returns; reading a set waits for
 * the work that touches it. Executing a program donates every set bound to an updated slot: its generation
 * goes up by one. After a failure behind dispatch the backend keeps the first one (sticky) until
 * reset. Thread-safety: one thread at a time per backend. */
#ifndef TRD_BACKEND_BACKEND_H
#define TRD_BACKEND_BACKEND_H

#include <treadle/log.h>

#include "base/recorder.h"
#include "graph/sharding.h"

typedef struct trd__backend trd__backend;
typedef struct trd__set trd__set;
typedef struct trd__executable trd__executable;

/* A point in the queue; plain value, nothing to free. 0 is "already done". */
typedef struct trd__event {
    uint64_t ticket;
} trd__event;

typedef struct trd__backend_options {
    const char *name;        /* "cpu" or "pjrt"; NULL: the default */
    int threads;             /* 0: OMP_NUM_THREADS, else all processors this process may use */
    const char *cpu_isa;     /* NULL: best found (or TRD_CPU_ISA); "baseline", "avx2", "avx512" */
    const char *cpu_bf16;    /* products of bfloat16. NULL: TRD_CPU_BF16, else "auto": the faster of "native"
                                and "widen" */
    const char *plugin_path; /* of a backend that opens a plugin; NULL: where it looks by itself */
    const char
        *cache_directory;      /* where a backend keeps compiled programs between processes; NULL: nowhere */
    const char *compile_flags; /* of a backend with a compiler of its own, "--name=value ..."; NULL: none */
    const trd__placement *placement; /* a mesh of devices, outlives the backend; NULL: one device */
    /* Of a mesh over several processes: how many there are (0 or 1: one), which this is, and where they find
     * one another (a form of address that the backend knows). */
    int processes, process;
    const char *coordinator_address;
    trd_log_sink log;
    trd__recorder *recorder; /* of a profile, outlives the backend; NULL: none. Programs queued while it is on
                                are recorded: their wait, themselves, and each kernel call */
} trd__backend_options;

typedef struct trd__compile_options {
    bool reference_kernels;  /* plain kernels only: the oracle in tests */
    bool plan_only;          /* for its memory report alone: it must not be executed. TRD_UNSUPPORTED from a
                                backend whose compiler plans memory itself and takes long */
    bool verbose;            /* logs each step's kernel and why faster ones refused */
    const char *dump_folder; /* where a compiler that can writes the program as it runs it; NULL: nowhere */
} trd__compile_options;

/* Exact before anything runs. Programs run one at a time, so they share one arena and one scratch, each as
 * large as the largest report says. */
typedef struct trd__memory_report {
    uint64_t arena_bytes;               /* activations and temporaries at their peak */
    uint64_t scratch_bytes;             /* kernel scratch, all workers */
    uint64_t lower_bound_bytes;         /* live tensors at the peak */
    uint64_t bytes_read, bytes_written; /* tensor bytes the program's kernels move, per run */
    double flops;                       /* model FLOPs per run */
    int node_count, kernel_count;
    uint64_t
        fingerprint; /* of the lowered graph, kernels, memory plan and workers; the same in every process */
} trd__memory_report;

/* What a program has cost so far. */
typedef struct trd__usage {
    uint64_t runs, busy_ns; /* finished runs and their time on the device */
    uint64_t least_ns;      /* the shortest one's, 0: none */
} trd__usage;

typedef struct trd__backend_stats {
    uint64_t busy_ns; /* time the device spent executing, since creation */
    uint64_t executions;
    int workers;           /* threads that run a program */
    uint64_t memory_bytes; /* held now on each device: sets, and what programs compute in */
} trd__backend_stats;

/* A backend implements this table; every member is required. */
typedef struct trd__backend_table {
    const char *name;
    trd_status (*create)(const trd__backend_options *options, trd__backend **backend);
    void (*free)(trd__backend *backend); /* drains first */

    trd_status (*set_create)(trd__backend *backend, const char *name, const trd__entry *entries, int count,
                             trd__set **set);                    /* zeroed contents */
    uint64_t (*set_bytes)(const trd__entry *entries, int count); /* memory that such a set takes */
    void (*set_free)(trd__backend *backend, trd__set *set);      /* waits for work that uses it */
    /* Copies whole entries, host layout row-major; both wait for queued work that touches the set. */
    trd_status (*set_write)(trd__backend *backend, trd__set *set, int entry, const void *data);
    trd_status (*set_read)(trd__backend *backend, trd__set *set, int entry, void *data);
    /* `bytes` bytes of an entry from `offset` on. */
    trd_status (*set_read_part)(trd__backend *backend, trd__set *set, int entry, size_t offset, size_t bytes,
                                void *data);

    /* options NULL: all off. The program may be freed afterwards. */
    trd_status (*compile)(trd__backend *backend, const trd__program *program,
                          const trd__compile_options *options, trd__executable **executable);
    void (*executable_free)(trd__backend *backend, trd__executable *executable); /* waits for its runs */
    trd__memory_report (*memory)(const trd__executable *executable);
    trd__usage (*usage)(const trd__executable *executable);

    /* Queues one run with sets[i] bound to slot i. Allocates nothing. Returns the sticky error if there is
     * one. */
    trd_status (*execute)(trd__backend *backend, trd__executable *executable, trd__set *const *sets,
                          trd__event *event);
    bool (*event_ready)(trd__backend *backend, trd__event event);
    trd_status (*event_wait)(trd__backend *backend, trd__event event); /* the sticky error, if any */
    trd_status (*drain)(trd__backend *backend);                        /* waits for everything */
    void (*reset)(trd__backend *backend);                              /* forgets the sticky error */
    trd__backend_stats (*stats)(const trd__backend *backend);
} trd__backend_table;

/* First members of every backend's own structs. */
struct trd__backend {
    const trd__backend_table *table;
};
struct trd__set {
    const char *name;
    const trd__entry *entries;
    int entry_count;
    uint64_t generation; /* counts donations: bumped at dispatch, and by whoever replaces the contents */
};

/* Creates the backend named in options, or the default. An unknown name lists the known ones. */
trd_status trd__backend_create(const trd__backend_options *options, trd__backend **backend);
void trd__backend_free(trd__backend *backend); /* NULL is fine */

#endif
