/* Added tokens: texts that are looked for in the input itself, leftmost first and longest first, before any
 * word is cut. A trie per kind; immutable once filled. */
#ifndef TRD_TOKENIZER_ADDED_H
#define TRD_TOKENIZER_ADDED_H

#include "tokenizer/unicode.h"

typedef struct trd__added_token {
    int32_t id;
    bool special;
    bool single_word; /* only where no word character touches it */
    bool strip_left;  /* takes the white space before it */
    bool strip_right; /* takes the white space after it */
    bool normalized;  /* looked for after normalization */
} trd__added_token;

typedef struct trd__trie_node {
    uint32_t child, sibling; /* 0: none */
    int32_t token;           /* index of the token that ends here, -1: none */
    uint8_t byte;
} trd__trie_node;

typedef struct trd__trie {
    trd__trie_node *nodes; /* 0 is the root */
    uint32_t count, capacity;
    uint32_t first[256]; /* child of the root by byte, 0: none */
} trd__trie;

typedef struct trd__added {
    trd__added_token *tokens;
    size_t count, capacity;
    trd__trie plain, normalized;
    const trd__unicode *unicode;
} trd__added;

void trd__added_free(trd__added *added); /* safe on a zeroed one */
/* text is what to look for: the token's content, normalized for the normalized kind. */
trd_status trd__added_add(trd__added *added, trd__added_token token, const uint8_t *text, size_t bytes);

/* The first match at or after from: its token and range, white space taken included but never before floor.
 * false: none. *resume is where to look on. */
bool trd__added_find(const trd__added *added, const trd__trie *trie, const uint8_t *text, size_t bytes,
                     size_t floor, size_t from, const trd__added_token **token, size_t *begin, size_t *end,
                     size_t *resume);

#endif
