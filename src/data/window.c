/* The packer's window: slots on two kinds of lists, one by age and one per length, and a bitmap of the
 * lengths present, so a choice costs a scan of row_length / 64 words. See the header for the invariant. */
#include "data/window.h"

#include "base/alloc.h"
#include "base/rng.h"

enum { NONE = UINT32_MAX };

typedef struct slot {
    uint64_t sample;
    uint32_t older, newer; /* all slots by age; a free slot links the next free one by newer */
    uint32_t next_equal;   /* next younger slot of the same length */
} slot;

typedef struct queue {
    uint32_t first, last;
} queue;

struct trd__window {
    trd__packer_options options;
    uint64_t *order; /* the epoch's samples */
    size_t next;     /* first sample of order not yet in a slot */
    slot *slots;
    uint32_t free_slot, oldest, newest;
    queue *by_length;  /* [row_length + 1] */
    uint64_t *present; /* bit L: by_length[L] is not empty */
};

static size_t words(uint32_t row_length)
{
    return row_length / 64 + 1;
}

trd_status trd__window_create(const trd__packer_options *options, trd__window **out)
{
    *out = NULL;
    trd__window *window = trd__calloc(1, sizeof *window);
    if (!window) return TRD_NO_MEMORY;
    window->options = *options;
    window->order = trd__alloc(options->count, sizeof *window->order);
    window->slots = trd__alloc(options->window, sizeof *window->slots);
    window->by_length = trd__alloc((size_t)options->row_length + 1, sizeof *window->by_length);
    window->present = trd__calloc(words(options->row_length), sizeof *window->present);
    if (!window->order || !window->slots || !window->by_length || !window->present) {
        trd__window_free(window);
        return TRD_NO_MEMORY;
    }
    *out = window;
    return TRD_OK;
}

void trd__window_free(trd__window *window)
{
    if (!window) return;
    trd__free(window->present);
    trd__free(window->by_length);
    trd__free(window->slots);
    trd__free(window->order);
    trd__free(window);
}

static void append(trd__window *window, uint64_t sample)
{
    uint32_t index = window->free_slot;
    slot *s = &window->slots[index];
    window->free_slot = s->newer;
    *s = (slot){.sample = sample, .older = window->newest, .newer = NONE, .next_equal = NONE};
    if (window->newest == NONE)
        window->oldest = index;
    else
        window->slots[window->newest].newer = index;
    window->newest = index;

    uint32_t length = window->options.lengths[sample];
    queue *equal = &window->by_length[length];
    if (equal->first == NONE)
        equal->first = index;
    else
        window->slots[equal->last].next_equal = index;
    equal->last = index;
    window->present[length / 64] |= 1ull << (length % 64);
}

static void refill(trd__window *window)
{
    while (window->free_slot != NONE && window->next < window->options.count)
        append(window, window->order[window->next++]);
}

void trd__window_start(trd__window *window, uint64_t epoch)
{
    const trd__packer_options *options = &window->options;
    if (options->shuffle) {
        /* The stream is a constant of the file format of positions: changing it changes every resumed run. */
        uint64_t stream = trd__rng_stream("data-order") + epoch;
        trd__rng_permutation(options->seed, stream, window->order, options->count);
    } else {
        for (size_t i = 0; i < options->count; i++) window->order[i] = i;
    }
    window->next = 0;
    window->oldest = window->newest = NONE;
    window->free_slot = 0;
    for (uint32_t i = 0; i < options->window; i++)
        window->slots[i].newer = i + 1 < options->window ? i + 1 : NONE;
    for (uint32_t length = 0; length <= options->row_length; length++)
        window->by_length[length] = (queue){NONE, NONE};
    for (size_t i = 0; i < words(options->row_length); i++) window->present[i] = 0;
    refill(window);
}

bool trd__window_empty(const trd__window *window)
{
    return window->oldest == NONE;
}

/* Removes the oldest slot of a length. */
static uint64_t take(trd__window *window, uint32_t length)
{
    queue *equal = &window->by_length[length];
    uint32_t index = equal->first;
    slot *s = &window->slots[index];
    equal->first = s->next_equal;
    if (equal->first == NONE) {
        equal->last = NONE;
        window->present[length / 64] &= ~(1ull << (length % 64));
    }
    if (s->older == NONE)
        window->oldest = s->newer;
    else
        window->slots[s->older].newer = s->newer;
    if (s->newer == NONE)
        window->newest = s->older;
    else
        window->slots[s->newer].older = s->older;
    uint64_t sample = s->sample;
    s->newer = window->free_slot;
    window->free_slot = index;
    refill(window);
    return sample;
}

bool trd__window_take_oldest(trd__window *window, uint64_t *sample)
{
    if (window->oldest == NONE) return false;
    *sample = take(window, window->options.lengths[window->slots[window->oldest].sample]);
    return true;
}

bool trd__window_take_longest(trd__window *window, uint32_t room, uint64_t *sample)
{
    uint64_t mask = room % 64 == 63 ? ~0ull : (1ull << (room % 64 + 1)) - 1;
    for (size_t word = room / 64 + 1; word-- > 0; mask = ~0ull) {
        uint64_t fitting = window->present[word] & mask;
        if (!fitting) continue;
        *sample = take(window, (uint32_t)(word * 64 + 63 - (size_t)__builtin_clzll(fitting)));
        return true;
    }
    return false;
}
