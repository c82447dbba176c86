/* The loader: source and packer make batches into a ring of slots; with prefetch a thread fills the ring
 * ahead of the caller. Invariant: slots number consumed .. produced - 1 are filled; the caller's batch lies
 * in the slot before consumed, which is refilled only after the next call; source and packer are touched by
 * one thread only (the thread while it runs, else the caller). */
#include <treadle/data.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "data/loader.h"
#include "data/packer.h"
#include "data/source.h"

enum { PREFETCH_SLOTS = 4, DEFAULT_WINDOW = 1024, MAX_LENGTH = 1 << 24, ERROR_BYTES = 2048 };

typedef struct slot {
    trd_batch batch;
    int32_t *token_ids, *segment_ids;
    float *loss_weights;
    trd_status status; /* not TRD_OK: the stream ends here */
    char message[ERROR_BYTES];
} slot;

struct trd_loader {
    trd_data_options options; /* strings owned */
    trd__source source;
    trd__packer *packer;
    uint64_t position; /* rows packed so far */
    trd_data_stats stats;

    slot slots[PREFETCH_SLOTS];
    int slot_count;
    uint64_t produced, consumed; /* guarded by mutex while the thread runs */
    bool stop;
    bool running;
    trd__recorder *recorder; /* changed only while the thread does not run; NULL: none */
    trd__track *track;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
};

static trd_status check_options(const trd_data_options *o)
{
    if (!o->files || o->file_count < 1)
        return trd__fail(TRD_INVALID_ARGUMENT, "opening data: expected at least one file, found none");
    if (!o->tokenizer)
        return trd__fail(TRD_INVALID_ARGUMENT, "opening data: expected a tokenizer, found none");
    if (o->rows < 1 || o->rows > MAX_LENGTH || o->length < 2 || o->length > MAX_LENGTH)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "opening data: expected at least 1 row of 2 to %d tokens, found %d rows of %d",
                         MAX_LENGTH, o->rows, o->length);
    if (o->packing_window < 0)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "opening data: expected a packing window of at least 1, found %d",
                         o->packing_window);
    return TRD_OK;
}

static trd_status copy_options(trd_loader *loader, const trd_data_options *options)
{
    loader->options = *options;
    loader->options.cache_directory = NULL;
    if (options->packing_window == 0) loader->options.packing_window = DEFAULT_WINDOW;
    char **files = trd__calloc((size_t)options->file_count, sizeof *files);
    loader->options.files = (const char *const *)files;
    if (!files) return TRD_NO_MEMORY;
    for (int i = 0; i < options->file_count; i++)
        if (!(files[i] = trd__strdup(options->files[i]))) return TRD_NO_MEMORY;
    if (options->cache_directory &&
        !(loader->options.cache_directory = trd__strdup(options->cache_directory)))
        return TRD_NO_MEMORY;
    return TRD_OK;
}

static void free_options(trd_data_options *options)
{
    for (int i = 0; options->files && i < options->file_count; i++)
        trd__free((char *)(uintptr_t)options->files[i]);
    trd__free((void *)(uintptr_t)options->files);
    trd__free((char *)(uintptr_t)options->cache_directory);
}

static trd_status make_slots(trd_loader *loader)
{
    size_t tokens = (size_t)loader->options.rows * (size_t)loader->options.length;
    loader->slot_count = loader->options.prefetch ? PREFETCH_SLOTS : 1;
    for (int i = 0; i < loader->slot_count; i++) {
        slot *s = &loader->slots[i];
        s->token_ids = trd__alloc(tokens, sizeof *s->token_ids);
        s->segment_ids = trd__alloc(tokens, sizeof *s->segment_ids);
        s->loss_weights = trd__alloc(tokens, sizeof *s->loss_weights);
        if (!s->token_ids || !s->segment_ids || !s->loss_weights) return TRD_NO_MEMORY;
        s->batch = (trd_batch){.length = loader->options.length,
                               .token_ids = s->token_ids,
                               .segment_ids = s->segment_ids,
                               .loss_weights = s->loss_weights};
    }
    return TRD_OK;
}

static trd__packer_options packer_options_of(const trd_loader *loader)
{
    const trd_data_options *o = &loader->options;
    return (trd__packer_options){.lengths = loader->source.index.lengths,
                                 .count = loader->source.index.count,
                                 .row_length = (uint32_t)o->length,
                                 .packing = o->packing,
                                 .window = (uint32_t)o->packing_window,
                                 .shuffle = o->shuffle,
                                 .seed = o->seed,
                                 .epochs = o->epochs};
}

static trd_status prepare(trd_loader *loader, const trd_data_options *options)
{
    TRD_TRY(copy_options(loader, options));
    TRD_TRY(trd__source_open(&loader->options, &loader->source));
    trd__packer_options packing = packer_options_of(loader);
    loader->stats = loader->source.index.stats;
    TRD_TRY(trd__packer_rows_per_epoch(&packing, &loader->stats.rows_per_epoch));
    TRD_TRY(trd__packer_create(&packing, &loader->packer));
    TRD_TRY(make_slots(loader));
    return TRD_OK;
}

trd_status trd_loader_open(const trd_data_options *options, trd_loader **out)
{
    *out = NULL;
    TRD_TRY(check_options(options));
    trd_loader *loader = trd__calloc(1, sizeof *loader);
    if (!loader) return TRD_NO_MEMORY;
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->changed, NULL);
    trd_status status = prepare(loader, options);
    if (status) {
        trd_loader_close(loader);
        return status;
    }
    *out = loader;
    return TRD_OK;
}

static void stop_thread(trd_loader *loader)
{
    if (!loader->running) return;
    pthread_mutex_lock(&loader->mutex);
    loader->stop = true;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    pthread_join(loader->thread, NULL);
    loader->running = loader->stop = false;
}

void trd_loader_close(trd_loader *loader)
{
    if (!loader) return;
    stop_thread(loader);
    for (int i = 0; i < loader->slot_count; i++) {
        trd__free(loader->slots[i].loss_weights);
        trd__free(loader->slots[i].segment_ids);
        trd__free(loader->slots[i].token_ids);
    }
    trd__packer_free(loader->packer);
    trd__source_close(&loader->source);
    free_options(&loader->options);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
    trd__free(loader);
}

trd_data_stats trd_loader_stats(const trd_loader *loader)
{
    return loader->stats;
}

/* The next rows into s, fewer at the run's end. */
static trd_status fill_rows(trd_loader *loader, slot *s)
{
    size_t length = (size_t)loader->options.length;
    s->batch.rows = 0;
    while (s->batch.rows < loader->options.rows) {
        const uint64_t *samples;
        size_t count, at = (size_t)s->batch.rows * length;
        trd_status status = trd__packer_next(loader->packer, &samples, &count);
        if (status == TRD_END && s->batch.rows > 0) break;
        TRD_TRY(status);
        TRD_TRY(trd__source_row(&loader->source, samples, count, s->token_ids + at, s->segment_ids + at,
                                s->loss_weights + at));
        s->batch.rows++;
        s->batch.position = ++loader->position;
    }
    return TRD_OK;
}

static void fill(trd_loader *loader, slot *s)
{
    static const trd__label label = {.category = "data", .name = "prepare a batch"};
    uint64_t begin = trd__recorder_begin(loader->recorder);
    s->status = fill_rows(loader, s);
    if (begin) trd__track_add(loader->track, &label, begin, trd__now_ns(), (int64_t)s->batch.position);
    if (s->status != TRD_OK && s->status != TRD_END)
        snprintf(s->message, sizeof s->message, "%s", trd_error_message());
}

/* Whether a slot is free: the caller's batch keeps its own, so one fewer than there are may wait. */
static bool has_room(const trd_loader *loader)
{
    return loader->produced - loader->consumed + 1 < (uint64_t)loader->slot_count;
}

static void *prefetch_main(void *argument)
{
    trd_loader *loader = argument;
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stop) {
        if (!has_room(loader)) {
            pthread_cond_wait(&loader->changed, &loader->mutex);
            continue;
        }
        slot *s = &loader->slots[loader->produced % (uint64_t)loader->slot_count];
        pthread_mutex_unlock(&loader->mutex);
        fill(loader, s);
        bool last = s->status != TRD_OK;
        pthread_mutex_lock(&loader->mutex);
        loader->produced++;
        pthread_cond_broadcast(&loader->changed);
        if (last) break;
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

static trd_status start_thread(trd_loader *loader)
{
    if (loader->running) return TRD_OK;
    int error = pthread_create(&loader->thread, NULL, prefetch_main, loader);
    if (error) return trd__fail(TRD_NO_MEMORY, "starting the data thread: %s", strerror(error));
    loader->running = true;
    return TRD_OK;
}

/* The filled slot that is next, not yet consumed. */
static trd_status wait_for_slot(trd_loader *loader, slot **next)
{
    *next = &loader->slots[loader->consumed % (uint64_t)loader->slot_count];
    if (!loader->options.prefetch) {
        if (loader->produced == loader->consumed) {
            fill(loader, *next);
            loader->produced++;
        }
        return TRD_OK;
    }
    TRD_TRY(start_thread(loader));
    pthread_mutex_lock(&loader->mutex);
    while (loader->produced == loader->consumed) pthread_cond_wait(&loader->changed, &loader->mutex);
    pthread_mutex_unlock(&loader->mutex);
    return TRD_OK;
}

static void consume(trd_loader *loader)
{
    pthread_mutex_lock(&loader->mutex);
    loader->consumed++;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
}

trd_status trd_loader_next(trd_loader *loader, trd_batch *batch)
{
    slot *next;
    TRD_TRY(wait_for_slot(loader, &next));
    if (next->status == TRD_END) return TRD_END;
    /* An error stays in its slot, so every later call gives it again. */
    if (next->status) return trd__fail(next->status, "%s", next->message);
    *batch = next->batch;
    consume(loader);
    return TRD_OK;
}

void trd__loader_record(trd_loader *loader, trd__recorder *recorder, trd__track *track)
{
    stop_thread(loader); /* the next call starts it again */
    loader->recorder = recorder;
    loader->track = track;
}

trd_status trd_loader_seek(trd_loader *loader, uint64_t position)
{
    stop_thread(loader);
    loader->produced = loader->consumed = 0;
    loader->position = position;
    return trd__packer_seek(loader->packer, position);
}
