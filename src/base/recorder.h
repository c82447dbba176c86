/* Records what threads do and when, for profiles: each thread has a track, a ring of fixed size that it alone
 * adds spans to and that one reader empties.
 *
 * Adding a span allocates nothing, takes no lock and never waits: where the ring is full the span is dropped
 * and counted. Thread-safety: a track has one writer at a time and one reader at a time, which may be
 * different threads; switching on and off is seen by writers a moment later, so a reader leaves out spans
 * that began before its window. Making tracks and labels is for one thread at a time. */
#ifndef TRD_BASE_RECORDER_H
#define TRD_BASE_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* What a span is of. Costs are those of one span; 0: not known. */
typedef struct trd__label {
    const char *category; /* "op", "program", "host"; static */
    const char *name;
    const char *kernel; /* of an op; NULL: none */
    const char *where;  /* the node's name; NULL: none */
    double flops;
    uint64_t bytes_read, bytes_written;
    uint64_t fingerprint; /* of a program, 0: none */
} trd__label;

typedef struct trd__span {
    const trd__label *label;
    uint64_t begin_ns, end_ns; /* trd__now_ns */
    int64_t number;            /* the label's own count: run, micro-batch or step */
} trd__span;

enum { TRD__TRACK_SPANS = 1 << 18 }; /* per track; memory is taken as it is used */

typedef struct trd__track {
    struct trd__track *next; /* in the order they were made */
    const char *name;
    bool overlapping; /* its spans need not nest */
    trd__span *ring;
    _Atomic uint64_t added, taken; /* counts since creation */
    _Atomic uint64_t dropped;
} trd__track;

typedef struct trd__recorder trd__recorder;
struct trd__arena;

struct trd__recorder {
    struct trd__arena *arena; /* of labels and tracks */
    trd__track *tracks;
    _Atomic bool on;
};

trd_status trd__recorder_create(trd__recorder **recorder);
void trd__recorder_free(trd__recorder *recorder); /* no thread may add any more; NULL is fine */

/* The track of that name, made when there is none. */
trd_status trd__recorder_track(trd__recorder *recorder, const char *name, bool overlapping,
                               trd__track **track);
/* A copy of label that lives as long as the recorder. */
trd_status trd__recorder_label(trd__recorder *recorder, const trd__label *label, const trd__label **copy);

static inline void trd__recorder_switch(trd__recorder *recorder, bool on)
{
    atomic_store_explicit(&recorder->on, on, memory_order_release);
}
/* False for NULL. */
static inline bool trd__recorder_on(const trd__recorder *recorder)
{
    return recorder && atomic_load_explicit(&recorder->on, memory_order_acquire);
}

/* The time a span begins, 0 when nothing is recorded: for a thread that asks once and adds at the end. */
uint64_t trd__recorder_begin(const trd__recorder *recorder);

void trd__track_add(trd__track *track, const trd__label *label, uint64_t begin_ns, uint64_t end_ns,
                    int64_t number);
/* The oldest span that was not taken yet; false: there is none. */
bool trd__track_take(trd__track *track, trd__span *span);
/* Spans that found no room since the last call. */
uint64_t trd__track_take_dropped(trd__track *track);

#endif
