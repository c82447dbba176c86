/* The tokens of a vocabulary: bytes of an id, id of bytes. Filled once, then immutable.
 *
 * A slot of the table holds a token of up to 8 bytes whole, so that most lookups of an encoder touch one
 * cache line; longer tokens are found by hash and compared. */
#ifndef TRD_TOKENIZER_VOCAB_H
#define TRD_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    TRD__TOKEN_USED = 1,    /* the id has a token */
    TRD__TOKEN_ADDED = 2,   /* matched in the text itself, before pre-tokenization */
    TRD__TOKEN_SPECIAL = 4, /* left out by a decode without special tokens */
    TRD__TOKEN_WHOLE = 8,   /* merging the token's bytes gives the token back */
    TRD__TOKEN_TEXT = 16    /* holds its text as it is, outside the byte-level alphabet */
};

typedef struct trd__token {
    uint32_t offset; /* in vocab->bytes */
    uint32_t length;
    uint8_t flags;
} trd__token;

typedef struct trd__vocab_slot {
    uint64_t key; /* up to 8 bytes: the bytes; longer: their hash */
    uint32_t id;
    uint32_t length; /* 0: free */
} trd__vocab_slot;

typedef struct trd__vocab {
    trd__token *tokens; /* by id */
    int32_t size;       /* highest id + 1 */
    int32_t capacity;
    uint8_t *bytes;
    size_t bytes_used, bytes_capacity;
    trd__vocab_slot *slots;
    size_t slot_mask, slots_used;
} trd__vocab;

/* Room for about tokens ids and bytes of text; both grow when needed. */
trd_status trd__vocab_init(trd__vocab *vocab, size_t tokens, size_t bytes);
void trd__vocab_free(trd__vocab *vocab); /* safe on a zeroed one */

/* Gives id its token. The id must be free and, unless find is false, the bytes must be new: TRD_CORRUPT. With
 * find false the token has an id but no lookup by bytes. length may be 0 only without find. */
trd_status trd__vocab_add(trd__vocab *vocab, int64_t id, const void *bytes, size_t length, uint8_t flags,
                          bool find);

int32_t trd__vocab_find(const trd__vocab *vocab, const uint8_t *bytes, size_t length); /* -1: none */

static inline const uint8_t *trd__vocab_bytes(const trd__vocab *vocab, int32_t id)
{
    return vocab->bytes + vocab->tokens[id].offset;
}

#endif
