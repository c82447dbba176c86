/* The memory planner: greedy placement, best of several orders. Each buffer goes into the tightest gap
 * between the already placed buffers whose lifetimes meet its own. No order is best for every program, so a
 * few are tried and the smallest arena wins; the search ends early at the lower bound. */
#include "backend/planner.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

typedef struct item {
    trd__lifetime *buffer;
    uint64_t offset; /* of the order being tried */
    uint64_t bytes;  /* rounded up */
} item;

static int by_size(const void *left, const void *right)
{
    const item *a = left, *b = right;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    return a->buffer->first != b->buffer->first ? (a->buffer->first < b->buffer->first ? -1 : 1)
                                                : (a->buffer < b->buffer ? -1 : 1);
}

static int by_start(const void *left, const void *right)
{
    const item *a = left, *b = right;
    if (a->buffer->first != b->buffer->first) return a->buffer->first < b->buffer->first ? -1 : 1;
    return by_size(left, right);
}

static int by_duration(const void *left, const void *right)
{
    const item *a = left, *b = right;
    int x = a->buffer->last - a->buffer->first, y = b->buffer->last - b->buffer->first;
    if (x != y) return x < y ? 1 : -1;
    return by_size(left, right);
}

static int by_area(const void *left, const void *right)
{
    const item *a = left, *b = right;
    double x = (double)a->bytes * (a->buffer->last - a->buffer->first + 1);
    double y = (double)b->bytes * (b->buffer->last - b->buffer->first + 1);
    if (x < y || y < x) return x < y ? 1 : -1;
    return by_size(left, right);
}

static int by_end(const void *left, const void *right)
{
    const item *a = left, *b = right;
    if (a->buffer->last != b->buffer->last) return a->buffer->last > b->buffer->last ? -1 : 1;
    return by_size(left, right);
}

static bool meet(const trd__lifetime *a, const trd__lifetime *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Places one item given the placed ones, which are kept sorted by offset; returns its offset. */
static uint64_t best_fit(const item *it, item *const *placed, int count)
{
    uint64_t best = UINT64_MAX, best_gap = UINT64_MAX, end = 0;
    for (int i = 0; i < count; i++) {
        if (!meet(it->buffer, placed[i]->buffer)) continue;
        if (placed[i]->offset > end && placed[i]->offset - end >= it->bytes &&
            placed[i]->offset - end < best_gap) {
            best = end;
            best_gap = placed[i]->offset - end;
        }
        uint64_t stop = placed[i]->offset + placed[i]->bytes;
        if (stop > end) end = stop;
    }
    return best == UINT64_MAX ? end : best;
}

static uint64_t place_all(item *items, int count, item **placed)
{
    uint64_t arena = 0;
    for (int i = 0; i < count; i++) {
        items[i].offset = best_fit(&items[i], placed, i);
        int slot = i;
        for (; slot > 0 && placed[slot - 1]->offset > items[i].offset; slot--)
            placed[slot] = placed[slot - 1];
        placed[slot] = &items[i];
        if (items[i].offset + items[i].bytes > arena) arena = items[i].offset + items[i].bytes;
    }
    return arena;
}

static uint64_t lower_bound(const item *items, int count, uint64_t *live, int positions)
{
    memset(live, 0, (size_t)(positions + 1) * sizeof *live);
    for (int i = 0; i < count; i++) { /* differences first: wrap-around of the unsigned sums cancels out */
        live[items[i].buffer->first] += items[i].bytes;
        live[items[i].buffer->last + 1] -= items[i].bytes;
    }
    uint64_t sum = 0, most = 0;
    for (int p = 0; p < positions; p++) {
        sum += live[p];
        if (sum > most) most = sum;
    }
    return most;
}

trd_status trd__plan_memory(trd__lifetime *buffers, int count, uint64_t *arena_bytes,
                            uint64_t *lower_bound_bytes)
{
    static int (*const orders[])(const void *, const void *) = {by_size, by_area, by_duration, by_start,
                                                                by_end};
    *arena_bytes = *lower_bound_bytes = 0;
    if (count == 0) return TRD_OK;
    int positions = 0;
    for (int i = 0; i < count; i++)
        if (buffers[i].last >= positions) positions = buffers[i].last + 1;
    item *items = trd__alloc((size_t)count, sizeof *items);
    item **placed = trd__alloc((size_t)count, sizeof *placed);
    uint64_t *live = trd__alloc((size_t)positions + 1, sizeof *live);
    trd_status status = items && placed && live ? TRD_OK : TRD_NO_MEMORY;
    if (!status) {
        for (int i = 0; i < count; i++)
            items[i] = (item){.buffer = &buffers[i], .bytes = trd__align_up(buffers[i].bytes)};
        *lower_bound_bytes = lower_bound(items, count, live, positions);
        *arena_bytes = UINT64_MAX;
        for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
            if (*arena_bytes <= *lower_bound_bytes) break;
            qsort(items, (size_t)count, sizeof *items, orders[o]);
            uint64_t arena = place_all(items, count, placed);
            if (arena >= *arena_bytes) continue;
            *arena_bytes = arena;
            for (int i = 0; i < count; i++) items[i].buffer->offset = items[i].offset;
        }
    }
    trd__free(live);
    trd__free(placed);
    trd__free(items);
    return status;
}
