/* Building a tokenizer from the texts of a file, whatever its format. Invariant: token bytes in the
 * vocabulary are the bytes a token stands for in a text, never its spelling in the byte-level alphabet. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tokenizer/tokenizer.h"

enum { SMALL = 256 };

trd_status trd__tokenizer_add_token(trd_tokenizer *tokenizer, int64_t id, const char *text, size_t bytes)
{
    uint8_t small[SMALL], *decoded = bytes <= SMALL ? small : trd__alloc(bytes, 1);
    size_t length;
    if (!decoded) return TRD_NO_MEMORY;
    trd_status status;
    if (bytes > 0 && trd__byte_level_decode(&tokenizer->byte_level, text, bytes, decoded, &length))
        status = trd__vocab_add(&tokenizer->vocab, id, decoded, length, 0, true);
    else
        status = trd__vocab_add(&tokenizer->vocab, id, text, bytes, TRD__TOKEN_TEXT, false);
    if (decoded != small) trd__free(decoded);
    return status;
}

/* Merges usually make the ids in order: the one after the last result is tried before the table. */
static int32_t find_result(trd_tokenizer *tokenizer, const uint8_t *bytes, size_t length)
{
    const trd__vocab *vocab = &tokenizer->vocab;
    int32_t next = tokenizer->last_result + 1;
    bool hit = next < vocab->size && vocab->tokens[next].length == length &&
               !(vocab->tokens[next].flags & TRD__TOKEN_TEXT) &&
               memcmp(trd__vocab_bytes(vocab, next), bytes, length) == 0;
    return tokenizer->last_result = hit ? next : trd__vocab_find(vocab, bytes, length);
}

trd_status trd__tokenizer_add_merge(trd_tokenizer *tokenizer, const char *left, size_t left_bytes,
                                    const char *right, size_t right_bytes)
{
    uint8_t small[2 * SMALL], *joined = small;
    size_t first, second;
    size_t room = left_bytes + right_bytes;
    if (room > sizeof small && !(joined = trd__alloc(room, 1))) return TRD_NO_MEMORY;
    int32_t a = -1, b = -1, result = -1;
    if (trd__byte_level_decode(&tokenizer->byte_level, left, left_bytes, joined, &first) &&
        trd__byte_level_decode(&tokenizer->byte_level, right, right_bytes, joined + first, &second)) {
        a = trd__vocab_find(&tokenizer->vocab, joined, first);
        b = trd__vocab_find(&tokenizer->vocab, joined + first, second);
        result = find_result(tokenizer, joined, first + second);
    }
    if (joined != small) trd__free(joined);
    if (a < 0 || b < 0 || result < 0)
        return trd__fail(TRD_CORRUPT,
                         "merge %zu, \"%.*s\" with \"%.*s\": expected both and their join in the vocabulary",
                         tokenizer->bpe.count, (int)(left_bytes < 64 ? left_bytes : 64), left,
                         (int)(right_bytes < 64 ? right_bytes : 64), right);
    return trd__bpe_add(&tokenizer->bpe, a, b, result);
}

trd_status trd__tokenizer_add_added(trd_tokenizer *tokenizer, trd__added_token token, const char *text,
                                    size_t bytes)
{
    trd__vocab *vocab = &tokenizer->vocab;
    uint8_t flags = (uint8_t)(TRD__TOKEN_ADDED | (token.special ? TRD__TOKEN_SPECIAL : 0));
    if (bytes == 0) return TRD_OK; /* matches nowhere, as in the tokenizers package */
    if (token.id >= 0 && token.id < vocab->size && vocab->tokens[token.id].flags) {
        trd__token *held = &vocab->tokens[token.id];
        if (held->flags & TRD__TOKEN_ADDED)
            return trd__fail(TRD_CORRUPT, "added token \"%.*s\": id %d is another added token's", (int)bytes,
                             text, token.id);
        if (held->length != bytes || memcmp(trd__vocab_bytes(vocab, token.id), text, bytes) != 0)
            return trd__fail(TRD_CORRUPT, "added token \"%.*s\": id %d is \"%.*s\" in the vocabulary",
                             (int)bytes, text, token.id, (int)held->length,
                             (const char *)trd__vocab_bytes(vocab, token.id));
        held->flags |= flags;
    } else {
        bool known = trd__vocab_find(vocab, (const uint8_t *)text, bytes) >= 0;
        TRD_TRY(trd__vocab_add(vocab, token.id, text, bytes, (uint8_t)(flags | TRD__TOKEN_TEXT), !known));
    }
    const uint8_t *pattern = (const uint8_t *)text;
    uint8_t *normalized = NULL;
    bool changed = false;
    if (token.normalized && tokenizer->nfc && trd__utf8_valid(pattern, bytes) == bytes)
        TRD_TRY(trd__nfc(&tokenizer->unicode, pattern, bytes, &changed, &normalized, &bytes));
    trd_status status = trd__added_add(&tokenizer->added, token, changed ? normalized : pattern, bytes);
    trd__free(normalized);
    return status;
}

/* A token that stands for a byte by its name is that byte, and no word is equal to it. */
static void name_byte(trd__vocab *vocab, int32_t id, uint8_t byte)
{
    trd__token *token = &vocab->tokens[id];
    vocab->bytes[token->offset] = byte;
    token->length = 1;
    token->flags = (uint8_t)((token->flags | TRD__TOKEN_TEXT) & ~TRD__TOKEN_WHOLE);
}

static void find_byte_tokens(trd_tokenizer *tokenizer)
{
    trd__vocab *vocab = &tokenizer->vocab;
    for (int byte = 0; byte < 256; byte++) {
        uint8_t value = (uint8_t)byte;
        char name[8];
        int32_t id = trd__vocab_find(vocab, &value, 1);
        if (id < 0 && tokenizer->byte_fallback) {
            snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
            id = trd__vocab_find(vocab, (const uint8_t *)name, 6);
        }
        tokenizer->byte_ids[byte] = id;
    }
}

/* Tries every token by merging it. */
static trd_status try_whole_tokens(trd_tokenizer *tokenizer)
{
    trd__vocab *vocab = &tokenizer->vocab;
    size_t longest = 0;
    for (int32_t id = 0; id < vocab->size; id++)
        if (vocab->tokens[id].length > longest) longest = vocab->tokens[id].length;
    int32_t *symbols = trd__alloc(longest + 1, sizeof *symbols);
    void *scratch = trd__alloc(trd__bpe_scratch_bytes(longest + 1), 1);
    for (int32_t id = 0; symbols && scratch && id < vocab->size; id++) {
        const trd__token *token = &vocab->tokens[id];
        const uint8_t *bytes = trd__vocab_bytes(vocab, id);
        size_t count = 0;
        if (token->flags & TRD__TOKEN_TEXT) continue;
        while (count < token->length && tokenizer->byte_ids[bytes[count]] >= 0) {
            symbols[count] = tokenizer->byte_ids[bytes[count]];
            count++;
        }
        if (count == 0 || count < token->length) continue;
        if (trd__bpe_merge(&tokenizer->bpe, symbols, count, scratch) == 1 && symbols[0] == id)
            vocab->tokens[id].flags |= TRD__TOKEN_WHOLE;
    }
    trd_status status = symbols && scratch ? TRD_OK : TRD_NO_MEMORY;
    trd__free(scratch);
    trd__free(symbols);
    return status;
}

/* A token is whole where merging its bytes gives it back, so that a word equal to it needs no merging. */
static trd_status mark_whole_tokens(trd_tokenizer *tokenizer)
{
    trd__vocab *vocab = &tokenizer->vocab;
    bool *whole = trd__calloc((size_t)vocab->size + 1, sizeof *whole);
    if (!whole) return TRD_NO_MEMORY;
    trd_status status = trd__bpe_whole(&tokenizer->bpe, tokenizer->byte_ids, vocab->size, whole);
    for (int32_t id = 0; !status && tokenizer->bpe.ordered && id < vocab->size; id++)
        if (whole[id]) vocab->tokens[id].flags |= TRD__TOKEN_WHOLE;
    trd__free(whole);
    return status || tokenizer->bpe.ordered ? status : try_whole_tokens(tokenizer);
}

trd_status trd__tokenizer_finish(trd_tokenizer *tokenizer)
{
    trd__vocab *vocab = &tokenizer->vocab;
    trd_status status = TRD_OK;
    find_byte_tokens(tokenizer);
    if (tokenizer->ignore_merges)
        for (int32_t id = 0; id < vocab->size; id++)
            vocab->tokens[id].flags |= vocab->tokens[id].flags ? TRD__TOKEN_WHOLE : 0;
    else
        status = mark_whole_tokens(tokenizer);
    for (int byte = 0; byte < 256; byte++)
        if (tokenizer->byte_ids[byte] >= 0 && vocab->tokens[tokenizer->byte_ids[byte]].length > 1)
            name_byte(vocab, tokenizer->byte_ids[byte], (uint8_t)byte);
    return status;
}
