/* Saving: a host snapshot of the state is taken between dispatches, then written by the caller or beside
 * training by one thread. Invariants: at most one save runs at a time; the thread touches its snapshot and
 * the store only; the run folder is locked for as long as an engine that may save lives; the snapshot's
 * memory is kept from save to save, so that its pages are made once. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "engine/internal.h"

typedef struct snapshot {
    trd__store_name name;
    trd_array *arrays;
    size_t count;
    size_t bytes; /* of the arrays, each aligned */
    trd__json_writer json;
    int abandoned;      /* newer checkpoints that were removed */
    uint64_t waited_ns; /* the caller's time: for the earlier save, */
    uint64_t held_ns;   /* and with the copy */
    uint64_t write_begin_ns, write_end_ns;
    trd_status status;
    char message[1024];
} snapshot;

struct trd__saver {
    trd__store *store;
    int lock;     /* file descriptor, -1: none */
    void *memory; /* of the snapshot */
    size_t memory_bytes;
    pthread_t page_thread; /* makes the memory's pages before the first save */
    bool making_pages;
    atomic_bool enough_pages;
    size_t keep;
    int64_t keep_period;
    bool own; /* the folder's checkpoints are of this run: it was empty, or one of them was restored */
    pthread_t thread;
    bool running;
    atomic_bool done;
    snapshot job;
    trd__recorder *recorder; /* NULL: none */
    trd__track *track;       /* written by the thread */
};

static void *make_pages(void *context)
{
    enum { PAGE = 4096 };
    trd__saver *saver = context;
    volatile char *memory = saver->memory;
    for (size_t at = 0; at < saver->memory_bytes && !atomic_load(&saver->enough_pages); at += PAGE)
        memory[at] = 0;
    return NULL;
}

static void stop_making_pages(trd__saver *saver)
{
    if (!saver->making_pages) return;
    atomic_store(&saver->enough_pages, true);
    pthread_join(saver->page_thread, NULL);
    saver->making_pages = false;
}

static trd_status reserve(trd__saver *saver, size_t bytes)
{
    stop_making_pages(saver);
    if (bytes <= saver->memory_bytes) return TRD_OK;
    TRD_TRY(trd__memory_check(bytes));
    trd__unmap(saver->memory, saver->memory_bytes);
    saver->memory_bytes = 0;
    saver->memory = trd__map(bytes);
    if (!saver->memory) return TRD_NO_MEMORY;
    saver->memory_bytes = bytes;
    return TRD_OK;
}

trd_status trd__saver_create(trd_engine *engine)
{
    const char *folder = engine->options.checkpoint_directory;
    TRD_TRY(trd__state_check_text("creating an engine: fingerprint", engine->options.fingerprint));
    trd__saver *saver = trd__calloc(1, sizeof *saver);
    if (!saver) return TRD_NO_MEMORY;
    saver->lock = -1;
    saver->keep = (size_t)engine->options.max_num_checkpoints_to_keep;
    saver->keep_period = engine->options.keep_period;
    engine->saver = saver;
    saver->recorder = trd__profiler_recorder(engine);
    if (saver->recorder) TRD_TRY(trd__recorder_track(saver->recorder, "checkpoint", false, &saver->track));
    if (engine->options.read_only_checkpoints)
        return trd__store_view(folder, &engine->options.log, &saver->store);
    TRD_TRY(trd__make_directories(folder));
    TRD_TRY(trd__store_lock(folder, &saver->lock));
    TRD_TRY(trd__store_open(folder, &engine->options.log, &saver->store));
    trd__store_name newest;
    TRD_TRY(trd__store_newest_name(saver->store, &newest));
    saver->own = newest.step < 0;
    return TRD_OK;
}

static void snapshot_free(snapshot *s)
{
    trd__json_writer_free(&s->json);
    trd__free(s->arrays);
    *s = (snapshot){.status = TRD_OK};
}

/* Runs beside training: everything it needs is in the snapshot. */
static void write_job(trd__saver *saver)
{
    snapshot *s = &saver->job;
    s->write_begin_ns = trd__now_ns();
    s->status =
        trd__store_save(saver->store, s->name, s->arrays, s->count, s->json.text, s->json.bytes, NULL);
    if (s->status == TRD_OK) s->status = trd__store_remove_after(saver->store, s->name, &s->abandoned);
    if (s->status == TRD_OK) s->status = trd__store_prune(saver->store, saver->keep, saver->keep_period);
    if (s->status != TRD_OK) snprintf(s->message, sizeof s->message, "%s", trd_error_message());
    s->write_end_ns = trd__now_ns();
}

static void *run_job(void *context)
{
    static const trd__label label = {.category = "checkpoint", .name = "write a checkpoint"};
    trd__saver *saver = context;
    uint64_t begin = trd__recorder_begin(saver->recorder);
    write_job(saver);
    if (begin) trd__track_add(saver->track, &label, begin, trd__now_ns(), saver->job.name.step);
    atomic_store(&saver->done, true);
    return NULL;
}

/* Takes over what the written job left. */
static trd_status finish_job(trd_engine *engine)
{
    snapshot *s = &engine->saver->job;
    char name[TRD__STORE_NAME_TEXT];
    trd_status status = s->status;
    trd__store_name_text(s->name, name);
    if (status != TRD_OK) {
        trd__fail(status, "saving checkpoint %s: %s", name, s->message);
        engine->dirty = true; /* what it should have held is still unsaved */
    } else {
        trd__log(&engine->options.log, TRD_LOG_INFO,
                 "saved checkpoint %s: %.1f MB, training held for %.2f ms (%.2f ms by the save before), "
                 "written in "
                 "%.1f ms",
                 name, (double)s->bytes * 1e-6, (double)s->held_ns * 1e-6, (double)s->waited_ns * 1e-6,
                 (double)(s->write_end_ns - s->write_begin_ns) * 1e-6);
    }
    if (s->abandoned)
        trd__log(&engine->options.log, TRD_LOG_WARNING,
                 "checkpoint %s replaces %d of later steps: the run went on from an earlier one", name,
                 s->abandoned);
    snapshot_free(s);
    return status;
}

trd_status trd__saver_wait(trd_engine *engine)
{
    trd__saver *saver = engine->saver;
    if (!saver->running) return TRD_OK;
    pthread_join(saver->thread, NULL);
    saver->running = false;
    return finish_job(engine);
}

void trd__saver_poll(trd_engine *engine)
{
    if (engine->saver->running && atomic_load(&engine->saver->done))
        trd__engine_defer(engine, trd__saver_wait(engine));
}

void trd__saver_free(trd_engine *engine)
{
    trd__saver *saver = engine->saver;
    if (!saver) return;
    trd__saver_wait(engine);
    trd__store_close(saver->store);
    if (saver->lock >= 0) close(saver->lock);
    stop_making_pages(saver);
    trd__unmap(saver->memory, saver->memory_bytes);
    trd__free(saver);
    engine->saver = NULL;
}

/* The sums behind the gradients travel in the JSON. */
static int saved_pieces(const trd_engine *engine, trd__role role)
{
    return trd__saved_pieces(engine, role, engine->micro_step > 0);
}

const char *trd__saved_name(trd__role role, const char *entry, char *text, size_t bytes)
{
    static const char *const prefixes[TRD__STATE_ROLES] = {"", "optimizer/", "gradients/", "model_state/"};
    snprintf(text, bytes, "%s%s", prefixes[role], entry);
    return text;
}

/* Names and types of everything; names lie in the arena. */
static trd_status list_arrays(trd_engine *engine, snapshot *s)
{
    size_t count = 0;
    char text[512];
    for (trd__role role = 0; role < TRD__STATE_ROLES; role++) count += (size_t)saved_pieces(engine, role);
    s->arrays = trd__calloc(count, sizeof *s->arrays);
    if (!s->arrays) return TRD_NO_MEMORY;
    for (trd__role role = 0; role < TRD__STATE_ROLES; role++)
        for (int i = 0; i < saved_pieces(engine, role); i++) {
            const trd__piece *piece = &engine->pieces[role].items[i];
            trd_array *array = &s->arrays[s->count++];
            *array = (trd_array){
                .name = engine->saved_names[role][i], .dtype = piece->dtype, .shape = piece->shape};
            if (array->name) continue;
            trd__saved_name(role, piece->name, text, sizeof text);
            array->name = engine->saved_names[role][i] = trd__arena_strdup(engine->arena, text);
            if (!array->name) return TRD_NO_MEMORY;
        }
    return TRD_OK;
}

static trd_status copy_state(trd_engine *engine, snapshot *s)
{
    s->bytes = (size_t)trd__snapshot_bytes(engine);
    TRD_TRY(reserve(engine->saver, s->bytes));
    char *at = engine->saver->memory;
    trd_array *arrays = s->arrays;
    for (trd__role role = 0; role < TRD__STATE_ROLES; role++) {
        TRD_TRY(trd__pieces_read(engine, role, engine->micro_step > 0, at, arrays));
        at += trd__pieces_bytes(engine, role, engine->micro_step > 0);
        arrays += saved_pieces(engine, role);
    }
    return TRD_OK;
}

/* In a folder with checkpoints of another run an earlier step would be pruned at once, or outlived by what it
 * is not, and the same step would take the place of what is there. */
static trd_status check_origin(const trd_engine *engine, trd__store_name name)
{
    trd__store_name newest;
    char text[TRD__STORE_NAME_TEXT];
    if (engine->saver->own) return TRD_OK;
    TRD_TRY(trd__store_newest_name(engine->saver->store, &newest));
    if (trd__store_compare(newest, name) < 0) return TRD_OK;
    return trd__fail(
        TRD_STATE,
        "%s holds %s, which this engine has not restored; restore first, or choose another run_name",
        engine->options.checkpoint_directory, trd__store_name_text(newest, text));
}

static trd_status take_snapshot(trd_engine *engine, const char *metadata, snapshot *s)
{
    bool middle = engine->micro_step > 0;
    s->name = (trd__store_name){engine->step + middle, engine->micro_step};
    TRD_TRY(check_origin(engine, s->name));
    TRD_TRY(list_arrays(engine, s));
    TRD_TRY(copy_state(engine, s));
    return trd__state_write(engine, metadata, &s->json);
}

static trd_status start(trd_engine *engine)
{
    trd__saver *saver = engine->saver;
    atomic_store(&saver->done, false);
    if (engine->options.async_checkpointing && pthread_create(&saver->thread, NULL, run_job, saver) == 0) {
        saver->running = true;
        return TRD_OK;
    }
    write_job(saver); /* also where the system refuses a thread */
    return finish_job(engine);
}

void trd__saver_restored(trd_engine *engine)
{
    engine->saver->own = true;
}

uint64_t trd__snapshot_bytes(const trd_engine *engine)
{
    uint64_t bytes = 0;
    for (trd__role role = 0; role < TRD__STATE_ROLES; role++)
        bytes += trd__pieces_bytes(engine, role, engine->micro_step > 0);
    return bytes;
}

bool trd__saver_writes(const trd_engine *engine)
{
    return engine->saver && !engine->options.read_only_checkpoints;
}

/* Fresh pages cost many times what the copy into them does. Without a thread the first save makes them. */
trd_status trd__saver_reserve(trd_engine *engine)
{
    trd__saver *saver = engine->saver;
    if (!trd__saver_writes(engine)) return TRD_OK;
    TRD_TRY(reserve(saver, trd__snapshot_bytes(engine)));
    saver->making_pages = pthread_create(&saver->page_thread, NULL, make_pages, saver) == 0;
    return TRD_OK;
}

trd_status trd_engine_save(trd_engine *engine, const char *metadata, bool force, bool *wrote)
{
    if (wrote) *wrote = false;
    TRD_TRY(trd__engine_check(engine));
    trd__saver *saver = engine->saver;
    if (!trd__saver_writes(engine)) {
        trd__log(&engine->options.log, TRD_LOG_INFO, "save: checkpointing is %s, nothing was written",
                 saver ? "read-only" : "off");
        return TRD_OK;
    }
    bool due = engine->micro_step > 0 || engine->finish_saved_step ||
               engine->step % engine->options.checkpoint_period == 0;
    if (!force && !due) return TRD_OK;
    uint64_t begin = trd__now_ns();
    TRD_TRY(trd__queue_flush(engine));
    trd__engine_defer(engine, trd__metrics_flush_sinks(engine)); /* keeps no checkpoint from being written */
    uint64_t flushed = trd__now_ns();
    TRD_TRY(trd__saver_wait(engine));
    uint64_t waited = trd__now_ns() - flushed;
    trd_status status = take_snapshot(engine, metadata, &saver->job);
    if (status != TRD_OK) {
        snapshot_free(&saver->job);
        return trd__fail_in(status, "saving a checkpoint");
    }
    saver->job.waited_ns = waited;
    saver->job.held_ns = trd__now_ns() - flushed;
    engine->stats.saves++;
    engine->stats.save_ns += saver->job.held_ns;
    engine->dirty = false; /* a save that fails beside training sets it again */
    TRD_TRY(start(engine));
    saver->own = true;
    trd__profiler_span(engine, TRD__SPAN_SAVE, begin);
    engine->finish_saved_step = engine->micro_step > 0;
    if (wrote) *wrote = true;
    return TRD_OK;
}

/* Opens what restore was asked for: the most complete checkpoint of a step, or the newest intact one. */
trd_status trd__saver_open(trd_engine *engine, int64_t step, trd__stored **stored)
{
    trd__saver *saver = engine->saver;
    trd__store_name *names, found = {-1, 0};
    size_t count;
    if (!saver)
        return trd__fail(TRD_NOT_FOUND,
                         "restoring: expected a checkpoint directory, found none (checkpointing "
                         "is off)");
    TRD_TRY(trd__saver_wait(engine));
    if (step < 0) return trd__store_read_newest(saver->store, stored);
    TRD_TRY(trd__store_list(saver->store, &names, &count));
    for (size_t i = 0; i < count; i++)
        if (names[i].step == step) found = names[i]; /* oldest first: the last one is the most complete */
    trd__free(names);
    if (found.step < 0)
        return trd__fail(TRD_NOT_FOUND, "restoring step %lld: there is no such checkpoint in %s",
                         (long long)step, engine->options.checkpoint_directory);
    return trd__store_read(saver->store, found, stored);
}

trd_status trd__saver_check_space(trd_engine *engine, int64_t checkpoints)
{
    trd__saver *saver = engine->saver;
    if (!saver || checkpoints <= 0) return TRD_OK;
    snapshot s = {.status = TRD_OK};
    trd_status status = list_arrays(engine, &s);
    uint64_t each = status == TRD_OK ? trd__store_bytes(s.arrays, s.count, 1 << 16) : 0, all;
    snapshot_free(&s);
    TRD_TRY(status);
    if (__builtin_mul_overflow(each, (uint64_t)checkpoints, &all)) all = UINT64_MAX;
    return trd__store_check_space(saver->store, all);
}
