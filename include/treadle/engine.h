/* The engine: owns model, optimizer, step and state; runs micro-batches and updates; saves and restores.
 *
 * fwd_bwd and update queue work and return at once; metrics are read back after the next dispatch. What a
 * step means is written in docs/engine-contract.md. Thread-safety: one thread at a time per engine. */
#ifndef TREADLE_ENGINE_H
#define TREADLE_ENGINE_H

#include <treadle/data.h>
#include <treadle/loss.h>
#include <treadle/mesh.h>
#include <treadle/metrics.h>
#include <treadle/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opaque: trd_engine_create makes one, trd_engine_close frees it. */
typedef struct trd_engine trd_engine;

/* What is computed again in the backward pass instead of kept: bits are the same under each. */
typedef enum trd_remat_policy {
    TRD_REMAT_NONE,    /* only what is cheap and would lie idle for long */
    TRD_REMAT_MINIMAL, /* all that is no product */
    TRD_REMAT_FULL,    /* all between the boundaries of layers */
    TRD_REMAT_AUTO     /* as little as memory_limit_bytes allows; one device, and the backend cpu */
} trd_remat_policy;

/* X(NAME, key, default, slow, resume, help): diagnostic switches. Each brings back one slower design that the
 * engine replaces, to be measured (docs/benchmarks.md) and to prove that results do not depend on it. All
 * give the same bits but accumulate (float32 rounding) and clip_norm (rounding of the norm). */
#define TRD_DIAGNOSTIC_LIST(X)                                                                               \
    X(PUBLISH, publish, "deferred", "eager", FREE,                                                           \
      "eager: each call waits for its work and renews a handle to every array of the state")                 \
    X(STATE, state, "mirrored", "split", FREE,                                                               \
      "split: each call looks every array up by name, checks it and merges it back")                         \
    X(ACCUMULATE, accumulate, "fused", "separate", PORTABLE,                                                 \
      "separate: a micro-batch has gradients of its own, which a second program adds up")                    \
    X(METRICS_WRITE, metrics_write, "deferred", "immediate", FREE,                                           \
      "immediate: each call waits for its numbers and writes them")                                          \
    X(THROTTLE_ON, throttle_on, "scalar", "state", FREE,                                                     \
      "state: the queue holds and waits on every array of the state instead of one scalar")                  \
    X(CLIP_NORM, clip_norm, "reuse", "recompute", PORTABLE,                                                  \
      "recompute: clipping takes the norm of the divided gradients once more")
/* TRD_DIAGNOSTIC_PUBLISH and so on, as listed in TRD_DIAGNOSTIC_LIST. */
typedef enum trd_diagnostic {
#define TRD_DIAGNOSTIC_ENUM(name, key, normal, slow, resume, help) TRD_DIAGNOSTIC_##name,
    TRD_DIAGNOSTIC_LIST(TRD_DIAGNOSTIC_ENUM)
#undef TRD_DIAGNOSTIC_ENUM
        TRD_DIAGNOSTIC_COUNT /* how many there are */
} trd_diagnostic;

/* Traces of windows of micro-batches (docs/profiling.md): the first begins after skip_first_steps
 * micro-batches of this engine, and so on every period. Nothing is recorded between them, and no result
 * depends on them. */
typedef struct trd_profiler_options {
    const char *directory;    /* where trace-N.json is written, N its first micro-batch; NULL: off */
    int64_t skip_first_steps; /* micro-batches before the first window */
    int64_t steps;            /* micro-batches of a window */
    int64_t period;           /* micro-batches from one window's begin to the next; 0 or less: one window */
} trd_profiler_options;

/* Bits that products of float32 keep on devices that choose: a CPU always keeps all. */
typedef enum trd_matmul_precision {
    TRD_MATMUL_DEFAULT = 0, /* as the device likes best: bfloat16 or TF32 in one pass */
    TRD_MATMUL_HIGH,        /* several passes */
    TRD_MATMUL_HIGHEST      /* float32 */
} trd_matmul_precision;

/* Every pointer stays the caller's and must outlive trd_engine_create only, unless said; the user pointers of
 * log and compare must outlive the engine. */
typedef struct trd_engine_options {
    const char *model_name;             /* preset; NULL: taken from load_parameters_path's config.json */
    const char *load_parameters_path;   /* Hugging Face folder or GGUF; NULL: random weights */
    trd_model_overrides overrides;      /* of a preset; with load_parameters_path they must be 0 */
    uint64_t init_weights_seed;         /* of random weights, drawn by seed and name, and of dropout */
    double dropout_rate;                /* of each residual branch in training; 0: none */
    trd_dtype dtype;                    /* compute */
    trd_dtype weight_dtype;             /* storage of parameters */
    trd_dtype grad_dtype;               /* accumulators */
    int rows;                           /* B: micro_batch_size_to_train_on */
    int length;                         /* T: max_target_length; payloads may be shorter */
    int gradient_accumulation_steps;    /* micro-batches that trd_engine_train feeds an update */
    int64_t steps;                      /* of trd_engine_train; also what a schedule ends with */
    trd_optimizer_options optimizer;    /* opt_type and its numbers */
    trd_schedule_options schedule;      /* of the learning rate */
    const char *const *freeze;          /* regular expressions over hub names; a match is not trained: it
                                           costs no gradient and no optimizer state, and stays as it is */
    int freeze_count;                   /* of freeze */
    trd_sft_options sft;                /* of trd_loss_sft, the loss unless another is set */
    double gradient_clipping_threshold; /* 0: off */
    bool skip_step_on_nonfinite;        /* an update with NaN or infinite gradients changes nothing */
    bool skip_step_on_spikes;           /* nor does one whose loss or norm stands out of the last ones */
    int skip_step_interval;             /* past values that a spike is judged by */
    double skip_step_scaling_factor;    /* standard deviations above their mean that are still kept */
    trd_remat_policy remat_policy;      /* memory against time */
    uint64_t memory_limit_bytes;        /* the plan's peak must not exceed it, else a program is refused with
                                           TRD_NO_MEMORY; 0: no limit, with auto what is free */
    bool scan_layers;                   /* weights of all layers in one tensor each, layers in one loop */
    int max_inflight_computations;      /* 1 to 64, default 2 */
    bool diagnostics[TRD_DIAGNOSTIC_COUNT]; /* true: the slower design */
    const char *backend;                    /* NULL: cpu */
    const char *plugin_path;                /* of a backend that opens a plugin; NULL: it looks by itself */
    const char *compile_cache_directory;    /* where a backend keeps compiled programs; NULL: nowhere */
    const char *compile_flags;              /* of a backend with a compiler of its own, "--name=value ...";
                                               NULL: none. Another backend warns */
    trd_matmul_precision matmul_precision;  /* of products on devices that have faster ones of fewer bits */
    int num_threads;                        /* 0: chosen */
    trd_mesh_options mesh;                  /* the devices and how everything is split over them */
    const char *checkpoint_directory;       /* NULL: checkpointing off */
    int64_t checkpoint_period;              /* in steps */
    bool async_checkpointing;               /* saving runs beside training, one save at a time */
    int max_num_checkpoints_to_keep;        /* 0: all */
    int64_t keep_period;                    /* steps that it divides are kept beside those; 0: none */
    bool read_only_checkpoints;      /* restore only, from a folder that another engine may be writing to:
                                        takes no lock, makes and removes no file, saves nothing */
    trd_profiler_options profiler;   /* off by default */
    const char *metrics_prefix;      /* NULL: none */
    const trd_metric_sink *sinks;    /* taken over by an engine that was created; closed with it */
    int sink_count;                  /* of sinks */
    const char *run_name;            /* for the sinks, as are settings; NULL: none. Both outlive the engine */
    const trd_run_setting *settings; /* the resolved config */
    int setting_count;               /* of settings */
    /* The config's identity, stored in checkpoints; on restore compare says what may differ (NULL: nothing is
     * checked). It returns TRD_OK, logs a warning for portable keys, or fails naming the fixed key. */
    const char *fingerprint;
    /* Judges a checkpoint's fingerprint against this engine's; called by a restore. */
    trd_status (*compare_fingerprint)(void *user, const char *saved, const char *current);
    void *compare_user; /* passed to compare_fingerprint */
    trd_log_sink log;   /* where log lines go */
} trd_engine_options;

/* The defaults of the config keys (docs/config.md). */
TRD_API trd_engine_options trd_engine_defaults(void);

/* Creates backend and model and loads or draws the weights; nothing is compiled yet. */
TRD_API trd_status trd_engine_create(const trd_engine_options *options, trd_engine **engine);
/* Drains, writes buffered metrics, saves a last checkpoint when checkpointing is on, waits for saves, frees.
 * Safe on NULL and after an error. */
TRD_API trd_status trd_engine_close(trd_engine *engine);

/* Without it the loss is trd_loss_sft with the options' sft. user must outlive the engine; compiled programs
 * are dropped. */
TRD_API trd_status trd_engine_with_loss_fn(trd_engine *engine, trd_loss_function loss, void *user);
/* The loss of eval_step; NULL: that of training, as without this call. */
TRD_API trd_status trd_engine_with_eval_loss_fn(trd_engine *engine, trd_loss_function loss, void *user);
/* Adapts a payload before the engine checks it: writes *adapted, which comes zeroed (arrays stay the
 * adapter's until its next call). position stays the payload's, and so does update_step where the adapter
 * leaves it. */
typedef trd_status (*trd_gen_model_input_function)(void *user, const trd_batch *payload, trd_batch *adapted);
/* Sets the adapter of training and evaluation payloads; NULL: payloads are taken as they are. user must
 * outlive the engine. */
TRD_API trd_status trd_engine_with_gen_model_input_fn(trd_engine *engine,
                                                      trd_gen_model_input_function adapter, void *user);

/* Compiles every program for example's shape and names ahead of the first call; free for a known shape. */
TRD_API trd_status trd_engine_compile(trd_engine *engine, const trd_batch *example);

/* Loss and gradients of one micro-batch, added to those of the step. batch is copied before the call returns;
 * a refused one changes nothing: TRD_SHAPE for more rows or tokens than the options allow,
 * TRD_INVALID_ARGUMENT naming row and position of what is wrong. A fault of the device, also of an earlier
 * call, is kept and returned from then on until a restore. */
TRD_API trd_status trd_engine_fwd_bwd(trd_engine *engine, const trd_batch *batch);
/* Divides what was accumulated by its denominator, clips, and applies the optimizer; does nothing without
 * accumulated gradients. */
TRD_API trd_status trd_engine_update(trd_engine *engine);
/* fwd_bwd + update in one program, bit-identical to the pair; TRD_STATE when gradients are accumulated. */
TRD_API trd_status trd_engine_train_step(trd_engine *engine, const trd_batch *batch);
/* Begins an evaluation: waits for the queued training. Changes no state, as eval_step and eval_end do not.
 * A second begin starts over. */
TRD_API trd_status trd_engine_eval_begin(trd_engine *engine);
/* Loss and aux metrics of one batch on the current parameters; queues and returns. batch is checked and
 * copied as in trd_engine_fwd_bwd. */
TRD_API trd_status trd_engine_eval_step(trd_engine *engine, const trd_batch *batch);
/* Ends it: the metrics of every eval_step since begin, weighted by tokens over the whole set, are written
 * under mode "eval". */
TRD_API trd_status trd_engine_eval_end(trd_engine *engine);

/* Builds a forward graph and returns its one result; traced when it is compiled. */
typedef trd_value (*trd_forward_function)(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                          void *user);
/* A forward graph of the caller's on the current parameters, copied to out (host, row-major, without the rows
 * that pad the batch; TRD_SHAPE when out_bytes does not match). Cached by function, user and payload
 * signature. */
TRD_API trd_status trd_engine_fwd_only(trd_engine *engine, trd_forward_function build, void *user,
                                       const trd_batch *batch, void *out, size_t out_bytes);
/* Ready-made: per-token log-probabilities (B, T) f32. */
TRD_API trd_value trd_forward_token_logprobs(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                             void *user);

/* Saves; metadata is the caller's text in UTF-8 (NULL: none), returned by restore. *wrote (may be NULL) says
 * whether a checkpoint was written: off the period and not forced, or with checkpointing off or read-only,
 * none is. With async_checkpointing it was begun, and a failure of it is told by the next call. TRD_STATE:
 * the folder holds later steps of a run that this engine has not restored. docs/checkpoints.md says what a
 * checkpoint holds. */
TRD_API trd_status trd_engine_save(trd_engine *engine, const char *metadata, bool force, bool *wrote);
/* step -1: the newest intact one. TRD_NOT_FOUND when there is none; TRD_SHAPE or TRD_INVALID_ARGUMENT naming
 * every tensor and key that does not fit, with nothing changed. Checkpoints of later steps go when the next
 * save is done. *metadata: free with trd_text_free; may be NULL. */
TRD_API trd_status trd_engine_restore(trd_engine *engine, int64_t step, char **metadata);
/* Hub folder with the current parameters: model.safetensors and config.json (the tokenizer writes its own
 * files). */
TRD_API trd_status trd_engine_export(trd_engine *engine, const char *folder, trd_dtype dtype);

/* How the values recorded under one name within a step become one. */
typedef enum trd_aggregation {
    TRD_AGGREGATE_MEAN, /* of weighted values: sum of sums over sum of denominators */
    TRD_AGGREGATE_SUM,  /* added up */
    TRD_AGGREGATE_LAST, /* the newest */
    TRD_AGGREGATE_MIN,  /* the smallest */
    TRD_AGGREGATE_MAX   /* the largest */
} trd_aggregation;
/* What kind of value the host records. */
typedef enum trd_recorded_kind {
    TRD_RECORDED_NOTHING,  /* skipped */
    TRD_RECORDED_NUMBER,   /* a number */
    TRD_RECORDED_WEIGHTED, /* a sum with the denominator it is divided by */
    TRD_RECORDED_GROUP     /* named values, whose names are joined with '/' */
} trd_recorded_kind;
/* A value the host records. */
typedef struct trd_recorded {
    trd_recorded_kind kind;             /* which of the fields below count */
    const char *name;                   /* of a group's member */
    double value;                       /* the number, or the unreduced sum */
    double denominator;                 /* of a weighted value */
    double eps;                         /* as in trd_weighted_metric */
    double min_denom;                   /* as in trd_weighted_metric */
    const struct trd_recorded *members; /* of a group */
    int member_count;                   /* of members */
} trd_recorded;
/* A number. */
static inline trd_recorded trd_recorded_number(double value)
{
    trd_recorded r = {TRD_RECORDED_NUMBER, NULL, value, 0, 0, 0, NULL, 0};
    return r;
}
/* A sum and what it is divided by, eps and min_denom off. */
static inline trd_recorded trd_recorded_weighted(double unreduced_sum, double denominator)
{
    trd_recorded r = {TRD_RECORDED_WEIGHTED, NULL, unreduced_sum, denominator, 0, 0, NULL, 0};
    return r;
}
/* Host-side metrics of the current step, aggregated over its calls. The mean of weighted values is the sum of
 * their sums over the sum of their denominators; every other aggregation takes each value's own quotient.
 * TRD_INVALID_ARGUMENT for a name that is not UTF-8 or that every step has ("loss", ...), and then nothing of
 * a group is recorded; where the loss has an aux metric of the name, this value counts. */
TRD_API trd_status trd_engine_record_metrics(trd_engine *engine, const char *name, trd_recorded value,
                                             trd_aggregation aggregation);
/* The caller's own aggregation: fold gets what it returned last (0 at first), the new value and how many came
 * before it in this step. */
typedef double (*trd_fold_function)(void *user, double so_far, double value, int count);
/* Records a number that fold aggregates; one name keeps one fold within a step. */
TRD_API trd_status trd_engine_record_folded(trd_engine *engine, const char *name, double value,
                                            trd_fold_function fold, void *user);
/* The metrics of one step, owned by the engine. */
typedef struct trd_step_metrics {
    int64_t step;              /* updates done with it, from 1; -1: empty */
    const trd_metric *metrics; /* by name, metrics_prefix included */
    int count;                 /* of metrics */
} trd_step_metrics;
/* The newest finished step's metrics; flushes what is queued. Valid until the next call on the engine. */
TRD_API trd_status trd_engine_get_metrics(trd_engine *engine, bool clear, trd_step_metrics *metrics);
/* The newest evaluation's metrics (step -1: none yet). Valid until the next evaluation ends. */
TRD_API trd_status trd_engine_get_eval_metrics(trd_engine *engine, trd_step_metrics *metrics);
/* The metrics of up to 128 steps, oldest first; clear empties the history. A warning is logged when older
 * ones were dropped unread. Valid until the next call on the engine. */
TRD_API trd_status trd_engine_get_metrics_history(trd_engine *engine, bool clear,
                                                  const trd_step_metrics **steps, int *count);

TRD_API int64_t trd_engine_step(const trd_engine *engine); /* train_step: updates done */
/* Sets train_step, which the schedule and the names of checkpoints follow; TRD_INVALID_ARGUMENT below 0 and
 * above 10^15. */
TRD_API trd_status trd_engine_set_step(trd_engine *engine, int64_t step);
TRD_API int64_t trd_engine_total_micro_steps(const trd_engine *engine);  /* micro-batches of the whole run */
TRD_API int64_t trd_engine_micro_step_count(const trd_engine *engine);   /* of them, since the last update */
TRD_API bool trd_engine_has_accumulated_grads(const trd_engine *engine); /* an update would do something */
TRD_API uint64_t trd_engine_data_position(const trd_engine *engine); /* of the last accepted micro-batch */
TRD_API const trd_model *trd_engine_model(const trd_engine *engine); /* the engine's own */

/* A live view of a state set: always current, reading waits for queued work. */
typedef struct trd_view {
    trd_engine *engine; /* whose state it shows */
    int set;            /* which set of it */
} trd_view;
TRD_API trd_view trd_engine_params(trd_engine *engine);          /* parameters, by hub name */
TRD_API trd_view trd_engine_optimizer_state(trd_engine *engine); /* moments, counts, history of spikes */
TRD_API trd_view trd_engine_gradients(trd_engine *engine);       /* accumulated, undivided */
/* What the model keeps from micro-batch to micro-batch (dropout's counter); often empty. Every fwd_bwd
 * replaces it, whether or not the update then skips its step; eval_step and fwd_only only read it. */
TRD_API trd_view trd_engine_model_state(trd_engine *engine);
TRD_API int trd_view_count(trd_view view);                          /* tensors of the set */
TRD_API trd_array trd_view_describe(trd_view view, int i);          /* data is NULL */
TRD_API int trd_view_find(trd_view view, const char *name);         /* -1: none */
TRD_API trd_status trd_view_read(trd_view view, int i, void *data); /* whole tensor, its own dtype */
/* Replaces a whole tensor, in its own dtype: what is queued finishes first, and earlier handles of the view
 * report TRD_DELETED. The compiled programs stay, for they know shapes only. */
TRD_API trd_status trd_view_write(trd_view view, int i, const void *data);
/* A handle to the array as it is now: reading it after a step that donated it is TRD_DELETED. */
typedef struct trd_handle {
    trd_view view;       /* the set */
    int index;           /* the tensor in it */
    uint64_t generation; /* how often the set had been donated */
} trd_handle;
TRD_API trd_handle trd_view_handle(trd_view view, int i); /* of tensor i < trd_view_count */
/* As trd_view_read; TRD_DELETED names the step that donated the array. */
TRD_API trd_status trd_handle_read(trd_handle handle, void *data);

/* What an evaluation found. */
typedef struct trd_eval_result {
    double loss;          /* sum / sum */
    double total_weights; /* what it was divided by */
} trd_eval_result;

/* What a hook of the training loop is told. The pointers are valid during the call. */
typedef struct trd_train_event {
    trd_engine *engine; /* may be read, saved and evaluated; feeding it is the loop's */
    /* Of step and data hooks the number of the step in the making, from 1; of the others the updates done. */
    int64_t step;
    const trd_batch *batch;        /* of data_end: NULL when the data has ended. Else NULL */
    const trd_eval_result *result; /* of eval_end; else NULL */
    trd_status status;             /* of train_end: how the loop ended. Else TRD_OK */
} trd_train_event;
/* A status other than TRD_OK ends training with it, after train_end; trd_error_message then names the hook
 * and the status before what the thread's last failure said. */
typedef trd_status (*trd_train_hook)(void *user, const trd_train_event *event);
/* Called on the caller's thread, each may be NULL, in this order:
 *   train_begin, [eval_begin, eval_end,]
 *   for each step: (data_begin, data_end for each micro-batch; step_begin after the first of them,) step_end,
 *       [eval_begin, eval_end,] and then the step is saved where that is due
 *   [eval_begin, eval_end,] the last save, train_end.
 * step_end comes once the update is queued: the step's metrics are there for whoever asks, at the price of
 * waiting. A step that is resumed in its middle begins again. Every step_begin, eval_begin and data_begin has
 * its end unless something failed in between; train_begin always has, unless it failed itself. */
typedef struct trd_train_hooks {
    trd_train_hook train_begin; /* everything is checked, nothing has run */
    trd_train_hook train_end;   /* what there was to save is saved, or something failed */
    trd_train_hook step_begin;  /* before the step's first micro-batch is fed */
    trd_train_hook step_end;    /* after the update, before evaluation and saving */
    trd_train_hook eval_begin;  /* before the first batch of an evaluation */
    trd_train_hook eval_end;    /* after its last, with the result */
    trd_train_hook data_begin;  /* before a training batch is asked for */
    trd_train_hook data_end;    /* after it came, before it is fed */
    void *user;                 /* passed to every hook */
} trd_train_hooks;

/* What trd_engine_train feeds and when it stops. Everything in it stays the caller's. */
typedef struct trd_train_options {
    trd_loader *train;        /* of micro-batches */
    trd_loader *eval;         /* NULL: no evaluation; rewound for each */
    int64_t eval_interval;    /* 0 or less: only where eval_at_start / eval_at_end say */
    int64_t eval_steps;       /* batches per evaluation; 0 or less: all */
    bool eval_at_start;       /* an evaluation before the first step */
    bool eval_at_end;         /* and one after the last, where this call did it */
    const volatile int *stop; /* set by a signal handler; may be NULL */
    trd_train_hooks hooks;    /* what is told of the loop's progress */
} trd_train_options;
/* The training loop: feeds gradient_accumulation_steps micro-batches a step from the loader (a payload's
 * update_step decides instead of the count where it says something), updates, evaluates every eval_interval
 * steps, then saves, until steps are done, the data ends, or stop becomes non-zero (which finishes the step
 * and saves). Resumes the loader at the engine's data position; TRD_INVALID_ARGUMENT when its files are not
 * those the position was reached in. */
TRD_API trd_status trd_engine_train(trd_engine *engine, const trd_train_options *options);

/* Token-weighted evaluation over a loader from its start: eval_begin, eval_step for each batch (batches <= 0:
 * all), eval_end. */
TRD_API trd_status trd_engine_evaluate(trd_engine *engine, trd_loader *loader, int64_t batches,
                                       trd_eval_result *result);

#ifdef __cplusplus
}
#endif
#endif
