/* Matching follows the tokenizers package: a match refused for its surroundings is passed over whole, white
 * space taken to the right is looked at no more. */
#include "tokenizer/added.h"

#include "base/alloc.h"

void trd__added_free(trd__added *added)
{
    trd__free(added->plain.nodes);
    trd__free(added->normalized.nodes);
    trd__free(added->tokens);
    memset(added, 0, sizeof *added);
}

/* The child of node for byte, made if there is none; 0: no memory. */
static uint32_t child_of(trd__trie *trie, uint32_t node, uint8_t byte)
{
    uint32_t child = node ? trie->nodes[node].child : trie->first[byte];
    while (child && trie->nodes[child].byte != byte) child = trie->nodes[child].sibling;
    if (child) return child;
    if (trie->count + 1 >= trie->capacity) {
        uint32_t capacity = trie->capacity ? trie->capacity * 2 : 256;
        trd__trie_node *nodes = trd__realloc(trie->nodes, capacity, sizeof *nodes);
        if (!nodes) return 0;
        trie->nodes = nodes;
        trie->capacity = capacity;
        if (!trie->count) trie->count = 1;
    }
    child = trie->count++;
    trie->nodes[child] =
        (trd__trie_node){.sibling = node ? trie->nodes[node].child : 0, .token = -1, .byte = byte};
    if (node)
        trie->nodes[node].child = child;
    else
        trie->first[byte] = child;
    return child;
}

trd_status trd__added_add(trd__added *added, trd__added_token token, const uint8_t *text, size_t bytes)
{
    trd__trie *trie = token.normalized ? &added->normalized : &added->plain;
    uint32_t node = 0;
    if (added->count == added->capacity) {
        size_t capacity = added->capacity ? added->capacity * 2 : 32;
        trd__added_token *tokens = trd__realloc(added->tokens, capacity, sizeof *tokens);
        if (!tokens) return TRD_NO_MEMORY;
        added->tokens = tokens;
        added->capacity = capacity;
    }
    for (size_t i = 0; i < bytes; i++)
        if (!(node = child_of(trie, node, text[i]))) return TRD_NO_MEMORY;
    if (node) trie->nodes[node].token = (int32_t)added->count;
    added->tokens[added->count++] = token;
    return TRD_OK;
}

/* Index of the longest token at `at`, -1 if there is none. */
static int32_t longest(const trd__trie *trie, const uint8_t *text, size_t bytes, size_t at, size_t *end)
{
    int32_t token = -1;
    uint32_t node = trie->first[text[at]];
    for (size_t i = at + 1; node; i++) {
        if (trie->nodes[node].token >= 0) {
            token = trie->nodes[node].token;
            *end = i;
        }
        if (i == bytes) break;
        node = trie->nodes[node].child;
        while (node && trie->nodes[node].byte != text[i]) node = trie->nodes[node].sibling;
    }
    return token;
}

/* Class byte of the character at `at`, 0 for a stray byte; *length gets its bytes. */
static uint8_t class_here(const trd__unicode *unicode, const uint8_t *text, size_t bytes, size_t at,
                          unsigned *length)
{
    size_t span = bytes - at < 4 ? bytes - at : 4;
    *length = 1;
    return trd__utf8_valid(text + at, span) == 0 ? TRD__OTHER : trd__class_at(unicode, text + at, length);
}

static bool stands_alone(const trd__unicode *unicode, const uint8_t *text, size_t bytes, size_t begin,
                         size_t end)
{
    unsigned length;
    if (begin > 0 && class_here(unicode, text, bytes, trd__utf8_before(text, begin), &length) & TRD__WORD)
        return false;
    return end == bytes || !(class_here(unicode, text, bytes, end, &length) & TRD__WORD);
}

static bool space_here(const trd__unicode *unicode, const uint8_t *text, size_t bytes, size_t at,
                       unsigned *length)
{
    return (class_here(unicode, text, bytes, at, length) & TRD__CLASS_MASK) == TRD__SPACE;
}

bool trd__added_find(const trd__added *added, const trd__trie *trie, const uint8_t *text, size_t bytes,
                     size_t floor, size_t from, const trd__added_token **token, size_t *begin, size_t *end,
                     size_t *resume)
{
    unsigned length;
    if (!trie->count) return false;
    for (size_t at = from, stop = 0; at < bytes;) {
        int32_t found = trie->first[text[at]] ? longest(trie, text, bytes, at, &stop) : -1;
        if (found < 0) {
            at++;
            continue;
        }
        const trd__added_token *t = &added->tokens[found];
        if (t->single_word && !stands_alone(added->unicode, text, bytes, at, stop)) {
            at = stop;
            continue;
        }
        *resume = stop;
        while (t->strip_left && at > floor) {
            size_t before = trd__utf8_before(text, at);
            if (before < floor || !space_here(added->unicode, text, bytes, before, &length)) break;
            at = before;
        }
        while (t->strip_right && stop < bytes && space_here(added->unicode, text, bytes, stop, &length))
            stop += length;
        *token = t;
        *begin = at < floor ? floor : at;
        *end = stop;
        return true;
    }
    return false;
}
