/* The caller's side of metrics: recording host values into the current step and reading records back. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "engine/internal.h"

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
        metric->value = fmin(metric->value, value);
        break;
    case TRD_AGGREGATE_MAX:
        metric->value = fmax(metric->value, value);
        break;
    }
    metric->count++;
}

trd_status trd_engine_record_metrics(trd_engine *engine, const char *name, double value,
                                     trd_aggregation aggregation)
{
    TRD_TRY(trd__engine_check(engine));
    if (!name || !*name)
        return trd__fail(TRD_INVALID_ARGUMENT, "recording a metric: expected a name, found none");
    const char *full = trd__metrics_name(engine, name);
    if (!full) return TRD_INVALID_ARGUMENT;
    trd__step_record *record = &engine->current;
    for (int i = 0; i < record->host_count; i++) {
        trd__host_metric *metric = &record->host[i];
        if (metric->name != full) continue;
        if (metric->aggregation != aggregation)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "recording \"%s\": expected the aggregation it was first recorded with", name);
        aggregate(metric, value);
        return TRD_OK;
    }
    if (record->host_count == TRD__HOST_METRICS)
        return trd__fail(TRD_INVALID_ARGUMENT, "recording \"%s\": expected at most %d metrics a step", name,
                         TRD__HOST_METRICS);
    record->host[record->host_count++] = (trd__host_metric){full, aggregation, value, 1};
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
