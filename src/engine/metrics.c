/* Metrics: micro-batch results are tallied, an update turns the tally into the step's record, which goes to
 * the history and the sinks. Invariant: every number is a function of results read in dispatch order, so
 * eager and late collection give the same bits; nothing here grows with the length of a run. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/internal.h"
#include "tokenizer/unicode.h"

/* X(name, text): what every step records, in this order. */
#define STEP_METRICS(X)                                                                                      \
    X(LEARNING_RATE, "learning_rate")                                                                        \
    X(LOSS, "loss")                                                                                          \
    X(PERPLEXITY, "perplexity")                                                                              \
    X(LOSS_MEAN_OF_MEANS, "loss_mean_of_means")                                                              \
    X(TOTAL_WEIGHTS, "total_weights")                                                                        \
    X(GRADIENT_NORM, "gradient_norm")                                                                        \
    X(STEP_SKIPPED, "step_skipped")                                                                          \
    X(NONFINITE_GRADS, "nonfinite_grads")                                                                    \
    X(STEP_TIME, "step_time")                                                                                \
    X(TOKENS_PER_SECOND, "tokens_per_second")                                                                \
    X(TFLOPS, "tflops")                                                                                      \
    X(UTILIZATION, "utilization")

typedef enum step_metric {
#define METRIC_ENUM(name, text) METRIC_##name,
    STEP_METRICS(METRIC_ENUM)
#undef METRIC_ENUM
        METRIC_COUNT
} step_metric;

static const char *const step_names[] = {
#define METRIC_NAME(name, text) text,
    STEP_METRICS(METRIC_NAME)
#undef METRIC_NAME
};

/* Whether full equals prefix followed by name. */
static bool is_prefixed(const char *full, const char *prefix, const char *name)
{
    size_t length = prefix ? strlen(prefix) : 0;
    return (length == 0 || strncmp(full, prefix, length) == 0) && strcmp(full + length, name) == 0;
}

const char *trd__metrics_name(trd_engine *engine, const char *name)
{
    trd__metrics *m = &engine->metrics;
    const char *prefix = engine->options.metrics_prefix;
    for (int i = 0; i < m->name_count; i++)
        if (is_prefixed(m->names[i], prefix, name)) return m->names[i];
    if (m->name_count == TRD__NAMES) {
        trd__fail(TRD_INVALID_ARGUMENT, "recording \"%s\": expected at most %d different metrics", name,
                  TRD__NAMES);
        return NULL;
    }
    const char *full = trd__arena_format(engine->arena, "%s%s", prefix ? prefix : "", name);
    if (full) m->names[m->name_count++] = full;
    return full;
}

trd_status trd__metrics_name_of_caller(trd_engine *engine, const char *name, const char **full)
{
    const trd__metrics *m = &engine->metrics;
    size_t bytes = name ? strlen(name) : 0;
    if (bytes == 0) return trd__fail(TRD_INVALID_ARGUMENT, "recording a metric: expected a name, found none");
    if (trd__utf8_valid((const uint8_t *)name, bytes) != bytes)
        return trd__fail(TRD_INVALID_ARGUMENT, "metric \"%s\": expected a name in UTF-8", name);
    *full = trd__metrics_name(engine, name);
    if (!*full) return m->name_count == TRD__NAMES ? TRD_INVALID_ARGUMENT : TRD_NO_MEMORY;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (*full == m->names[i])
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "metric \"%s\": every step has one of that name; choose another", name);
    return TRD_OK;
}

trd_status trd__metrics_create(trd_engine *engine)
{
    trd__metrics *m = &engine->metrics;
    m->latest.step = m->latest_eval.step = m->resumed_step = -1;
    m->history = trd__calloc(TRD__HISTORY, sizeof *m->history);
    m->view = trd__calloc(TRD__HISTORY, sizeof *m->view);
    if (!m->history || !m->view) return TRD_NO_MEMORY;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (!trd__metrics_name(engine, step_names[i])) return TRD_NO_MEMORY;
    return trd__metrics_reserve(engine, engine->options.gradient_accumulation_steps);
}

void trd__metrics_free(trd_engine *engine)
{
    trd__free(engine->metrics.history);
    trd__free(engine->metrics.view);
    trd__free(engine->metrics.pairs);
}

trd_status trd__metrics_reserve(trd_engine *engine, int64_t micro_batches)
{
    trd__metrics *m = &engine->metrics;
    if (micro_batches <= m->pair_capacity) return TRD_OK;
    int64_t capacity = 2 * m->pair_capacity > micro_batches ? 2 * m->pair_capacity : micro_batches;
    trd__micro_pair *pairs = trd__realloc(m->pairs, (size_t)capacity, sizeof *pairs);
    if (!pairs) return TRD_NO_MEMORY;
    m->pairs = pairs;
    m->pair_capacity = capacity;
    return TRD_OK;
}

static void put(trd__metric_record *record, const char *name, double value)
{
    if (record->count < TRD__STEP_METRICS) record->metrics[record->count++] = (trd_metric){name, value};
}

/* Adds one aux metric's sums; the same name from another program meets its earlier sums. */
static void tally_aux(trd__tally *tally, const trd__aux_info *info, double sum, double denominator)
{
    int i = 0;
    while (i < tally->aux_count && tally->aux[i].name != info->name) i++;
    if (i == TRD_MAX_AUX) return;
    if (i == tally->aux_count)
        tally->aux[tally->aux_count++] =
            (trd__weighted_sum){.name = info->name, .eps = info->eps, .min_denom = info->min_denom};
    tally->aux[i].sum += sum;
    tally->aux[i].denominator += denominator;
}

void trd__tally_add(trd__tally *tally, const trd__loss_info *info, const double *results)
{
    double sum = results[TRD__RESULT_LOSS], denominator = results[TRD__RESULT_DENOMINATOR];
    tally->micro_batches++;
    tally->loss += sum;
    tally->denominator += denominator;
    tally->means += sum * trd_compute_scale(denominator, info->eps, info->min_denom);
    tally->eps = info->eps;
    tally->min_denom = info->min_denom;
    for (int i = 0; i < info->aux_count; i++)
        tally_aux(tally, &info->aux[i], results[TRD__RESULT_AUX + 2 * i],
                  results[TRD__RESULT_AUX + 2 * i + 1]);
}

static double tally_loss(const trd__tally *tally)
{
    return tally->loss * trd_compute_scale(tally->denominator, tally->eps, tally->min_denom);
}

static void put_aux(trd__metric_record *record, const trd__tally *tally)
{
    for (int i = 0; i < tally->aux_count; i++) {
        const trd__weighted_sum *aux = &tally->aux[i];
        put(record, aux->name, aux->sum * trd_compute_scale(aux->denominator, aux->eps, aux->min_denom));
    }
}

/* A name is once in a record: where the loss has a metric of the host's name, the host's value counts. */
static void put_host(trd__metric_record *record, const char *name, double value)
{
    int i = METRIC_COUNT;
    while (i < record->count && record->metrics[i].name != name) i++;
    if (i < record->count)
        record->metrics[i].value = value;
    else
        put(record, name, value);
}

static double host_value(const trd__host_metric *metric)
{
    if (metric->weighted)
        return metric->value * trd_compute_scale(metric->denominator, metric->eps, metric->min_denom);
    return metric->aggregation == TRD_AGGREGATE_MEAN ? metric->value / (double)metric->count : metric->value;
}

static void begin_sinks(trd_engine *engine)
{
    trd__metrics *m = &engine->metrics;
    if (m->begun) return;
    m->begun = true;
    trd_run_info info = {.run_name = engine->options.run_name,
                         .metrics_prefix = engine->options.metrics_prefix,
                         .resumed_step = m->resumed_step,
                         .total_steps = engine->options.steps,
                         .setting_count = engine->options.setting_count,
                         .settings = engine->options.settings};
    for (int i = 0; i < engine->options.sink_count; i++) {
        const trd_metric_sink *sink = &engine->options.sinks[i];
        if (sink->begin) trd__engine_defer(engine, sink->begin(sink->user, &info));
    }
}

static void write_sinks(trd_engine *engine, trd_metric_mode mode, const trd__metric_record *record)
{
    begin_sinks(engine);
    for (int i = 0; i < engine->options.sink_count; i++) {
        const trd_metric_sink *sink = &engine->options.sinks[i];
        if (sink->write)
            trd__engine_defer(engine,
                              sink->write(sink->user, mode, record->step, record->metrics, record->count));
    }
}

void trd__metrics_history_add(trd_engine *engine, const trd__metric_record *record)
{
    trd__metrics *m = &engine->metrics;
    if (m->history_count == TRD__HISTORY) {
        m->history_first = (m->history_first + 1) % TRD__HISTORY;
        m->history_count--;
        m->history_dropped++;
    }
    m->history[(m->history_first + m->history_count) % TRD__HISTORY] = *record;
    m->history_count++;
}

/* Times of the step: from the end of the one before, or its own first dispatch when that was later. */
static void put_speed(trd_engine *engine, const trd__flight *flight, double *values)
{
    trd__metrics *m = &engine->metrics;
    const trd__step_record *record = &flight->record;
    uint64_t begin = m->last_done_ns > record->begin_ns ? m->last_done_ns : record->begin_ns;
    uint64_t busy = engine->backend->table->stats(engine->backend).busy_ns;
    double seconds = flight->done_ns > begin ? (double)(flight->done_ns - begin) * 1e-9 : 1e-9;
    double share = (double)(busy - m->last_busy_ns) * 1e-9 / seconds;
    values[METRIC_STEP_TIME] = seconds;
    values[METRIC_TOKENS_PER_SECOND] = (double)record->tokens / seconds;
    values[METRIC_TFLOPS] = record->flops / seconds * 1e-12;
    values[METRIC_UTILIZATION] = share < 1.0 ? share : 1.0;
    m->last_done_ns = flight->done_ns;
    m->last_busy_ns = busy;
}

static void warn_skipped(trd_engine *engine, int64_t step, const double *results, double denominator)
{
    const trd_log_sink *log = &engine->options.log;
    bool nonfinite = results[TRD__RESULT_NONFINITE] != 0.0;
    bool skipped = results[TRD__RESULT_SKIPPED] != 0.0;
    if (nonfinite)
        trd__log(log, TRD_LOG_WARNING, "step %lld: gradients are not finite; the update was %s",
                 (long long)step, skipped ? "skipped" : "applied (skip_step_on_nonfinite is off)");
    else if (skipped)
        trd__log(log, TRD_LOG_WARNING, "step %lld: the update was skipped (%s)", (long long)step,
                 denominator == 0.0 ? "no token carried loss" : "loss or gradient norm spiked");
}

/* The update of a step is done: everything its micro-batches left becomes one record. */
static void finish_step(trd_engine *engine, const trd__flight *flight, const double *results)
{
    trd__metrics *m = &engine->metrics;
    trd__tally *tally = &m->train;
    double loss = tally_loss(tally);
    double values[METRIC_COUNT] = {[METRIC_LEARNING_RATE] = flight->record.learning_rate,
                                   [METRIC_LOSS] = loss,
                                   [METRIC_PERPLEXITY] = exp(loss),
                                   [METRIC_LOSS_MEAN_OF_MEANS] =
                                       tally->micro_batches ? tally->means / (double)tally->micro_batches
                                                            : 0.0,
                                   [METRIC_TOTAL_WEIGHTS] = tally->denominator,
                                   [METRIC_GRADIENT_NORM] = results[TRD__RESULT_NORM],
                                   [METRIC_STEP_SKIPPED] = results[TRD__RESULT_SKIPPED],
                                   [METRIC_NONFINITE_GRADS] = results[TRD__RESULT_NONFINITE]};
    put_speed(engine, flight, values);
    m->latest.step = flight->record.step;
    m->latest.count = 0;
    for (int i = 0; i < METRIC_COUNT; i++) put(&m->latest, m->names[i], values[i]);
    put_aux(&m->latest, tally);
    for (int i = 0; i < flight->record.host_count; i++)
        put_host(&m->latest, flight->record.host[i].name, host_value(&flight->record.host[i]));
    warn_skipped(engine, m->latest.step, results, tally->denominator);
    trd__metrics_history_add(engine, &m->latest);
    write_sinks(engine, TRD_METRIC_TRAIN, &m->latest);
    *tally = (trd__tally){0};
    m->pair_count = 0;
}

trd_status trd__metrics_collect(trd_engine *engine, const trd__flight *flight, const double *results)
{
    trd__metrics *m = &engine->metrics;
    const trd__compiled *compiled = flight->compiled;
    if (compiled->kind == TRD__PROGRAM_EVAL) {
        trd__tally_add(&m->eval, &compiled->loss, results);
        return TRD_OK;
    }
    if (compiled->kind != TRD__PROGRAM_UPDATE) {
        TRD_TRY(trd__metrics_reserve(engine, m->pair_count + 1));
        m->pairs[m->pair_count++] =
            (trd__micro_pair){results[TRD__RESULT_LOSS], results[TRD__RESULT_DENOMINATOR]};
        trd__tally_add(&m->train, &compiled->loss, results);
    }
    if (compiled->kind == TRD__PROGRAM_UPDATE || compiled->kind == TRD__PROGRAM_TRAIN_STEP)
        finish_step(engine, flight, results);
    return TRD_OK;
}

void trd__metrics_finish_eval(trd_engine *engine)
{
    trd__metrics *m = &engine->metrics;
    double loss = tally_loss(&m->eval);
    m->latest_eval.step = engine->step;
    m->latest_eval.count = 0;
    put(&m->latest_eval, m->names[METRIC_LOSS], loss);
    put(&m->latest_eval, m->names[METRIC_PERPLEXITY], exp(loss));
    put(&m->latest_eval, m->names[METRIC_TOTAL_WEIGHTS], m->eval.denominator);
    put_aux(&m->latest_eval, &m->eval);
    write_sinks(engine, TRD_METRIC_EVAL, &m->latest_eval);
    m->eval = (trd__tally){0};
}

void trd__metrics_eval_result(const trd_engine *engine, trd_eval_result *result)
{
    const trd__metric_record *record = &engine->metrics.latest_eval;
    *result = (trd_eval_result){record->metrics[0].value, record->metrics[2].value}; /* as just put */
}

trd_status trd__metrics_flush_sinks(trd_engine *engine)
{
    for (int i = 0; i < engine->options.sink_count; i++) {
        const trd_metric_sink *sink = &engine->options.sinks[i];
        if (sink->flush && engine->metrics.begun) TRD_TRY(sink->flush(sink->user));
    }
    return TRD_OK;
}

trd_status trd__metrics_close(trd_engine *engine)
{
    trd_status first = TRD_OK;
    for (int i = 0; i < engine->options.sink_count; i++) {
        const trd_metric_sink *sink = &engine->options.sinks[i];
        trd_status status = sink->close ? sink->close(sink->user) : TRD_OK;
        if (first == TRD_OK) first = status;
    }
    engine->options.sink_count = 0;
    return first;
}
