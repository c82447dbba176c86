/* Items are handed out one at a time, largest first, so that threads end together. Invariant: an item is
 * summed by exactly one thread. */
#include "checkpoint/sums.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/pool.h"

typedef struct work {
    trd__summed **order;
    size_t count;
    atomic_size_t next;
    trd_status (*first_task)(void *);
    void *context;
    trd_status status;
} work;

static int by_size(const void *a, const void *b)
{
    size_t x = (*(trd__summed *const *)a)->bytes, y = (*(trd__summed *const *)b)->bytes;
    return x > y ? -1 : x < y;
}

static void run(void *context, int worker, int workers)
{
    work *w = context;
    (void)workers;
    if (worker == 0 && w->first_task) w->status = w->first_task(w->context);
    for (size_t i; (i = atomic_fetch_add(&w->next, 1)) < w->count;)
        w->order[i]->sum = trd__checksum(w->order[i]->data, w->order[i]->bytes);
}

trd_status trd__sums(trd__summed *items, size_t count, trd_status (*first_task)(void *), void *context)
{
    trd__summed **order = trd__alloc(count + 1, sizeof *order);
    if (!order) return TRD_NO_MEMORY;
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        order[i] = &items[i];
        bytes += items[i].bytes;
    }
    qsort((void *)order, count, sizeof *order, by_size);
    work w = {.order = order, .count = count, .first_task = first_task, .context = context};
    trd__pool_once(trd__processor_count(), bytes, run, &w);
    trd__free((void *)order);
    return w.status;
}
