/* Text to ids and back. Encoding: added tokens are cut out, what lies between is normalized, cut into words
 * and merged. All state of a call is in a scratch on its stack, so threads share the tokenizer without locks.
 */
#include <string.h>

#include "base/alloc.h"
#include "tokenizer/tokenizer.h"

typedef struct encoder {
    const trd_tokenizer *tokenizer;
    trd_ids *ids;
    int32_t *symbols; /* room for long words, made when first needed */
    void *scratch;
    size_t symbols_capacity;
    int32_t short_symbols[TRD__BPE_SHORT];
} encoder;

trd_status trd__ids_reserve(trd_ids *ids, size_t extra)
{
    if (ids->capacity - ids->count >= extra) return TRD_OK;
    size_t capacity = ids->count + extra + ids->capacity / 2 + 64;
    int32_t *grown = trd__realloc(ids->ids, capacity, sizeof *grown);
    if (!grown) return TRD_NO_MEMORY;
    ids->ids = grown;
    if (ids->loss_mask) {
        uint8_t *mask = trd__realloc(ids->loss_mask, capacity, 1);
        if (!mask) return TRD_NO_MEMORY;
        ids->loss_mask = mask;
    }
    ids->capacity = capacity;
    return TRD_OK;
}

trd_status trd__ids_with_mask(trd_ids *ids)
{
    if (ids->loss_mask) return TRD_OK;
    TRD_TRY(trd__ids_reserve(ids, 1));
    ids->loss_mask = trd__calloc(ids->capacity, 1);
    return ids->loss_mask ? TRD_OK : TRD_NO_MEMORY;
}

void trd_ids_free(trd_ids *ids)
{
    if (!ids) return;
    trd__free(ids->ids);
    trd__free(ids->loss_mask);
    memset(ids, 0, sizeof *ids);
}

static trd_status push(trd_ids *ids, const int32_t *symbols, size_t count)
{
    if (ids->capacity - ids->count < count) TRD_TRY(trd__ids_reserve(ids, count));
    memcpy(ids->ids + ids->count, symbols, count * sizeof *symbols);
    if (ids->loss_mask) memset(ids->loss_mask + ids->count, 0, count);
    ids->count += count;
    return TRD_OK;
}

static trd_status grow_symbols(encoder *e, size_t count)
{
    if (count <= e->symbols_capacity) return TRD_OK;
    size_t capacity = count + count / 2;
    trd__free(e->symbols);
    trd__free(e->scratch);
    e->symbols = trd__alloc(capacity, sizeof *e->symbols);
    e->scratch = trd__alloc(trd__bpe_scratch_bytes(capacity), 1);
    e->symbols_capacity = e->symbols && e->scratch ? capacity : 0;
    return e->symbols_capacity ? TRD_OK : TRD_NO_MEMORY;
}

/* Tokens of bytes before any merge: a byte without one gives the unknown token, or nothing. */
static size_t byte_symbols(const trd_tokenizer *tokenizer, const uint8_t *bytes, size_t length,
                           int32_t *symbols)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        int32_t id = tokenizer->byte_ids[bytes[i]];
        if (id < 0) {
            id = tokenizer->unknown;
            if (id < 0 || (tokenizer->fuse_unknown && count > 0 && symbols[count - 1] == id)) continue;
        }
        symbols[count++] = id;
    }
    return count;
}

static trd_status encode_word(void *context, const uint8_t *word, size_t bytes)
{
    encoder *e = context;
    const trd_tokenizer *tokenizer = e->tokenizer;
    int32_t id = trd__vocab_find(&tokenizer->vocab, word, bytes);
    if (id >= 0 && tokenizer->vocab.tokens[id].flags & TRD__TOKEN_WHOLE) return push(e->ids, &id, 1);
    int32_t *symbols = e->short_symbols;
    if (bytes > TRD__BPE_SHORT) {
        TRD_TRY(grow_symbols(e, bytes));
        symbols = e->symbols;
    }
    size_t count = byte_symbols(tokenizer, word, bytes, symbols);
    return push(e->ids, symbols, trd__bpe_merge(&tokenizer->bpe, symbols, count, e->scratch));
}

static trd_status encode_normalized(encoder *e, const uint8_t *text, size_t bytes)
{
    const trd_tokenizer *tokenizer = e->tokenizer;
    const trd__added_token *token;
    size_t done = 0, from = 0, begin, end;
    while (trd__added_find(&tokenizer->added, &tokenizer->added.normalized, text, bytes, done, from, &token,
                           &begin, &end, &from)) {
        TRD_TRY(trd__split(&tokenizer->splitter, text + done, begin - done, encode_word, e));
        TRD_TRY(push(e->ids, &token->id, 1));
        done = end;
    }
    return trd__split(&tokenizer->splitter, text + done, bytes - done, encode_word, e);
}

static trd_status encode_valid(encoder *e, const uint8_t *text, size_t bytes)
{
    bool changed = false;
    uint8_t *normalized = NULL;
    if (e->tokenizer->nfc)
        TRD_TRY(trd__nfc(&e->tokenizer->unicode, text, bytes, &changed, &normalized, &bytes));
    trd_status status = encode_normalized(e, changed ? normalized : text, bytes);
    trd__free(normalized);
    return status;
}

/* Text between added tokens: runs of valid UTF-8, and stray bytes each as its own token. */
static trd_status encode_plain(encoder *e, const uint8_t *text, size_t bytes)
{
    int32_t symbol;
    for (size_t at = 0; at < bytes;) {
        size_t valid = trd__utf8_valid(text + at, bytes - at);
        if (valid) TRD_TRY(encode_valid(e, text + at, valid));
        at += valid;
        if (at < bytes) TRD_TRY(push(e->ids, &symbol, byte_symbols(e->tokenizer, text + at++, 1, &symbol)));
    }
    return TRD_OK;
}

static trd_status encode_text(encoder *e, const uint8_t *text, size_t bytes)
{
    const trd_tokenizer *tokenizer = e->tokenizer;
    const trd__added_token *token;
    size_t done = 0, from = 0, begin, end;
    while (trd__added_find(&tokenizer->added, &tokenizer->added.plain, text, bytes, done, from, &token,
                           &begin, &end, &from)) {
        TRD_TRY(encode_plain(e, text + done, begin - done));
        TRD_TRY(push(e->ids, &token->id, 1));
        done = end;
    }
    return encode_plain(e, text + done, bytes - done);
}

trd_status trd_tokenizer_encode(const trd_tokenizer *tokenizer, const char *text, size_t bytes, trd_ids *ids)
{
    encoder e = {.tokenizer = tokenizer, .ids = ids};
    if (bytes > INT32_MAX)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "tokenizing: expected at most 2147483647 bytes at a time, found %zu", bytes);
    TRD_TRY(trd__ids_reserve(ids, bytes / 4));
    trd_status status = encode_text(&e, (const uint8_t *)text, bytes);
    trd__free(e.symbols);
    trd__free(e.scratch);
    return status;
}

trd_status trd_tokenizer_decode(const trd_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                bool keep_special, char **text, size_t *bytes)
{
    const trd__vocab *vocab = &tokenizer->vocab;
    size_t total = 0, used = 0;
    *text = NULL;
    *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= vocab->size || !vocab->tokens[ids[i]].flags)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "decoding token %zu: id %d is not in the vocabulary of %d ids", i, ids[i],
                             vocab->size);
        total += vocab->tokens[ids[i]].length;
    }
    char *out = trd__alloc(total + 1, 1);
    if (!out) return TRD_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const trd__token *token = &vocab->tokens[ids[i]];
        if (token->flags & TRD__TOKEN_SPECIAL && !keep_special) continue;
        memcpy(out + used, vocab->bytes + token->offset, token->length);
        used += token->length;
    }
    out[used] = 0;
    *text = out;
    *bytes = used;
    return TRD_OK;
}

void trd_text_free(char *text)
{
    trd__free(text);
}
