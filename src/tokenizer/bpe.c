/* Short words merge in place with a linear scan for the best pair, which beats a heap while everything sits
 * in a few cache lines; long ones use a linked list and a heap, so a megabyte of spaces stays n log n. */
#include "tokenizer/bpe.h"

#include <string.h>

#include "base/alloc.h"

static inline size_t first_slot(const trd__bpe *bpe, uint64_t pair)
{
    uint64_t x = pair * 0x9e3779b97f4a7c15u;
    return (size_t)(x ^ x >> 32) & bpe->slot_mask;
}

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static trd_status allocate(trd__bpe *bpe, size_t slots)
{
    trd__merge *table = trd__alloc(slots, sizeof *table);
    if (!table) return TRD_NO_MEMORY;
    memset(table, 0xff, slots * sizeof *table); /* every pair UINT64_MAX: free */
    bpe->slots = table;
    bpe->slot_mask = slots - 1;
    return TRD_OK;
}

trd_status trd__bpe_init(trd__bpe *bpe, size_t merges)
{
    size_t slots = 256;
    memset(bpe, 0, sizeof *bpe);
    while (slots < merges + merges / 2) slots *= 2;
    return allocate(bpe, slots);
}

void trd__bpe_free(trd__bpe *bpe)
{
    trd__free(bpe->slots);
    memset(bpe, 0, sizeof *bpe);
}

/* The slot of the pair: its own, or the free one where it belongs. */
static trd__merge *slot_of(const trd__bpe *bpe, uint64_t pair)
{
    size_t i = first_slot(bpe, pair);
    while (bpe->slots[i].pair != UINT64_MAX && bpe->slots[i].pair != pair) i = (i + 1) & bpe->slot_mask;
    return &bpe->slots[i];
}

static trd_status grow(trd__bpe *bpe)
{
    trd__merge *old = bpe->slots;
    size_t slots = bpe->slot_mask + 1;
    TRD_TRY(allocate(bpe, slots * 2));
    for (size_t i = 0; i < slots; i++)
        if (old[i].pair != UINT64_MAX) *slot_of(bpe, old[i].pair) = old[i];
    trd__free(old);
    return TRD_OK;
}

trd_status trd__bpe_add(trd__bpe *bpe, int32_t left, int32_t right, int32_t result)
{
    uint64_t pair = pair_of(left, right);
    if ((bpe->count + 1) * 3 > (bpe->slot_mask + 1) * 2) TRD_TRY(grow(bpe));
    *slot_of(bpe, pair) = (trd__merge){pair, (uint32_t)bpe->count++, (uint32_t)result};
    return TRD_OK;
}

/* Rank of the pair, TRD__NO_RANK if it does not merge; *result gets what it merges to. */
static inline uint32_t rank_of(const trd__bpe *bpe, int32_t left, int32_t right, int32_t *result)
{
    uint64_t pair = pair_of(left, right);
    for (size_t i = first_slot(bpe, pair);; i = (i + 1) & bpe->slot_mask) {
        const trd__merge *merge = &bpe->slots[i];
        if (merge->pair == pair) {
            *result = (int32_t)merge->result;
            return merge->rank;
        }
        if (merge->pair == UINT64_MAX) return TRD__NO_RANK;
    }
}

/* How a token is made: by which merge, of what. Bytes have TRD__NO_RANK. */
typedef struct origin {
    uint32_t rank;
    int32_t left, right;
} origin;

/* Fills origins (by id); false where the merges are not a plain history: each result made once, of tokens
 * made before it. */
static bool trace(const trd__bpe *bpe, origin *origins, int32_t ids)
{
    for (int32_t i = 0; i < ids; i++) origins[i] = (origin){TRD__NO_RANK, -1, -1};
    for (size_t i = 0; i <= bpe->slot_mask; i++) {
        const trd__merge *merge = &bpe->slots[i];
        if (merge->pair == UINT64_MAX) continue;
        if (origins[merge->result].rank != TRD__NO_RANK) return false;
        origins[merge->result] =
            (origin){merge->rank, (int32_t)(merge->pair >> 32), (int32_t)(uint32_t)merge->pair};
    }
    for (int32_t i = 0; i < ids; i++) {
        const origin *o = &origins[i];
        if (o->rank == TRD__NO_RANK) continue;
        uint32_t left = origins[o->left].rank, right = origins[o->right].rank;
        if ((left != TRD__NO_RANK && left >= o->rank) || (right != TRD__NO_RANK && right >= o->rank))
            return false;
    }
    return true;
}

/* Whether left and right, each made from its own bytes, would come to stand side by side: walking back in
 * time along the border, no pair across it may have merged before one of its sides went on. Of equal ranks
 * the left one merges first. */
static bool border_holds(const trd__bpe *bpe, const origin *origins, int32_t left, int32_t right)
{
    int32_t unused;
    for (;;) {
        uint32_t l = origins[left].rank, r = origins[right].rank;
        if (l == TRD__NO_RANK && r == TRD__NO_RANK) return true;
        bool undo_left = r == TRD__NO_RANK || (l != TRD__NO_RANK && l > r);
        if (undo_left) {
            left = origins[left].right;
            if (rank_of(bpe, left, right, &unused) < l) return false;
        } else {
            right = origins[right].left;
            if (rank_of(bpe, left, right, &unused) <= r) return false;
        }
    }
}

trd_status trd__bpe_whole(trd__bpe *bpe, const int32_t byte_ids[256], int32_t ids, bool *whole)
{
    origin *origins = trd__alloc((size_t)ids, sizeof *origins);
    int32_t *by_rank = trd__alloc(bpe->count + 1, sizeof *by_rank);
    trd_status status = origins && by_rank ? TRD_OK : TRD_NO_MEMORY;
    bpe->ordered = !status && trace(bpe, origins, ids);
    if (bpe->ordered) {
        for (int byte = 0; byte < 256; byte++)
            if (byte_ids[byte] >= 0) whole[byte_ids[byte]] = true;
        for (size_t rank = 0; rank < bpe->count; rank++) by_rank[rank] = -1;
        for (int32_t i = 0; i < ids; i++)
            if (origins[i].rank != TRD__NO_RANK) by_rank[origins[i].rank] = i;
        for (size_t rank = 0; rank < bpe->count; rank++) {
            int32_t id = by_rank[rank];
            if (id < 0) continue; /* the merge was listed again later */
            const origin *o = &origins[id];
            whole[id] = whole[o->left] && whole[o->right] && border_holds(bpe, origins, o->left, o->right);
        }
    }
    trd__free(by_rank);
    trd__free(origins);
    return status;
}

/* ranks[i] is the rank of the pair (symbols[i], symbols[i + 1]), results[i] what it merges to. */
static size_t merge_short(const trd__bpe *bpe, int32_t *symbols, size_t count)
{
    uint32_t ranks[TRD__BPE_SHORT];
    int32_t results[TRD__BPE_SHORT];
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = rank_of(bpe, symbols[i], symbols[i + 1], &results[i]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == TRD__NO_RANK) break;
        symbols[best] = results[best];
        count--;
        memmove(symbols + best + 1, symbols + best + 2, (count - best - 1) * sizeof *symbols);
        if (best + 1 < count) {
            memmove(ranks + best + 1, ranks + best + 2, (count - best - 1) * sizeof *ranks);
            memmove(results + best + 1, results + best + 2, (count - best - 1) * sizeof *results);
            ranks[best] = rank_of(bpe, symbols[best], symbols[best + 1], &results[best]);
        }
        if (best > 0) ranks[best - 1] = rank_of(bpe, symbols[best - 1], symbols[best], &results[best - 1]);
    }
    return count;
}

/* A word as a list: next and previous by position, the rank of each position's pair (TRD__NO_RANK: none or
 * the position is gone), and a heap of (rank, position). An entry whose rank is no longer its position's is
 * stale. */
typedef struct word {
    const trd__bpe *bpe;
    int32_t *symbols;
    uint32_t *next, *previous, *ranks;
    uint64_t *heap;
    size_t heap_count;
    uint32_t count; /* also the end marker of next */
} word;

/* Merges every pair of the lowest rank at once while they are many, as in a run of one character, which a
 * heap would handle pair by pair. Right where the merges are ordered: a new pair then ranks after the one
 * that made it. */
static size_t merge_rounds(const trd__bpe *bpe, int32_t *symbols, size_t count, uint32_t *ranks)
{
    int32_t result = -1;
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = rank_of(bpe, symbols[i], symbols[i + 1], &result);
    while (count > TRD__BPE_SHORT) {
        uint32_t least = TRD__NO_RANK;
        size_t hits = 0, used = 0;
        for (size_t i = 0; i + 1 < count; i++) least = ranks[i] < least ? ranks[i] : least;
        for (size_t i = 0; i + 1 < count; i++) hits += ranks[i] == least;
        if (least == TRD__NO_RANK || hits * 16 < count) break;
        bool merged = false;
        for (size_t i = 0; i < count; used++) {
            bool before = merged;
            merged = i + 1 < count && ranks[i] == least;
            if (merged) (void)rank_of(bpe, symbols[i], symbols[i + 1], &result);
            symbols[used] = merged ? result : symbols[i];
            if (used > 0 && (merged || before))
                ranks[used - 1] = rank_of(bpe, symbols[used - 1], symbols[used], &result);
            if (!merged && i + 1 < count) ranks[used] = ranks[i];
            i += merged ? 2 : 1;
        }
        count = used;
    }
    return count;
}

size_t trd__bpe_scratch_bytes(size_t count)
{
    return count * (3 * sizeof(uint64_t) + 3 * sizeof(uint32_t));
}

static void heap_push(word *w, uint64_t entry)
{
    size_t i = w->heap_count++;
    for (; i > 0 && w->heap[(i - 1) / 2] > entry; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = entry;
}

static uint64_t heap_pop(word *w)
{
    uint64_t top = w->heap[0], last = w->heap[--w->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->heap_count; i = child) {
        if (child + 1 < w->heap_count && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= last) break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

/* Ranks the pair at position at anew and queues it. */
static void rank_pair(word *w, uint32_t at)
{
    int32_t result;
    uint32_t right = w->next[at];
    w->ranks[at] =
        right == w->count ? TRD__NO_RANK : rank_of(w->bpe, w->symbols[at], w->symbols[right], &result);
    if (w->ranks[at] != TRD__NO_RANK) heap_push(w, (uint64_t)w->ranks[at] << 32 | at);
}

static size_t merge_long(const trd__bpe *bpe, int32_t *symbols, size_t count, void *scratch)
{
    word w = {.bpe = bpe, .symbols = symbols, .heap = scratch, .count = (uint32_t)count};
    w.next = (uint32_t *)(w.heap + 3 * count);
    w.previous = w.next + count;
    w.ranks = w.previous + count;
    for (uint32_t i = 0; i < w.count; i++) {
        w.next[i] = i + 1;
        w.previous[i] = i - 1;
    }
    for (uint32_t i = 0; i < w.count; i++) rank_pair(&w, i);
    while (w.heap_count > 0) {
        uint64_t entry = heap_pop(&w);
        uint32_t at = (uint32_t)entry;
        if (w.ranks[at] != (uint32_t)(entry >> 32)) continue;
        uint32_t right = w.next[at], after = w.next[right];
        (void)rank_of(bpe, symbols[at], symbols[right], &symbols[at]);
        w.ranks[right] = TRD__NO_RANK;
        w.next[at] = after;
        if (after < w.count) w.previous[after] = at;
        rank_pair(&w, at);
        if (at > 0) rank_pair(&w, w.previous[at]);
    }
    size_t left = 0;
    for (uint32_t i = 0; i < w.count; i = w.next[i]) symbols[left++] = symbols[i];
    return left;
}

size_t trd__bpe_merge(const trd__bpe *bpe, int32_t *symbols, size_t count, void *scratch)
{
    if (bpe->ordered && count > TRD__BPE_SHORT) count = merge_rounds(bpe, symbols, count, scratch);
    return count <= TRD__BPE_SHORT ? merge_short(bpe, symbols, count)
                                   : merge_long(bpe, symbols, count, scratch);
}
