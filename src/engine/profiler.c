/* Windows of a profile. A window opens before the micro-batch it begins with and closes before the first
 * fwd_bwd, train_step or evaluation behind its last one and that one's update: then what is queued is waited
 * for and the tracks are written to a file. Invariants: windows are counted in micro-batches accepted by this
 * engine; between windows nothing is recorded; no result depends on them. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "data/loader.h"
#include "engine/internal.h"
#include "engine/trace_file.h"

struct trd__profiler {
    trd__recorder *recorder;
    trd__track *host;
    bool open;
    int64_t first;  /* micro-batches before the open window, or the newest */
    int64_t number; /* the same, counted since the run began: a resumed run goes on with its names */
    uint64_t begin_ns;
};

static const trd__label labels[TRD__SPAN_COUNT] = {
#define SPAN_LABEL(id, text) [TRD__SPAN_##id] = {.category = "host", .name = text},
    TRD__SPAN_LIST(SPAN_LABEL)
#undef SPAN_LABEL
};

static trd_status check_options(const trd_profiler_options *o)
{
    if (o->steps >= 1 && o->skip_first_steps >= 0 && (o->period <= 0 || o->period >= o->steps)) return TRD_OK;
    return trd__fail(
        TRD_INVALID_ARGUMENT,
        "creating an engine: the profiler expected skip_first_n_steps_for_profiler of 0 or more, "
        "profiler_steps of 1 or more and profile_periodically_period of at least that (or none), "
        "found %lld, %lld and %lld",
        (long long)o->skip_first_steps, (long long)o->steps, (long long)o->period);
}

trd_status trd__profiler_create(trd_engine *engine)
{
    const trd_profiler_options *o = &engine->options.profiler;
    if (!o->directory) return TRD_OK;
    TRD_TRY(check_options(o));
    TRD_TRY(trd__check_place(o->directory, true));
    trd__profiler *profiler = trd__calloc(1, sizeof *profiler);
    if (!profiler) return TRD_NO_MEMORY;
    engine->profiler = profiler;
    TRD_TRY(trd__recorder_create(&profiler->recorder));
    return trd__recorder_track(profiler->recorder, "host", false, &profiler->host);
}

void trd__profiler_free(trd_engine *engine)
{
    if (!engine->profiler) return;
    trd__recorder_free(engine->profiler->recorder);
    trd__free(engine->profiler);
    engine->profiler = NULL;
}

trd__recorder *trd__profiler_recorder(const trd_engine *engine)
{
    return engine->profiler ? engine->profiler->recorder : NULL;
}

static bool is_complete(const trd_engine *engine)
{
    return (int64_t)engine->stats.micro_batches >= engine->profiler->first + engine->options.profiler.steps;
}

static bool is_due(const trd_engine *engine)
{
    const trd_profiler_options *o = &engine->options.profiler;
    int64_t past = (int64_t)engine->stats.micro_batches - o->skip_first_steps;
    return past == 0 || (past > 0 && o->period > 0 && past % o->period == 0);
}

/* Waits for what the window queued and writes it. A failure is told by the next call. */
static void close_window(trd_engine *engine)
{
    trd__profiler *profiler = engine->profiler;
    trd__trace_window window = {.first = profiler->number,
                                .count = (int64_t)engine->stats.micro_batches - profiler->first,
                                .begin_ns = profiler->begin_ns,
                                .workers = engine->backend->table->stats(engine->backend).workers};
    profiler->open = false;
    trd_status status = engine->backend->table->drain(engine->backend);
    window.end_ns = trd__now_ns();
    trd__recorder_switch(profiler->recorder, false);
    if (status != TRD_OK) return; /* the failure of the device is kept and told elsewhere */
    uint64_t dropped;
    status = trd__trace_file_write(profiler->recorder, &window, engine->options.profiler.directory, &dropped);
    if (status != TRD_OK) trd__fail_in(status, "writing a profile");
    trd__engine_defer(engine, status);
    if (dropped)
        trd__log(&engine->options.log, TRD_LOG_WARNING,
                 "profiler: %llu spans found no room; give a smaller profiler_steps",
                 (unsigned long long)dropped);
}

void trd__profiler_settle(trd_engine *engine)
{
    if (engine->profiler && engine->profiler->open && is_complete(engine)) close_window(engine);
}

void trd__profiler_micro_batch(trd_engine *engine)
{
    trd__profiler *profiler = engine->profiler;
    if (!profiler) return;
    trd__profiler_settle(engine);
    if (profiler->open || engine->sticky != TRD_OK || !is_due(engine)) return;
    trd__span late;
    for (trd__track *t = profiler->recorder->tracks; t; t = t->next)
        while (trd__track_take(t, &late)) continue; /* what a thread had begun when the last window closed */
    profiler->open = true;
    profiler->first = (int64_t)engine->stats.micro_batches;
    profiler->number = engine->total_micro_steps;
    profiler->begin_ns = trd__now_ns();
    trd__recorder_switch(profiler->recorder, true);
}

void trd__profiler_close(trd_engine *engine)
{
    if (engine->profiler && engine->profiler->open) close_window(engine);
}

void trd__profiler_span(trd_engine *engine, trd__span_kind kind, uint64_t begin_ns)
{
    const trd__profiler *profiler = engine->profiler;
    if (!profiler || !profiler->open) return;
    trd__track_add(profiler->host, &labels[kind], begin_ns, trd__now_ns(), engine->total_micro_steps);
}

trd_status trd__profiler_watch(trd_engine *engine, trd_loader *loader, const char *name)
{
    trd__track *track;
    if (!engine->profiler) return TRD_OK;
    TRD_TRY(trd__recorder_track(engine->profiler->recorder, name, false, &track));
    trd__loader_record(loader, engine->profiler->recorder, track);
    return TRD_OK;
}

void trd__profiler_unwatch(trd_engine *engine, trd_loader *loader)
{
    if (engine->profiler) trd__loader_record(loader, NULL, NULL);
}
