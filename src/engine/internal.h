/* Inside the engine: its state, the programs it compiles and the queue of what it has dispatched.
 *
 * Invariants. State lives in four sets (parameters, optimizer, gradients, model state) that every program
 * binds to. A *family* is all programs of one payload signature. Each dispatch takes one *flight*, a ring
 * slot that holds the event, a small result set and what the host must remember until the numbers are read,
 * which happens in dispatch order and never before the next dispatch unless somebody asks. */
#ifndef TRD_ENGINE_INTERNAL_H
#define TRD_ENGINE_INTERNAL_H

#include <treadle/engine.h>
#include <treadle/plan.h>

#include "backend/backend.h"
#include "checkpoint/weights.h"
#include "engine/visit.h"
#include "formats/json.h"
#include "nn/model.h"
#include "nn/optimizer.h"

/* X(name, text): what a program's slot is bound to; the text names the slot. */
#define TRD__ROLE_LIST(X)                                                                                    \
    X(PARAMS, "params")                                                                                      \
    X(OPTIMIZER, "optimizer")                                                                                \
    X(GRADIENTS, "gradients")                                                                                \
    X(MODEL_STATE, "model_state")                                                                            \
    X(INPUTS, "inputs")                                                                                      \
    X(SCALARS, "scalars")                                                                                    \
    X(RESULTS, "results")                                                                                    \
    X(CONTRIBUTION, "contribution")
typedef enum trd__role {
#define TRD__ROLE_ENUM(name, text) TRD__ROLE_##name,
    TRD__ROLE_LIST(TRD__ROLE_ENUM)
#undef TRD__ROLE_ENUM
        TRD__ROLE_COUNT
} trd__role;
#define TRD__STATE_ROLES 4 /* the first four are the state */

/* X(name, text): the programs. */
#define TRD__PROGRAM_LIST(X)                                                                                 \
    X(FIRST, "first")                                                                                        \
    X(ACCUM, "accum")                                                                                        \
    X(EVAL, "eval")                                                                                          \
    X(FORWARD, "forward")                                                                                    \
    X(UPDATE, "update")                                                                                      \
    X(TRAIN_STEP, "train_step")                                                                              \
    X(DEFINE, "define")                                                                                      \
    X(ADD, "add")
typedef enum trd__program_kind {
#define TRD__PROGRAM_ENUM(name, text) TRD__PROGRAM_##name,
    TRD__PROGRAM_LIST(TRD__PROGRAM_ENUM)
#undef TRD__PROGRAM_ENUM
        TRD__PROGRAM_COUNT
} trd__program_kind;

/* f64 scalars behind the parameters' accumulators in the gradients set. */
enum { TRD__SUM_DENOMINATOR, TRD__SUM_LOSS, TRD__SUM_MEANS, TRD__SUM_NONEMPTY, TRD__SUM_COUNT };

/* Entries behind the parameters' states in the optimizer set; those from SPIKE on only where it is enabled.
 */
enum {
    TRD__OPT_COUNT,      /* f64: updates applied */
    TRD__OPT_SPIKE_SEEN, /* f64: past values held, at most the interval */
    TRD__OPT_SPIKE_NEXT, /* f64: place of the next one */
    TRD__OPT_SPIKE_LOSS, /* f64 (interval) */
    TRD__OPT_SPIKE_NORM, /* f64 (interval) */
    TRD__OPT_EXTRA_COUNT
};

/* Entries of a result set, all f64 scalars. */
enum {
    TRD__RESULT_LOSS,
    TRD__RESULT_DENOMINATOR,
    TRD__RESULT_NORM,
    TRD__RESULT_SKIPPED,
    TRD__RESULT_NONFINITE,
    TRD__RESULT_AUX, /* (sum, denominator) of each aux metric */
    TRD__RESULT_COUNT = TRD__RESULT_AUX + 2 * TRD_MAX_AUX
};

/* X(name, text): the named arrays every program family has, in this order; extras follow. */
#define TRD__INPUT_LIST(X)                                                                                   \
    X(TOKENS, "token_ids")                                                                                   \
    X(SEGMENTS, "segment_ids")                                                                               \
    X(POSITIONS, "positions")                                                                                \
    X(WEIGHTS, "loss_weights")
enum {
#define TRD__INPUT_ENUM(name, text) TRD__INPUT_##name,
    TRD__INPUT_LIST(TRD__INPUT_ENUM)
#undef TRD__INPUT_ENUM
        TRD__INPUT_COUNT
};

enum {
    TRD__MAX_EXTRAS = 24,
    TRD__HISTORY = 128,     /* steps of metrics kept */
    TRD__STEP_METRICS = 96, /* metrics of one step */
    TRD__HOST_METRICS = 32, /* recorded by the caller within one step */
    TRD__NAMES = 512        /* different metric names an engine may see */
};
#define TRD__MOST_WHOLE                                                                                      \
    9007199254740991 /* 2^53 - 1: the largest number a checkpoint's JSON holds exactly                       \
                      */

typedef struct trd__layout {
    trd__entry *entries;
    int count;
} trd__layout;

/* A tensor of the state as checkpoints and views have it: an entry, or a row of one that holds a weight of
 * all layers (nn/model.h: stacks). */
typedef struct trd__piece {
    const char *name;
    trd_dtype dtype;
    trd_shape shape;
    int entry;
    int64_t row; /* -1: all of the entry */
} trd__piece;
typedef struct trd__pieces {
    trd__piece *items;
    int count;
} trd__pieces;

/* What the tracing of a loss leaves behind for the host. */
typedef struct trd__aux_info {
    const char *name; /* interned, with the prefix */
    double eps, min_denom;
} trd__aux_info;
typedef struct trd__loss_info {
    double eps, min_denom;
    int aux_count;
    trd__aux_info aux[TRD_MAX_AUX];
} trd__loss_info;

typedef struct trd__compiled {
    trd__executable *executable; /* NULL: not compiled yet */
    trd__program_kind kind;
    trd__loss_info loss;
    trd__memory_report memory;
    double flops;                  /* of a run with every row weighted; copies made by remat do not count */
    double optimizer_flops;        /* those of them that are the optimizer's, not the model's */
    double flops_per_weighted_row; /* the share of the head, which rows without weight do not pay */
    trd__remat_rule rule;          /* what a program that trains computes again */
    double recomputed_flops;       /* and what it costs, beside flops */
} trd__compiled;

/* A caller's forward graph, compiled for a family. */
typedef struct trd__forward {
    struct trd__forward *next;
    trd_forward_function build;
    void *user;
    trd__compiled compiled;
    trd__entry output;
    trd__set *results;
} trd__forward;

/* All programs of one payload signature: length, extra arrays, constants. */
typedef struct trd__family {
    struct trd__family *next;
    trd__arena *arena;
    int length;
    trd__layout inputs;
    trd_constant *constants;
    int constant_count;
    trd__set **ring; /* input sets, used in turn */
    int ring_size, ring_next;
    int32_t *tokens, *segments, *positions; /* staging, (B, T) */
    float *weights;
    void *extra[TRD__MAX_EXTRAS]; /* staging of extras that may have to be padded */
    trd__compiled programs[TRD__PROGRAM_COUNT];
    trd__forward *forwards;
} trd__family;

/* The update program for one pair of loss bounds. */
typedef struct trd__update {
    struct trd__update *next;
    double eps, min_denom;
    trd__compiled compiled;
} trd__update;

typedef struct trd__host_metric {
    const char *name;
    trd_aggregation aggregation;
    bool weighted; /* value and denominator are sums, divided once */
    bool folded;   /* by the caller's function, which a restored one gets from its next call */
    trd_fold_function fold;
    double value, denominator, eps, min_denom;
    int count;
} trd__host_metric;

/* What one step accumulates on the host before its metrics are written. */
typedef struct trd__step_record {
    int64_t step;
    double learning_rate;
    uint64_t tokens; /* without padding */
    double flops;
    uint64_t begin_ns; /* first dispatch of the step */
    int host_count;
    trd__host_metric host[TRD__HOST_METRICS];
} trd__step_record;

typedef struct trd__flight {
    trd__event event;
    trd__set *results;
    const trd__compiled *compiled;
    uint64_t done_ns;        /* when the host saw it finished, 0: not yet */
    trd__step_record record; /* of update and train_step */
} trd__flight;

typedef struct trd__weighted_sum {
    const char *name;
    double sum, denominator, eps, min_denom;
} trd__weighted_sum;

/* Token-weighted sums of loss and aux metrics over micro-batches. */
typedef struct trd__tally {
    int64_t micro_batches;
    double loss, denominator, means;
    double eps, min_denom;
    int aux_count;
    trd__weighted_sum aux[TRD_MAX_AUX];
} trd__tally;

typedef struct trd__micro_pair {
    double unreduced_sum, denominator;
} trd__micro_pair;

typedef struct trd__metric_record {
    int64_t step;
    int count;
    trd_metric metrics[TRD__STEP_METRICS];
} trd__metric_record;

typedef struct trd__metrics {
    const char *names[TRD__NAMES]; /* interned; with prefix */
    int name_count;
    trd__tally train, eval;
    trd__micro_pair *pairs; /* of the step that is being collected */
    int64_t pair_count, pair_capacity;
    trd__metric_record *history; /* ring of TRD__HISTORY */
    int history_first, history_count;
    int64_t history_dropped; /* since the caller last looked */
    trd__metric_record latest, latest_eval;
    trd_step_metrics *view; /* TRD__HISTORY, for get_metrics_history */
    bool begun;             /* sinks have seen begin */
    int64_t resumed_step;
    uint64_t last_done_ns, last_busy_ns;
} trd__metrics;

typedef struct trd__diagnostics trd__diagnostics;
typedef struct trd__profiler trd__profiler;
typedef struct trd__saver trd__saver;
typedef struct trd__stored trd__stored;

struct trd_engine {
    trd_engine_options options; /* strings copied into arena */
    trd__arena *arena;
    trd_model *model;
    char *config;         /* config.json text of the weights, NULL: from a preset */
    trd__weights *source; /* open until the parameters are filled */
    const trd__optimizer_type *optimizer;
    double *decays; /* weight decay of each stack */
    int *trainable; /* number of the stack that each gradient entry belongs to, in the table's order */
    int trainable_count;
    int *first_state; /* optimizer entry of each trainable stack's first state; behind them the scalars' */
    trd__backend *backend;
    trd__placement placement; /* of one device where the options have no mesh */
    bool away;                /* a plan for a mesh that the backend cannot open: nothing is compiled */

    trd__layout layout[TRD__ROLE_COUNT]; /* inputs: empty, a family has them */
    trd__pieces pieces[TRD__STATE_ROLES];
    trd__layout own_gradients; /* gradients on the device while they are reduced by update only */
    trd__set *state[TRD__STATE_ROLES];
    uint64_t base_generation; /* of the parameters' set, at base_step */
    int64_t base_step;

    trd_loss_function loss, eval_loss;
    void *loss_user, *eval_loss_user;
    trd_gen_model_input_function adapter;
    void *adapter_user;

    trd__family *families;
    trd__update *updates;
    trd__compiled merges[2]; /* "define" and "add": a contribution into the accumulators */
    struct {
        uint64_t arena_bytes, scratch_bytes;
    } largest;     /* of all that was compiled so far: what the backend holds for programs */
    bool choosing; /* auto compiles what it has to count in: the choice says when nothing fits */

    trd__flight *flights; /* ring */
    int flight_count, max_inflight;
    uint64_t dispatched, finished, collected; /* counts; finished: known to be done */
    trd__set **scalar_ring;                   /* learning-rate sets, used in turn */
    int scalar_next;

    int64_t step, micro_step, total_micro_steps;
    double step_eps, step_min_denom; /* loss bounds of the accumulated micro-batches */
    trd_update_step update_step;     /* the last one's word on whether the step ends with it */
    uint64_t data_position;
    uint64_t data_hash; /* content of the files that data_position counts rows of, 0: not known */
    bool dirty;         /* something happened since the last save or restore */
    trd__step_record current;

    trd_status sticky;
    char sticky_message[1024];
    trd_status deferred; /* a failed background save or sink, told by the next call */
    char deferred_message[1024];

    trd__metrics metrics;
    trd_engine_stats stats;
    uint64_t waited_ns; /* for the device in this call */

    trd__diagnostics *diagnostics; /* NULL: no switch adds host work */
    trd__set *contribution;        /* gradients of one micro-batch; NULL: accumulate is fused */

    trd__profiler *profiler;                    /* NULL: off */
    trd__saver *saver;                          /* NULL: checkpointing off */
    const char **saved_names[TRD__STATE_ROLES]; /* pieces' names in checkpoints, made on the first save */
    trd__program_visitor visit; /* takes programs instead of the compiler; NULL: they are compiled */
    void *visit_user;
    bool finish_saved_step; /* the last checkpoint is inside a step: its end is saved whatever the period */
};

/* engine.c */
/* Creation with a model made by the caller, which the engine takes over (freed even on failure). */
trd_status trd__engine_create_with_model(const trd_engine_options *options, trd_model *model,
                                         trd_engine **engine);
/* Without state sets or weights: for plans. */
trd_status trd__engine_create_bare(const trd_engine_options *options, trd_engine **engine);
void trd__engine_destroy_bare(trd_engine *engine); /* NULL is fine */
/* The first failure behind dispatch is kept and returned from then on. */
trd_status trd__engine_fail(trd_engine *engine, trd_status status, const char *doing);
/* What every call checks first: the sticky failure, then a deferred one (told once). */
trd_status trd__engine_check(trd_engine *engine);
/* The gradients set, made when it is first needed: a run of train_steps may never need it. */
trd_status trd__engine_reserve_gradients(trd_engine *engine);
void trd__engine_defer(trd_engine *engine, trd_status status); /* keeps the thread's message */

/* layout.c */
trd_status trd__layout_build(trd_engine *engine);
uint64_t trd__layout_bytes(const trd__layout *layout);
int trd__optimizer_entry(const trd_engine *engine, int extra); /* of TRD__OPT_*, -1 when not there */

/* pieces.c */
trd_status trd__pieces_build(trd_engine *engine); /* once the layouts are there */
size_t trd__piece_bytes(const trd__piece *piece);
/* How many pieces of a role a checkpoint holds; middle: of one inside a step. The sums behind the gradients
 * are not among them. */
int trd__saved_pieces(const trd_engine *engine, trd__role role, bool middle);
/* Copies all saved pieces of a role to memory of trd__pieces_bytes, reading each entry once, and points
 * arrays[i].data to piece i in it. */
trd_status trd__pieces_read(trd_engine *engine, trd__role role, bool middle, char *memory, trd_array *arrays);
uint64_t trd__pieces_bytes(const trd_engine *engine, trd__role role, bool middle);
trd_status trd__piece_read(trd_engine *engine, trd__role role, int i, void *data);
trd_status trd__piece_write(trd_engine *engine, trd__role role, int i, const void *data);
/* The array for piece i, of its shape and of any float dtype where the dtype is another. */
typedef const trd_array *(*trd__piece_find)(const void *context, trd__role role, int i);
/* Writes all saved pieces of a role, each entry once. */
trd_status trd__pieces_write(trd_engine *engine, trd__role role, bool middle, trd__piece_find find,
                             const void *context);

/* mesh.c */
trd_status trd__mesh_build(trd_engine *engine); /* the placement, from the options alone */
/* Once the layouts are there: what the options change in them. */
trd_status trd__mesh_layout(trd_engine *engine);
const trd__placement *trd__mesh_placement(const trd_engine *engine); /* NULL: one device */
int64_t trd__mesh_replicas(const trd_engine *engine); /* of a micro-batch; 1: gradients are reduced in it */
/* The layout that a role's set has on the device. */
const trd__layout *trd__mesh_device_layout(const trd_engine *engine, trd__role role);
uint64_t trd__mesh_bytes(const trd_engine *engine, const trd__layout *layout); /* of one device's parts */
int64_t trd__mesh_work_shares(const trd_engine *engine); /* devices that have different work */

/* replicas.c: entry i of a state set, whole and in the shape of engine->layout. */
trd_status trd__entry_read(trd_engine *engine, trd__role role, int i, void *data);
trd_status trd__entry_write(trd_engine *engine, trd__role role, int i, const void *data);
trd_status trd__entry_read_part(trd_engine *engine, trd__role role, int i, size_t offset, size_t bytes,
                                void *data);

/* loss_graph.c, update_graph.c, programs.c */
typedef struct trd__trace {
    trd_engine *engine;
    const trd__family *family; /* NULL: update */
    trd__program *program;
    int slot[TRD__ROLE_COUNT]; /* -1: not bound */
    trd_inputs inputs;
    bool differentiated;
    bool replicated;  /* the program has replicas */
    int backward_end; /* nodes of the graph once all gradients are formed */
} trd__trace;
trd_value trd__trace_input(trd__trace *trace, trd__role role, int entry);
/* Makes value an output; nothing for a role that the program does not bind. */
void trd__trace_output(trd__trace *trace, trd__role role, int entry, trd_value value);
/* Loss, gradients into accumulators, sums; leaves the new accumulators of the trainable parameters in
 * gradients and the sums in sums. */
trd_status trd__trace_micro_batch(trd__trace *trace, bool accumulate, trd__loss_info *info,
                                  trd_value *gradients, trd_value *sums);
trd_status trd__trace_eval(trd__trace *trace, trd__loss_info *info);
trd_status trd__trace_forward(trd__trace *trace, trd_forward_function build, void *user, trd_value *value);
trd_status trd__trace_update(trd__trace *trace, double eps, double min_denom, const trd_value *gradients,
                             const trd_value *sums);
const char *trd__program_name(trd__program_kind kind);
/* How a program binds a role's set, 0: not at all. A run's sets are those it binds, in role order. */
trd__access trd__program_access(const trd_engine *engine, trd__program_kind kind, trd__role role);
bool trd__consumes_gradients(const trd_engine *engine); /* train_step does, so it needs no gradients set */
bool trd__step_is_pair(const trd_engine *engine);       /* train_step has no program of its own */
/* The train loop runs train_step, because that saves the gradients set. */
bool trd__loop_fuses(const trd_engine *engine);
void trd__forward_free(trd_engine *engine, trd__forward *forward);
void trd__family_free(trd_engine *engine, trd__family *family);
trd_status trd__family_find(trd_engine *engine, const trd_batch *batch, trd__family **family);
trd_status trd__family_rings(trd_engine *engine, trd__family *family); /* sets and staging, once */
trd_status trd__program_get(trd_engine *engine, trd__family *family, trd__program_kind kind,
                            const trd__compiled **compiled);
trd_status trd__update_get(trd_engine *engine, double eps, double min_denom, const trd__compiled **compiled);
/* Builds a program by compiled->rule and fills in what is known before it is compiled. The trace's program is
 * the caller's to free, on failure too. */
trd_status trd__program_trace(trd_engine *engine, const trd__family *family, trd__program_kind kind,
                              trd__trace *trace, trd__compiled *compiled);
trd_status trd__family_compile(trd_engine *engine, trd__family *family); /* every program, and update */
trd_status trd__forward_get(trd_engine *engine, trd__family *family, trd_forward_function build, void *user,
                            trd__forward **forward);
/* The program that puts the contribution into the accumulators: as the first of the step, or added. */
trd_status trd__merge_get(trd_engine *engine, bool add, const trd__compiled **compiled);
/* Everything compiled goes; the queue must be empty. why, for the log: NULL where the engine ends. */
void trd__programs_drop(trd_engine *engine, const char *why);

/* remat.c */
/* The rule of a program: the policy's, or with auto the cheapest that fits. */
trd_status trd__remat_choose(trd_engine *engine, trd__family *family, trd__program_kind kind,
                             trd__remat_rule *rule);
/* Fails when a compiled program takes the plan over memory_limit_bytes, otherwise counts it in. */
trd_status trd__remat_admit(trd_engine *engine, const trd__family *family, const trd__compiled *compiled);
void trd__remat_print(const trd__remat_rule *rule, char *text, size_t bytes);

/* plan.c: what a run holds beside what programs compute in; family NULL: without its inputs. */
uint64_t trd__held_bytes(const trd_engine *engine, const trd__family *family);

/* payload.c */
extern const char *const trd__input_names[TRD__INPUT_COUNT];
typedef struct trd__payload_counts {
    int64_t tokens;        /* without padding */
    int64_t weighted_rows; /* tokens that carry loss */
} trd__payload_counts;
/* Checks the whole batch before anything changes. */
trd_status trd__payload_check(const trd_engine *engine, const trd_batch *batch);
/* Derives, pads and zeroes weights into the family's staging; fails for segments that are no contiguous runs.
 */
trd_status trd__payload_stage(const trd_engine *engine, const trd_batch *batch, trd__family *family,
                              trd__payload_counts *counts);
/* Copies the staging into an input set. */
trd_status trd__payload_write(trd_engine *engine, const trd__family *family, trd__set *set);

/* queue.c */
/* Waits until one more run may be queued. */
trd_status trd__queue_admit(trd_engine *engine);
/* Queues one run after trd__queue_admit; *flight is its slot. results NULL: the flight's own set. */
trd_status trd__queue_run(trd_engine *engine, const trd__compiled *compiled, trd__set *inputs,
                          trd__set *scalars, trd__set *results, trd__flight **flight);
/* Reads what is finished, apart from the newest run. */
trd_status trd__queue_collect_ready(trd_engine *engine);
trd_status trd__queue_drain(trd_engine *engine); /* waits for everything, reads nothing */
trd_status trd__queue_flush(trd_engine *engine); /* waits for and reads everything */
void trd__queue_abandon(trd_engine *engine);     /* forgets what a failed device never finished */

/* diagnostics.c. The hooks are called only where engine->diagnostics is set. */
trd_status trd__diagnostics_create(trd_engine *engine);
trd_status trd__diagnostics_before_run(trd_engine *engine);
trd_status trd__diagnostics_after_run(trd_engine *engine, const trd__flight *flight);
/* A run has finished: waits on every array that the queue held for it. */
trd_status trd__diagnostics_finished(trd_engine *engine, const trd__flight *flight);
trd_status trd__trace_merge(trd__trace *trace, bool add);

/* metrics.c, record.c */
trd_status trd__metrics_create(trd_engine *engine);
void trd__metrics_free(trd_engine *engine);
const char *trd__metrics_name(trd_engine *engine, const char *name); /* NULL: no room or memory */
/* The same for a metric of the caller's; refuses a name that every step has already, and one that is not
 * UTF-8, which a checkpoint would not give back. */
trd_status trd__metrics_name_of_caller(trd_engine *engine, const char *name, const char **full);
/* Takes over one flight's results (TRD__RESULT_COUNT values). */
trd_status trd__metrics_collect(trd_engine *engine, const trd__flight *flight, const double *results);
void trd__tally_add(trd__tally *tally, const trd__loss_info *info, const double *results);
void trd__metrics_finish_eval(trd_engine *engine);
void trd__metrics_eval_result(const trd_engine *engine, trd_eval_result *result); /* of the newest */
trd_status trd__metrics_reserve(trd_engine *engine, int64_t micro_batches);
trd_status trd__metrics_flush_sinks(trd_engine *engine);
trd_status trd__metrics_close(trd_engine *engine);
void trd__metrics_history_add(trd_engine *engine, const trd__metric_record *record);

/* weights.c */
trd_status trd__weights_load_model(trd_engine *engine);  /* model (and config) from name or path */
trd_status trd__weights_fill(trd_engine *engine);        /* parameters loaded or drawn */
trd_status trd__weights_fill_states(trd_engine *engine); /* the model's state as it begins */
void trd__weights_release(trd_engine *engine);

/* profiler.c */
/* X(name, text): what the host does, as a profile calls it. */
#define TRD__SPAN_LIST(X)                                                                                    \
    X(FWD_BWD, "fwd_bwd")                                                                                    \
    X(UPDATE, "update")                                                                                      \
    X(TRAIN_STEP, "train_step")                                                                              \
    X(EVAL_STEP, "eval_step")                                                                                \
    X(WAIT, "wait for the device")                                                                           \
    X(BATCH, "wait for data")                                                                                \
    X(SAVE, "save")
typedef enum trd__span_kind {
#define TRD__SPAN_ENUM(name, text) TRD__SPAN_##name,
    TRD__SPAN_LIST(TRD__SPAN_ENUM)
#undef TRD__SPAN_ENUM
        TRD__SPAN_COUNT
} trd__span_kind;
trd_status trd__profiler_create(trd_engine *engine);             /* before the backend, which records too */
void trd__profiler_free(trd_engine *engine);                     /* after it */
trd__recorder *trd__profiler_recorder(const trd_engine *engine); /* NULL: off */
/* Before a micro-batch, whose call then belongs to a window or not. */
void trd__profiler_micro_batch(trd_engine *engine);
void trd__profiler_settle(trd_engine *engine); /* before other calls than update: ends a complete window */
void trd__profiler_close(trd_engine *engine);  /* ends a window as it is */
/* A call of the host that began at begin_ns and ends now. */
void trd__profiler_span(trd_engine *engine, trd__span_kind kind, uint64_t begin_ns);
/* Records the batches that loader makes under a track of that name, until unwatched. */
trd_status trd__profiler_watch(trd_engine *engine, trd_loader *loader, const char *name);
void trd__profiler_unwatch(trd_engine *engine, trd_loader *loader);

/* saver.c */
trd_status trd__saver_create(trd_engine *engine); /* locks the run folder unless read-only, opens the store */
trd_status trd__saver_reserve(trd_engine *engine); /* memory for snapshots, once all other memory is there */
bool trd__saver_writes(const trd_engine *engine);  /* false: checkpointing is off or read-only */
void trd__saver_free(trd_engine *engine);          /* waits for the last save, unlocks */
void trd__saver_poll(trd_engine *engine);          /* a failure of a finished save becomes deferred */
trd_status trd__saver_wait(trd_engine *engine);    /* for the running save, and returns its status */

/* The most complete checkpoint of a step, or the newest intact one (step -1). */
trd_status trd__saver_open(trd_engine *engine, int64_t step, trd__stored **stored);
void trd__saver_restored(trd_engine *engine); /* the state is now that of a checkpoint in the folder */
/* What a save between two steps copies, in host memory, before training goes on. */
uint64_t trd__snapshot_bytes(const trd_engine *engine);
/* TRD_IO when the file system has no room for that many more checkpoints. */
trd_status trd__saver_check_space(trd_engine *engine, int64_t checkpoints);
/* A state tensor's name in checkpoints, in text. */
const char *trd__saved_name(trd__role role, const char *entry, char *text, size_t bytes);

/* state.c */
/* state.json's text in *writer, which the caller frees. */
/* What a reader of a checkpoint would refuse must not get into it: text is NULL or UTF-8. */
trd_status trd__state_check_text(const char *what, const char *text);
trd_status trd__state_write(trd_engine *engine, const char *metadata, trd__json_writer *writer);

/* state_metrics.c */
typedef struct trd__saved_metrics {
    trd__tally tally; /* this and what follows up to flops: of an unfinished step */
    trd__micro_pair *pairs;
    int64_t pair_count, tokens;
    double denominator, eps, min_denom, flops;
    trd__host_metric recorded[TRD__HOST_METRICS];
    int recorded_count;
    trd__metric_record *history; /* oldest first */
    int history_count;
} trd__saved_metrics;
void trd__state_write_metrics(const trd_engine *engine, trd__json_writer *writer); /* members of state.json */
/* Reads them into *saved, which starts zeroed and is freed by the caller also after a failure. */
trd_status trd__state_read_metrics(trd_engine *engine, trd__json root, int64_t micro_step,
                                   trd__saved_metrics *saved);
void trd__state_apply_metrics(trd_engine *engine, const trd__saved_metrics *saved);
void trd__saved_metrics_free(trd__saved_metrics *saved);

#endif
