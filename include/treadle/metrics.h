/* Metric sinks: where an engine hands the numbers of each step. The engine knows only this struct; report.h
 * makes the sinks the library comes with (JSONL, TensorBoard, progress, HTML), a program may fill its own.
 *
 * Thread-safety: the engine calls one sink from one thread at a time. Nothing passed to a sink stays valid
 * after the call returns. */
#ifndef TREADLE_METRICS_H
#define TREADLE_METRICS_H

#include <stdint.h>

#include <treadle/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text): "train" and "eval" are the words in metrics.jsonl and the prefixes of TensorBoard tags. */
#define TRD_METRIC_MODE_LIST(X)                                                                              \
    X(TRAIN, "train")                                                                                        \
    X(EVAL, "eval")

/* TRD_METRIC_TRAIN and TRD_METRIC_EVAL. */
typedef enum trd_metric_mode {
#define TRD_METRIC_MODE_ENUM(name, text) TRD_METRIC_##name,
    TRD_METRIC_MODE_LIST(TRD_METRIC_MODE_ENUM)
#undef TRD_METRIC_MODE_ENUM
} trd_metric_mode;

/* One number of a step. */
typedef struct trd_metric {
    const char *name; /* without mode, for example "loss"; the engine's metrics_prefix is part of it */
    double value;     /* may be NaN or infinite */
} trd_metric;

/* One setting of a run, as text. */
typedef struct trd_run_setting {
    const char *name;  /* the config key */
    const char *value; /* its resolved value */
} trd_run_setting;

/* What a sink is told of the run before the first write. */
typedef struct trd_run_info {
    const char *run_name;            /* NULL: none */
    const char *metrics_prefix;      /* what the engine puts before every name; NULL: nothing */
    int64_t resumed_step;            /* step of the checkpoint this run goes on from, -1: a fresh run */
    int64_t total_steps;             /* step number the run will end with, 0: unknown */
    int setting_count;               /* of settings */
    const trd_run_setting *settings; /* the resolved config, as text */
} trd_run_info;

/* Functions may be NULL (that event is not wanted). user belongs to the sink; close frees it. */
typedef struct trd_metric_sink {
    /* Called before the first write, and again after a restore: records of steps greater than resumed_step
     * are those of an abandoned future and are dropped. */
    trd_status (*begin)(void *user, const trd_run_info *info);
    /* All metrics of one step in one mode. Called as late as the engine likes, steps in rising order. */
    trd_status (*write)(void *user, trd_metric_mode mode, int64_t step, const trd_metric *metrics, int count);
    /* Everything written so far reaches the file (before a checkpoint, after an evaluation). */
    trd_status (*flush)(void *user);
    /* Finishes and frees; reports what could not be written. Called once. */
    trd_status (*close)(void *user);
    void *user; /* passed to each */
} trd_metric_sink;

#ifdef __cplusplus
}
#endif
#endif
