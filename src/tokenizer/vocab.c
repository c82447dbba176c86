/* Open addressing with linear probing, at most half full. Ids are dense: the largest tokenizers have about
 * 260,000, and a file that claims ids far beyond its number of tokens is refused rather than given memory. */
#include "tokenizer/vocab.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"

enum { MAX_ID = 1 << 24, MAX_TOKEN_BYTES = 1 << 20 };

static inline uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

static inline uint64_t key_of(const uint8_t *bytes, size_t length)
{
    uint64_t key = 0;
    if (length > 8) return trd__checksum(bytes, length);
    memcpy(&key, bytes, length);
    return key;
}

static inline size_t first_slot(const trd__vocab *vocab, uint64_t key, size_t length)
{
    return (size_t)mix(key + length) & vocab->slot_mask;
}

static inline bool same(const trd__vocab *vocab, const trd__vocab_slot *slot, uint64_t key,
                        const uint8_t *bytes, size_t length)
{
    if (slot->key != key || slot->length != length) return false;
    return length <= 8 || memcmp(trd__vocab_bytes(vocab, (int32_t)slot->id), bytes, length) == 0;
}

trd_status trd__vocab_init(trd__vocab *vocab, size_t tokens, size_t bytes)
{
    size_t slots = 1024;
    memset(vocab, 0, sizeof *vocab);
    while (slots < tokens + tokens / 2) slots *= 2;
    vocab->slot_mask = slots - 1;
    vocab->capacity = (int32_t)(tokens < MAX_ID ? tokens + 64 : MAX_ID);
    vocab->bytes_capacity = bytes + 64;
    vocab->tokens = trd__calloc((size_t)vocab->capacity, sizeof *vocab->tokens);
    vocab->bytes = trd__alloc(vocab->bytes_capacity, 1);
    vocab->slots = trd__calloc(slots, sizeof *vocab->slots);
    if (vocab->tokens && vocab->bytes && vocab->slots) return TRD_OK;
    trd__vocab_free(vocab);
    return TRD_NO_MEMORY;
}

void trd__vocab_free(trd__vocab *vocab)
{
    trd__free(vocab->slots);
    trd__free(vocab->bytes);
    trd__free(vocab->tokens);
    memset(vocab, 0, sizeof *vocab);
}

static trd_status grow(trd__vocab *vocab, int64_t id, size_t length)
{
    if (id >= vocab->capacity) {
        size_t capacity = (size_t)id + (size_t)id / 2 + 64;
        trd__token *tokens = trd__realloc(vocab->tokens, capacity, sizeof *tokens);
        if (!tokens) return TRD_NO_MEMORY;
        memset(tokens + vocab->capacity, 0, (capacity - (size_t)vocab->capacity) * sizeof *tokens);
        vocab->tokens = tokens;
        vocab->capacity = (int32_t)capacity;
    }
    if (vocab->bytes_capacity - vocab->bytes_used < length) {
        size_t capacity = vocab->bytes_capacity * 2 + length;
        uint8_t *bytes = trd__realloc(vocab->bytes, capacity, 1);
        if (!bytes) return TRD_NO_MEMORY;
        vocab->bytes = bytes;
        vocab->bytes_capacity = capacity;
    }
    return TRD_OK;
}

/* Puts entry where it belongs; false if the bytes are there already. */
static bool place(trd__vocab *vocab, trd__vocab_slot entry)
{
    size_t i = first_slot(vocab, entry.key, entry.length);
    for (; vocab->slots[i].length; i = (i + 1) & vocab->slot_mask)
        if (same(vocab, &vocab->slots[i], entry.key, trd__vocab_bytes(vocab, (int32_t)entry.id),
                 entry.length))
            return false;
    vocab->slots[i] = entry;
    return true;
}

static trd_status rehash(trd__vocab *vocab)
{
    size_t old_slots = vocab->slot_mask + 1;
    trd__vocab_slot *old = vocab->slots, *slots = trd__calloc(old_slots * 2, sizeof *slots);
    if (!slots) return TRD_NO_MEMORY;
    vocab->slots = slots;
    vocab->slot_mask = old_slots * 2 - 1;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].length) (void)place(vocab, old[i]);
    trd__free(old);
    return TRD_OK;
}

trd_status trd__vocab_add(trd__vocab *vocab, int64_t id, const void *bytes, size_t length, uint8_t flags,
                          bool find)
{
    if (id < 0 || id >= MAX_ID)
        return trd__fail(TRD_CORRUPT, "token \"%.*s\": expected an id from 0 to %d, found %lld",
                         (int)(length < 64 ? length : 64), (const char *)bytes, MAX_ID - 1, (long long)id);
    if (length > MAX_TOKEN_BYTES)
        return trd__fail(TRD_CORRUPT, "token %lld: expected at most %d bytes, found %zu", (long long)id,
                         MAX_TOKEN_BYTES, length);
    TRD_TRY(grow(vocab, id, length));
    trd__token *token = &vocab->tokens[id];
    if (token->flags)
        return trd__fail(TRD_CORRUPT, "token id %lld is used twice, the second time for \"%.*s\"",
                         (long long)id, (int)(length < 64 ? length : 64), (const char *)bytes);
    if (find && length == 0) return trd__fail(TRD_CORRUPT, "token id %lld is empty", (long long)id);
    *token = (trd__token){(uint32_t)vocab->bytes_used, (uint32_t)length, (uint8_t)(flags | TRD__TOKEN_USED)};
    if (length) memcpy(vocab->bytes + vocab->bytes_used, bytes, length);
    vocab->bytes_used += length;
    if (id >= vocab->size) vocab->size = (int32_t)id + 1;
    if (!find) return TRD_OK;
    if (++vocab->slots_used * 3 > vocab->slot_mask * 2) TRD_TRY(rehash(vocab));
    if (place(vocab, (trd__vocab_slot){key_of(bytes, length), (uint32_t)id, (uint32_t)length})) return TRD_OK;
    return trd__fail(TRD_CORRUPT, "token id %lld: \"%.*s\" is in the vocabulary twice", (long long)id,
                     (int)(length < 64 ? length : 64), (const char *)bytes);
}

int32_t trd__vocab_find(const trd__vocab *vocab, const uint8_t *bytes, size_t length)
{
    if (length == 0) return -1;
    uint64_t key = key_of(bytes, length);
    for (size_t i = first_slot(vocab, key, length);; i = (i + 1) & vocab->slot_mask) {
        const trd__vocab_slot *slot = &vocab->slots[i];
        if (slot->length == 0) return -1;
        if (same(vocab, slot, key, bytes, length)) return (int32_t)slot->id;
    }
}
