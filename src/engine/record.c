/* The caller's side of metrics: recording host values into the current step and reading records back. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "engine/internal.h"

enum { MOST_LEVELS = 8, LONGEST_NAME = 256 };

static void aggregate(trd__host_metric *metric, double value)
{
    switch (metric->aggregation) {
    case TRD_AGGREGATE_MEAN:
    case TRD_AGGREGATE_SUM:
        metric->value += value;
        break;
    case TRD_AGGREGATE_LAST:
        metric->value = value;
        break;
    case TRD_AGGREGATE_MIN:
        metric->value = metric->count ? fmin(metric->value, value) : value;
        break;
    case TRD_AGGREGATE_MAX:
        metric->value = metric->count ? fmax(metric->value, value) : value;
        break;
    }
}

/* The current step's record of a name, made on first use; how it is aggregated may not change within a step.
 */
static trd_status find(trd_engine *engine, const char *name, const trd__host_metric *like,
                       trd__host_metric **out)
{
    const char *full;
    TRD_TRY(trd__metrics_name_of_caller(engine, name, &full));
    trd__step_record *record = &engine->current;
    for (int i = 0; i < record->host_count; i++) {
        trd__host_metric *metric = *out = &record->host[i];
        if (metric->name != full) continue;
        if (metric->folded && !metric->fold)
            metric->fold = like->fold; /* a function is not in a checkpoint */
        if (metric->aggregation == like->aggregation && metric->weighted == like->weighted &&
            metric->folded == like->folded && metric->fold == like->fold)
            return TRD_OK;
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "recording \"%s\": expected the kind and aggregation it was first recorded with",
                         name);
    }
    if (record->host_count == TRD__HOST_METRICS)
        return trd__fail(TRD_INVALID_ARGUMENT, "recording \"%s\": expected at most %d metrics a step", name,
                         TRD__HOST_METRICS);
    *out = &record->host[record->host_count++];
    **out = *like;
    (*out)->name = full;
    return TRD_OK;
}

/* A value inside a step is in the checkpoint of that step. */
static void note_recorded(trd_engine *engine)
{
    if (engine->micro_step) engine->dirty = true;
}

static trd_status record_one(trd_engine *engine, const char *name, const trd_recorded *value,
                             trd_aggregation aggregation)
{
    bool weighted = value->kind == TRD_RECORDED_WEIGHTED;
    bool summed = weighted && aggregation == TRD_AGGREGATE_MEAN; /* divided once, at the end */
    trd__host_metric *metric,
        like = {
            .aggregation = aggregation, .weighted = summed, .eps = value->eps, .min_denom = value->min_denom};
    TRD_TRY(find(engine, name, &like, &metric));
    double scale =
        weighted && !summed ? trd_compute_scale(value->denominator, value->eps, value->min_denom) : 1;
    aggregate(metric, value->value * scale);
    metric->denominator += summed ? value->denominator : 0;
    metric->count++;
    note_recorded(engine);
    return TRD_OK;
}

/* Records every number in value under its joined name. */
static trd_status record_value(trd_engine *engine, const char *name, const trd_recorded *value,
                               trd_aggregation aggregation, int depth)
{
    if (value->kind == TRD_RECORDED_NOTHING) return TRD_OK;
    if (value->kind == TRD_RECORDED_NUMBER || value->kind == TRD_RECORDED_WEIGHTED)
        return record_one(engine, name, value, aggregation);
    if (value->kind != TRD_RECORDED_GROUP)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "recording \"%s\": expected a trd_recorded_kind, found the number %d", name,
                         (int)value->kind);
    if (depth == MOST_LEVELS)
        return trd__fail(TRD_INVALID_ARGUMENT, "recording \"%s\": expected at most %d levels of groups", name,
                         MOST_LEVELS);
    for (int i = 0; i < value->member_count; i++) {
        const trd_recorded *member = &value->members[i];
        char joined[LONGEST_NAME];
        int length = snprintf(joined, sizeof joined, "%s/%s", name, member->name ? member->name : "");
        if (!member->name || !*member->name || length >= (int)sizeof joined)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "recording \"%s\": expected a name of at most %d characters for member %d", name,
                             LONGEST_NAME, i);
        TRD_TRY(record_value(engine, joined, member, aggregation, depth + 1));
    }
    return TRD_OK;
}

trd_status trd_engine_record_metrics(trd_engine *engine, const char *name, trd_recorded value,
                                     trd_aggregation aggregation)
{
    TRD_TRY(trd__engine_check(engine));
    if ((unsigned)aggregation > TRD_AGGREGATE_MAX)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "recording a metric: expected a trd_aggregation, found the number %d",
                         (int)aggregation);
    if (!name || !*name)
        return trd__fail(TRD_INVALID_ARGUMENT, "recording a metric: expected a name, found none");
    const trd__step_record before = engine->current;
    trd_status status = record_value(engine, name, &value, aggregation, 0);
    if (status != TRD_OK) engine->current = before; /* a refused group records nothing */
    return status;
}

trd_status trd_engine_record_folded(trd_engine *engine, const char *name, double value,
                                    trd_fold_function fold, void *user)
{
    TRD_TRY(trd__engine_check(engine));
    if (!fold)
        return trd__fail(TRD_INVALID_ARGUMENT, "recording a metric: expected a fold function, found NULL");
    trd__host_metric *metric, like = {.aggregation = TRD_AGGREGATE_LAST, .folded = true, .fold = fold};
    TRD_TRY(find(engine, name, &like, &metric));
    metric->value = fold(user, metric->value, value, metric->count++);
    note_recorded(engine);
    return TRD_OK;
}

static trd_step_metrics view_of(const trd__metric_record *record)
{
    return (trd_step_metrics){record->step, record->metrics, record->step < 0 ? 0 : record->count};
}

trd_status trd_engine_get_metrics(trd_engine *engine, bool clear, trd_step_metrics *metrics)
{
    TRD_TRY(trd__engine_check(engine));
    TRD_TRY(trd__queue_flush(engine));
    *metrics = view_of(&engine->metrics.latest);
    if (clear) engine->metrics.latest.step = -1;
    return TRD_OK;
}

trd_status trd_engine_get_eval_metrics(trd_engine *engine, trd_step_metrics *metrics)
{
    TRD_TRY(trd__engine_check(engine));
    *metrics = view_of(&engine->metrics.latest_eval);
    return TRD_OK;
}

trd_status trd_engine_get_metrics_history(trd_engine *engine, bool clear, const trd_step_metrics **steps,
                                          int *count)
{
    trd__metrics *m = &engine->metrics;
    TRD_TRY(trd__engine_check(engine));
    TRD_TRY(trd__queue_flush(engine));
    if (m->history_dropped)
        trd__log(&engine->options.log, TRD_LOG_WARNING,
                 "metrics history: %lld older steps were dropped, the newest %d are kept",
                 (long long)m->history_dropped, TRD__HISTORY);
    m->history_dropped = 0;
    for (int i = 0; i < m->history_count; i++)
        m->view[i] = view_of(&m->history[(m->history_first + i) % TRD__HISTORY]);
    *steps = m->view;
    *count = m->history_count;
    if (clear) m->history_first = m->history_count = 0;
    return TRD_OK;
}
