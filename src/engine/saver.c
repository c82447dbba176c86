/* Saving: a host snapshot of the state is taken between dispatches, then written by the caller or beside
 * training by one thread. Invariants: at most one save runs at a time; the thread touches its snapshot and
 * the store only; the run folder is locked for as long as an engine that may save lives. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "engine/internal.h"

typedef struct snapshot {
    trd__store_name name;
    trd_array *arrays;
    size_t count;
    void *memory;
    size_t memory_bytes;
    trd__json_writer json;
    trd_status status;
    char message[1024];
} snapshot;

struct trd__saver {
    trd__store *store;
    int lock; /* file descriptor, -1: none */
    size_t keep;
    pthread_t thread;
    bool running;
    atomic_bool done;
    snapshot job;
    trd__recorder *recorder; /* NULL: none */
    trd__track *track;       /* written by the thread */
};

static trd_status lock_folder(const char *folder, int *lock)
{
    char holder[64] = "";
    char *path = trd__path_join(folder, "lock");
    if (!path) return TRD_NO_MEMORY;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) {
        trd_status status =
            trd__fail(TRD_IO, "locking the run folder: opening %s: %s", path, strerror(errno));
        trd__free(path);
        return status;
    }
    trd__free(path);
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
        ssize_t got = read(file, holder, sizeof holder - 1);
        holder[got > 0 ? got : 0] = '\0';
        close(file);
        return trd__fail(TRD_BUSY,
                         "locking the run folder %s: it is in use by another engine (process %s); choose "
                         "another base_output_directory or run_name",
                         folder, holder[0] ? holder : "unknown");
    }
    int length = snprintf(holder, sizeof holder, "%ld", (long)getpid());
    bool written = ftruncate(file, 0) == 0 && write(file, holder, (size_t)length) == length;
    if (!written)
        lseek(file, 0, SEEK_SET); /* the holder's id is for people only: the lock stands without it */
    *lock = file;
    return TRD_OK;
}

trd_status trd__saver_create(trd_engine *engine)
{
    const char *folder = engine->options.checkpoint_directory;
    trd__saver *saver = trd__calloc(1, sizeof *saver);
    if (!saver) return TRD_NO_MEMORY;
    saver->lock = -1;
    saver->keep = (size_t)engine->options.max_num_checkpoints_to_keep;
    engine->saver = saver;
    saver->recorder = trd__profiler_recorder(engine);
    if (saver->recorder) TRD_TRY(trd__recorder_track(saver->recorder, "checkpoint", false, &saver->track));
    if (engine->options.read_only_checkpoints)
        return trd__store_view(folder, &engine->options.log, &saver->store);
    TRD_TRY(trd__make_directories(folder));
    TRD_TRY(lock_folder(folder, &saver->lock));
    return trd__store_open(folder, &engine->options.log, &saver->store);
}

static void snapshot_free(snapshot *s)
{
    trd__json_writer_free(&s->json);
    trd__free(s->arrays);
    trd__unmap(s->memory, s->memory_bytes);
    *s = (snapshot){.status = TRD_OK};
}

static void write_job(trd__saver *saver)
{
    snapshot *s = &saver->job;
    s->status =
        trd__store_save(saver->store, s->name, s->arrays, s->count, s->json.text, s->json.bytes, NULL);
    if (s->status == TRD_OK) s->status = trd__store_prune(saver->store, saver->keep);
    if (s->status != TRD_OK) snprintf(s->message, sizeof s->message, "%s", trd_error_message());
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

trd_status trd__saver_wait(trd_engine *engine)
{
    trd__saver *saver = engine->saver;
    if (!saver->running) return TRD_OK;
    pthread_join(saver->thread, NULL);
    saver->running = false;
    trd_status status = saver->job.status;
    if (status != TRD_OK) {
        char name[TRD__STORE_NAME_TEXT];
        trd__fail(status, "saving checkpoint %s: %s", trd__store_name_text(saver->job.name, name),
                  saver->job.message);
        engine->dirty = true; /* what it should have held is still unsaved */
    }
    snapshot_free(&saver->job);
    return status;
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
    trd__free(saver);
    engine->saver = NULL;
}

/* Sets of a snapshot, and how many entries of each. The sums behind the gradients travel in the JSON. */
static int saved_entries(const trd_engine *engine, int role)
{
    if (role == TRD__ROLE_GRADIENTS) return engine->micro_step ? engine->trainable_count : 0;
    return engine->layout[role].count;
}

const char *trd__saved_name(trd__role role, const char *entry, char *text, size_t bytes)
{
    static const char *const prefixes[TRD__STATE_ROLES] = {"", "optimizer/", "gradients/", "model_state/"};
    snprintf(text, bytes, "%s%s", prefixes[role], entry);
    return text;
}

static size_t saved_bytes(const trd_array *array)
{
    size_t bytes = trd__tensor_bytes(&array->shape, array->dtype);
    return (bytes + TRD__ALIGNMENT - 1) & ~(size_t)(TRD__ALIGNMENT - 1);
}

/* Names, types and places of everything; names lie in the arena. */
static trd_status list_arrays(trd_engine *engine, snapshot *s)
{
    size_t count = 0;
    char text[512];
    for (int role = 0; role < TRD__STATE_ROLES; role++) count += (size_t)saved_entries(engine, role);
    s->arrays = trd__calloc(count, sizeof *s->arrays);
    if (!s->arrays) return TRD_NO_MEMORY;
    for (int role = 0; role < TRD__STATE_ROLES; role++)
        for (int i = 0; i < saved_entries(engine, role); i++) {
            const trd__entry *entry = &engine->layout[role].entries[i];
            trd_array *array = &s->arrays[s->count++];
            *array = (trd_array){
                .name = engine->saved_names[role][i], .dtype = entry->dtype, .shape = entry->shape};
            if (!array->name) {
                trd__saved_name(role, entry->name, text, sizeof text);
                array->name = engine->saved_names[role][i] = trd__arena_strdup(engine->arena, text);
                if (!array->name) return TRD_NO_MEMORY;
            }
            s->memory_bytes += saved_bytes(array);
        }
    return TRD_OK;
}

static trd_status copy_state(trd_engine *engine, snapshot *s)
{
    const trd__backend_table *table = engine->backend->table;
    s->memory = trd__map(s->memory_bytes);
    if (!s->memory) return TRD_NO_MEMORY;
    char *at = s->memory;
    size_t n = 0;
    for (int role = 0; role < TRD__STATE_ROLES; role++)
        for (int i = 0; i < saved_entries(engine, role); i++, n++) {
            trd_status status = table->set_read(engine->backend, engine->state[role], i, at);
            if (status != TRD_OK) return trd__engine_fail(engine, status, "reading state for a checkpoint");
            s->arrays[n].data = at;
            at += saved_bytes(&s->arrays[n]);
        }
    return TRD_OK;
}

static trd_status take_snapshot(trd_engine *engine, const char *metadata, snapshot *s)
{
    bool middle = engine->micro_step > 0;
    s->name = (trd__store_name){engine->step + middle, engine->micro_step};
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
    trd_status status = saver->job.status;
    snapshot_free(&saver->job);
    return status;
}

bool trd__saver_writes(const trd_engine *engine)
{
    return engine->saver && !engine->options.read_only_checkpoints;
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
    TRD_TRY(trd__metrics_flush_sinks(engine));
    TRD_TRY(trd__saver_wait(engine));
    trd_status status = take_snapshot(engine, metadata, &saver->job);
    if (status == TRD_OK)
        status = start(engine);
    else
        snapshot_free(&saver->job);
    if (status != TRD_OK) return trd__fail_in(status, "saving a checkpoint");
    trd__profiler_span(engine, TRD__SPAN_SAVE, begin);
    engine->dirty = false;
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
