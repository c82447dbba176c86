/* The queue of dispatched runs and the throttler. Three counters run over one ring of flights: collected <=
 * finished <= dispatched. At most max_inflight runs are not finished; a flight is reused only once its
 * numbers are collected. Invariant: numbers are collected in dispatch order, so metrics never depend on
 * timing. The queue holds tickets and scalars, never the train state. */
#include <string.h>

#include "base/clock.h"
#include "engine/internal.h"

static trd__flight *flight_at(trd_engine *engine, uint64_t n)
{
    return &engine->flights[n % (uint64_t)engine->flight_count];
}

static trd_status note_finished(trd_engine *engine, trd__flight *flight)
{
    if (!flight->done_ns) flight->done_ns = trd__now_ns();
    engine->finished++;
    return engine->diagnostics ? trd__diagnostics_finished(engine, flight) : TRD_OK;
}

static trd_status wait_oldest(trd_engine *engine)
{
    trd__flight *flight = flight_at(engine, engine->finished);
    uint64_t begin = trd__now_ns();
    trd_status status = engine->backend->table->event_wait(engine->backend, flight->event);
    engine->waited_ns += trd__now_ns() - begin;
    trd__profiler_span(engine, TRD__SPAN_WAIT, begin);
    if (status != TRD_OK) return trd__engine_fail(engine, status, "running a queued program");
    return note_finished(engine, flight);
}

/* A forward graph's result is its caller's, and a merge of gradients has none. */
static bool has_numbers(const trd_engine *engine, trd__program_kind kind)
{
    return kind != TRD__PROGRAM_FORWARD && trd__program_access(engine, kind, TRD__ROLE_RESULTS) != 0;
}

static trd_status read_results(trd_engine *engine, const trd__flight *flight, double *results)
{
    const trd__backend_table *table = engine->backend->table;
    trd__program_kind kind = flight->compiled->kind;
    bool loss = kind != TRD__PROGRAM_UPDATE, update = !loss || kind == TRD__PROGRAM_TRAIN_STEP;
    int end = TRD__RESULT_AUX + 2 * (loss ? flight->compiled->loss.aux_count : 0);
    for (int i = 0; i < end; i++) {
        bool of_loss = i < TRD__RESULT_NORM || i >= TRD__RESULT_AUX;
        if (of_loss ? loss : update)
            TRD_TRY(table->set_read(engine->backend, flight->results, i, &results[i]));
    }
    return TRD_OK;
}

static trd_status collect_one(trd_engine *engine)
{
    trd__flight *flight = flight_at(engine, engine->collected);
    double results[TRD__RESULT_COUNT] = {0};
    if (engine->finished == engine->collected) TRD_TRY(wait_oldest(engine));
    if (flight->compiled && has_numbers(engine, flight->compiled->kind)) {
        trd_status status = read_results(engine, flight, results);
        if (status != TRD_OK) return trd__engine_fail(engine, status, "reading results");
        TRD_TRY(trd__metrics_collect(engine, flight, results));
    }
    engine->collected++;
    return TRD_OK;
}

trd_status trd__queue_admit(trd_engine *engine)
{
    while (engine->finished < engine->dispatched &&
           engine->backend->table->event_ready(engine->backend, flight_at(engine, engine->finished)->event))
        TRD_TRY(note_finished(engine, flight_at(engine, engine->finished)));
    while (engine->dispatched - engine->finished >= (uint64_t)engine->max_inflight)
        TRD_TRY(wait_oldest(engine));
    while (engine->dispatched - engine->collected >= (uint64_t)engine->flight_count)
        TRD_TRY(collect_one(engine));
    return TRD_OK;
}

/* The sets a program binds, in the order of its slots. */
static void bind_sets(trd_engine *engine, const trd__compiled *compiled, trd__set *inputs, trd__set *scalars,
                      trd__set *results, trd__set **sets)
{
    bool apart = engine->contribution && compiled->kind == TRD__PROGRAM_FIRST;
    trd__set *const all[TRD__ROLE_COUNT] = {
        [TRD__ROLE_PARAMS] = engine->state[TRD__ROLE_PARAMS],
        [TRD__ROLE_OPTIMIZER] = engine->state[TRD__ROLE_OPTIMIZER],
        [TRD__ROLE_GRADIENTS] = apart ? engine->contribution : engine->state[TRD__ROLE_GRADIENTS],
        [TRD__ROLE_MODEL_STATE] = engine->state[TRD__ROLE_MODEL_STATE],
        [TRD__ROLE_INPUTS] = inputs,
        [TRD__ROLE_SCALARS] = scalars,
        [TRD__ROLE_RESULTS] = results,
        [TRD__ROLE_CONTRIBUTION] = engine->contribution};
    int count = 0;
    for (int role = 0; role < TRD__ROLE_COUNT; role++) {
        trd__access access = trd__program_access(engine, compiled->kind, role);
        if (!access) continue;
        sets[count++] = all[role];
    }
}

trd_status trd__queue_run(trd_engine *engine, const trd__compiled *compiled, trd__set *inputs,
                          trd__set *scalars, trd__set *results, trd__flight **flight)
{
    trd__flight *f = flight_at(engine, engine->dispatched);
    trd__set *sets[TRD__MAX_SLOTS];
    if (engine->diagnostics) TRD_TRY(trd__diagnostics_before_run(engine));
    bind_sets(engine, compiled, inputs, scalars, results ? results : f->results, sets);
    f->compiled = compiled;
    f->done_ns = 0;
    trd_status status =
        engine->backend->table->execute(engine->backend, compiled->executable, sets, &f->event);
    if (status != TRD_OK) return trd__engine_fail(engine, status, "queueing a program");
    engine->dispatched++;
    *flight = f;
    return engine->diagnostics ? trd__diagnostics_after_run(engine, f) : TRD_OK;
}

trd_status trd__queue_collect_ready(trd_engine *engine)
{
    if (engine->options.diagnostics[TRD_DIAGNOSTIC_METRICS_WRITE]) return trd__queue_flush(engine);
    while (engine->collected + 1 < engine->dispatched) {
        trd__flight *flight = flight_at(engine, engine->collected);
        bool done = engine->collected < engine->finished ||
                    engine->backend->table->event_ready(engine->backend, flight->event);
        if (!done) return TRD_OK;
        TRD_TRY(collect_one(engine));
    }
    return TRD_OK;
}

trd_status trd__queue_drain(trd_engine *engine)
{
    while (engine->finished < engine->dispatched) TRD_TRY(wait_oldest(engine));
    return TRD_OK;
}

trd_status trd__queue_flush(trd_engine *engine)
{
    while (engine->collected < engine->dispatched) TRD_TRY(collect_one(engine));
    return TRD_OK;
}

void trd__queue_abandon(trd_engine *engine)
{
    engine->finished = engine->collected = engine->dispatched;
}
