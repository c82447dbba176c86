/* Tracks as rings of one writer and one reader. Invariant: taken <= added <= taken + TRD__TRACK_SPANS; a span
 * is written before `added` is released and read before `taken` is. */
#include "base/recorder.h"

#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/clock.h"

static const size_t ring_bytes = TRD__TRACK_SPANS * sizeof(trd__span);

trd_status trd__recorder_create(trd__recorder **out)
{
    *out = NULL;
    trd__recorder *recorder = trd__calloc(1, sizeof *recorder);
    if (!recorder) return TRD_NO_MEMORY;
    recorder->arena = trd__arena_create();
    if (!recorder->arena) {
        trd__free(recorder);
        return TRD_NO_MEMORY;
    }
    *out = recorder;
    return TRD_OK;
}

void trd__recorder_free(trd__recorder *recorder)
{
    if (!recorder) return;
    for (trd__track *t = recorder->tracks; t; t = t->next) trd__unmap(t->ring, ring_bytes);
    trd__arena_free(recorder->arena);
    trd__free(recorder);
}

trd_status trd__recorder_track(trd__recorder *recorder, const char *name, bool overlapping, trd__track **out)
{
    trd__track **end = &recorder->tracks;
    for (; *end; end = &(*end)->next)
        if (strcmp((*end)->name, name) == 0) {
            *out = *end;
            return TRD_OK;
        }
    trd__track *track = trd__arena_alloc(recorder->arena, 1, sizeof *track);
    if (!track) return TRD_NO_MEMORY;
    track->name = trd__arena_strdup(recorder->arena, name);
    track->overlapping = overlapping;
    if (!track->name) return TRD_NO_MEMORY;
    track->ring = trd__map(ring_bytes);
    if (!track->ring) return TRD_NO_MEMORY;
    *end = *out = track;
    return TRD_OK;
}

static trd_status copy_text(trd__recorder *recorder, const char **text)
{
    if (!*text) return TRD_OK;
    *text = trd__arena_strdup(recorder->arena, *text);
    return *text ? TRD_OK : TRD_NO_MEMORY;
}

trd_status trd__recorder_label(trd__recorder *recorder, const trd__label *label, const trd__label **copy)
{
    trd__label *own = trd__arena_alloc(recorder->arena, 1, sizeof *own);
    if (!own) return TRD_NO_MEMORY;
    *own = *label;
    TRD_TRY(copy_text(recorder, &own->name));
    TRD_TRY(copy_text(recorder, &own->kernel));
    TRD_TRY(copy_text(recorder, &own->where));
    *copy = own;
    return TRD_OK;
}

uint64_t trd__recorder_begin(const trd__recorder *recorder)
{
    return trd__recorder_on(recorder) ? trd__now_ns() : 0;
}

void trd__track_add(trd__track *track, const trd__label *label, uint64_t begin_ns, uint64_t end_ns,
                    int64_t number)
{
    uint64_t at = atomic_load_explicit(&track->added, memory_order_relaxed);
    if (at - atomic_load_explicit(&track->taken, memory_order_acquire) >= TRD__TRACK_SPANS) {
        atomic_fetch_add_explicit(&track->dropped, 1, memory_order_relaxed);
        return;
    }
    track->ring[at % TRD__TRACK_SPANS] = (trd__span){label, begin_ns, end_ns, number};
    atomic_store_explicit(&track->added, at + 1, memory_order_release);
}

bool trd__track_take(trd__track *track, trd__span *span)
{
    uint64_t at = atomic_load_explicit(&track->taken, memory_order_relaxed);
    if (at == atomic_load_explicit(&track->added, memory_order_acquire)) return false;
    *span = track->ring[at % TRD__TRACK_SPANS];
    atomic_store_explicit(&track->taken, at + 1, memory_order_release);
    return true;
}

uint64_t trd__track_take_dropped(trd__track *track)
{
    return atomic_exchange_explicit(&track->dropped, 0, memory_order_relaxed);
}
