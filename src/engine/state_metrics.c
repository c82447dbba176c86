/* Metrics in state.json: the history of finished steps and what the unfinished one has gathered so far.
 * Invariants: a number reads back to the bit, also one that is not finite; reading changes nothing of the
 * engine but its table of names, so a damaged text is refused before a restore has begun. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/internal.h"

/* As trd_aggregation counts. */
static const char *const aggregations[] = {"mean", "sum", "last", "min", "max"};
enum { AGGREGATIONS = sizeof aggregations / sizeof *aggregations };
static const char fold_text[] = "fold"; /* the caller's own */

/* JSON has no infinity and no NaN: they travel as text. */
static void put_number(trd__json_writer *w, const char *key, double value)
{
    if (isfinite(value))
        trd__json_put_f64(w, key, value);
    else
        trd__json_put_string(w, key, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

/* null is what earlier versions wrote for a number that was not finite. */
static trd_status as_number(trd__json value, double *number)
{
    const char *text;
    *number = NAN;
    if (!trd__json_exists(value) || trd__json_kind_of(value) == TRD__JSON_NULL) return TRD_OK;
    if (trd__json_kind_of(value) == TRD__JSON_NUMBER) return trd__json_as_f64(value, number);
    TRD_TRY(trd__json_as_string(value, &text));
    *number = strtod(text, NULL);
    return TRD_OK;
}

static trd_status get_number(trd__json object, const char *key, double *number)
{
    return as_number(trd__json_find(object, key), number);
}

/* An object on one line of an indented text: open_line gives the indent that close_line puts back. */
static int open_line(trd__json_writer *w)
{
    int indent = w->indent;
    trd__json_open_object(w);
    w->indent = 0;
    return indent;
}

static void close_line(trd__json_writer *w, int indent)
{
    trd__json_close(w);
    w->indent = indent;
}

/* Names are written without the run's prefix, which a later run may change. */
static const char *plain_name(const trd_engine *engine, const char *name)
{
    const char *prefix = engine->options.metrics_prefix;
    return name + (prefix ? strlen(prefix) : 0);
}

static void write_pairs(const trd__metrics *m, trd__json_writer *w)
{
    trd__json_write_key(w, "micro_batches");
    trd__json_open_array(w);
    for (int64_t i = 0; i < m->pair_count; i++) {
        int indent = open_line(w);
        put_number(w, "unreduced_sum", m->pairs[i].unreduced_sum);
        put_number(w, "denominator", m->pairs[i].denominator);
        close_line(w, indent);
    }
    trd__json_close(w);
}

static void write_aux(const trd_engine *engine, trd__json_writer *w)
{
    const trd__tally *tally = &engine->metrics.train;
    trd__json_write_key(w, "aux_metrics");
    trd__json_open_array(w);
    for (int i = 0; i < tally->aux_count; i++) {
        const trd__weighted_sum *aux = &tally->aux[i];
        int indent = open_line(w);
        trd__json_put_string(w, "name", plain_name(engine, aux->name));
        put_number(w, "sum", aux->sum);
        put_number(w, "denominator", aux->denominator);
        put_number(w, "eps", aux->eps);
        put_number(w, "min_denom", aux->min_denom);
        close_line(w, indent);
    }
    trd__json_close(w);
}

static void write_recorded(const trd_engine *engine, trd__json_writer *w)
{
    const trd__step_record *record = &engine->current;
    trd__json_write_key(w, "recorded_metrics");
    trd__json_open_array(w);
    for (int i = 0; i < record->host_count; i++) {
        const trd__host_metric *metric = &record->host[i];
        int indent = open_line(w);
        trd__json_put_string(w, "name", plain_name(engine, metric->name));
        trd__json_put_string(w, "aggregation",
                             metric->folded ? fold_text : aggregations[metric->aggregation]);
        trd__json_put_bool(w, "weighted", metric->weighted);
        put_number(w, "value", metric->value);
        put_number(w, "denominator", metric->denominator);
        put_number(w, "eps", metric->eps);
        put_number(w, "min_denom", metric->min_denom);
        trd__json_put_i64(w, "count", metric->count);
        close_line(w, indent);
    }
    trd__json_close(w);
}

static void write_history(const trd_engine *engine, trd__json_writer *w)
{
    const trd__metrics *m = &engine->metrics;
    trd__json_write_key(w, "metrics_history");
    trd__json_open_array(w);
    for (int i = 0; i < m->history_count; i++) {
        const trd__metric_record *record = &m->history[(m->history_first + i) % TRD__HISTORY];
        int indent = open_line(w);
        trd__json_put_i64(w, "step", record->step);
        trd__json_write_key(w, "metrics");
        trd__json_open_object(w);
        for (int k = 0; k < record->count; k++)
            put_number(w, plain_name(engine, record->metrics[k].name), record->metrics[k].value);
        trd__json_close(w);
        close_line(w, indent);
    }
    trd__json_close(w);
}

void trd__state_write_metrics(const trd_engine *engine, trd__json_writer *w)
{
    if (engine->micro_step) {
        put_number(w, "accumulated_denominator", engine->metrics.train.denominator);
        put_number(w, "loss_eps", engine->step_eps);
        put_number(w, "loss_min_denom", engine->step_min_denom);
        write_pairs(&engine->metrics, w);
        write_aux(engine, w);
        trd__json_put_i64(w, "tokens", (int64_t)engine->current.tokens);
        put_number(w, "flops", engine->current.flops);
    }
    if (engine->current.host_count)
        write_recorded(engine, w); /* also what came before the first micro-batch */
    write_history(engine, w);
}

static trd_status read_pairs(trd__json root, trd__saved_metrics *s)
{
    trd__json list = trd__json_find(root, "micro_batches");
    s->pair_count = (int64_t)trd__json_count(list);
    s->pairs = trd__calloc((size_t)s->pair_count + 1, sizeof *s->pairs);
    if (!s->pairs) return TRD_NO_MEMORY;
    trd__micro_pair *pair = s->pairs;
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v), pair++) {
        TRD_TRY(get_number(v, "unreduced_sum", &pair->unreduced_sum));
        TRD_TRY(get_number(v, "denominator", &pair->denominator));
    }
    return TRD_OK;
}

/* The denominator of the accumulated gradients, rebuilt from the micro-batches where the field is missing. */
static trd_status read_denominator(trd__json root, int64_t micro_step, trd__saved_metrics *s)
{
    if (trd__json_exists(trd__json_find(root, "accumulated_denominator")))
        return get_number(root, "accumulated_denominator", &s->denominator);
    if (s->pair_count != micro_step)
        return trd__json_fail(root, TRD_CORRUPT,
                              "inside a step, accumulated_denominator is missing and cannot be rebuilt: "
                              "expected %lld micro_batches, found %lld",
                              (long long)micro_step, (long long)s->pair_count);
    for (int64_t i = 0; i < s->pair_count; i++) s->denominator += s->pairs[i].denominator;
    return TRD_OK;
}

static trd_status read_name(trd_engine *engine, trd__json object, const char **name)
{
    const char *text;
    TRD_TRY(trd__json_get_string(object, "name", &text));
    *name = trd__metrics_name(engine, text);
    return *name ? TRD_OK : TRD_INVALID_ARGUMENT; /* more names than an engine has room for */
}

/* The tally of the micro-batches that are accumulated, as it was. */
static trd_status read_tally(trd_engine *engine, trd__json root, trd__saved_metrics *s)
{
    const trd__loss_info info = {.eps = s->eps, .min_denom = s->min_denom};
    for (int64_t i = 0; i < s->pair_count; i++) {
        const double results[TRD__RESULT_COUNT] = {[TRD__RESULT_LOSS] = s->pairs[i].unreduced_sum,
                                                   [TRD__RESULT_DENOMINATOR] = s->pairs[i].denominator};
        trd__tally_add(&s->tally, &info, results);
    }
    trd__json list = trd__json_find(root, "aux_metrics");
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v)) {
        trd__weighted_sum aux;
        TRD_TRY(read_name(engine, v, &aux.name));
        TRD_TRY(get_number(v, "sum", &aux.sum));
        TRD_TRY(get_number(v, "denominator", &aux.denominator));
        TRD_TRY(get_number(v, "eps", &aux.eps));
        TRD_TRY(get_number(v, "min_denom", &aux.min_denom));
        if (s->tally.aux_count < TRD_MAX_AUX) s->tally.aux[s->tally.aux_count++] = aux;
    }
    return TRD_OK;
}

static trd_status read_middle(trd_engine *engine, trd__json root, int64_t micro_step, trd__saved_metrics *s)
{
    TRD_TRY(get_number(root, "loss_eps", &s->eps));
    TRD_TRY(get_number(root, "loss_min_denom", &s->min_denom));
    TRD_TRY(trd__json_opt_i64(root, "tokens", &s->tokens));
    TRD_TRY(get_number(root, "flops", &s->flops));
    TRD_TRY(read_pairs(root, s));
    TRD_TRY(read_denominator(root, micro_step, s));
    TRD_TRY(trd__metrics_reserve(engine, s->pair_count));
    return read_tally(engine, root, s);
}

static trd_status read_aggregation(trd__json object, trd__host_metric *metric)
{
    const char *text;
    TRD_TRY(trd__json_get_string(object, "aggregation", &text));
    metric->folded = strcmp(text, fold_text) == 0;
    int known = metric->folded ? TRD_AGGREGATE_LAST : 0;
    while (!metric->folded && known < AGGREGATIONS && strcmp(text, aggregations[known]) != 0) known++;
    metric->aggregation = (trd_aggregation)known;
    if (known < AGGREGATIONS) return TRD_OK;
    return trd__json_fail(object, TRD_CORRUPT,
                          "aggregation expected mean, sum, last, min, max or fold, found %s", text);
}

static trd_status read_recorded(trd_engine *engine, trd__json root, trd__saved_metrics *s)
{
    trd__json list = trd__json_find(root, "recorded_metrics");
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v)) {
        trd__host_metric metric = {.count = 0};
        int64_t count;
        TRD_TRY(read_name(engine, v, &metric.name));
        TRD_TRY(read_aggregation(v, &metric));
        TRD_TRY(trd__json_get_bool(v, "weighted", &metric.weighted));
        TRD_TRY(get_number(v, "value", &metric.value));
        TRD_TRY(get_number(v, "denominator", &metric.denominator));
        TRD_TRY(get_number(v, "eps", &metric.eps));
        TRD_TRY(get_number(v, "min_denom", &metric.min_denom));
        TRD_TRY(trd__json_get_i64(v, "count", &count));
        metric.count = (int)count;
        if (s->recorded_count < TRD__HOST_METRICS) s->recorded[s->recorded_count++] = metric;
    }
    return TRD_OK;
}

static trd_status read_history(trd_engine *engine, trd__json root, trd__saved_metrics *s)
{
    trd__json list = trd__json_find(root, "metrics_history");
    s->history = trd__calloc(trd__json_count(list) + 1, sizeof *s->history);
    if (!s->history) return TRD_NO_MEMORY;
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v)) {
        trd__metric_record *record = &s->history[s->history_count++];
        TRD_TRY(trd__json_get_i64(v, "step", &record->step));
        trd__json metrics = trd__json_find(v, "metrics");
        for (trd__json x = trd__json_first(metrics); trd__json_exists(x); x = trd__json_next(x)) {
            trd_metric metric = {trd__metrics_name(engine, trd__json_key(x)), 0};
            if (!metric.name) return TRD_NO_MEMORY;
            TRD_TRY(as_number(x, &metric.value));
            if (record->count < TRD__STEP_METRICS) record->metrics[record->count++] = metric;
        }
    }
    return TRD_OK;
}

trd_status trd__state_read_metrics(trd_engine *engine, trd__json root, int64_t micro_step,
                                   trd__saved_metrics *s)
{
    if (micro_step) TRD_TRY(read_middle(engine, root, micro_step, s));
    TRD_TRY(read_recorded(engine, root, s));
    return read_history(engine, root, s);
}

void trd__state_apply_metrics(trd_engine *engine, const trd__saved_metrics *s)
{
    trd__metrics *m = &engine->metrics;
    m->train = s->tally;
    m->pair_count = s->pair_count; /* room was made when they were read */
    if (s->pair_count) memcpy(m->pairs, s->pairs, (size_t)s->pair_count * sizeof *s->pairs);
    m->history_first = m->history_count = 0;
    m->latest.step = -1;
    for (int i = 0; i < s->history_count; i++) {
        m->latest = s->history[i];
        trd__metrics_history_add(engine, &m->latest);
    }
    m->history_dropped = 0;
    engine->step_eps = s->eps;
    engine->step_min_denom = s->min_denom;
    memset(&engine->current, 0, sizeof engine->current);
    engine->current.tokens = (uint64_t)s->tokens;
    engine->current.flops = s->flops;
    engine->current.host_count = s->recorded_count;
    memcpy(engine->current.host, s->recorded, sizeof s->recorded);
}

void trd__saved_metrics_free(trd__saved_metrics *s)
{
    trd__free(s->pairs);
    trd__free(s->history);
}
