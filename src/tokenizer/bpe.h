/* Byte pair encoding of one word: apply the merge of lowest rank, leftmost first, until none applies
 * (Sennrich et al. 2016). Immutable once built. */
#ifndef TRD_TOKENIZER_BPE_H
#define TRD_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { TRD__NO_RANK = UINT32_MAX };

typedef struct trd__merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free slot */
    uint32_t rank;
    uint32_t result;
} trd__merge;

typedef struct trd__bpe {
    trd__merge *slots;
    size_t slot_mask;
    size_t count;
    bool ordered; /* each token is made by one merge, of tokens made before it: set by trd__bpe_whole */
} trd__bpe;

trd_status trd__bpe_init(trd__bpe *bpe, size_t merges); /* merges: an estimate */
void trd__bpe_free(trd__bpe *bpe);                      /* safe on a zeroed one */

/* Adds the merge (left, right) -> result with the next rank. A pair added again takes the later rank, as in
 * the tokenizers package. */
trd_status trd__bpe_add(trd__bpe *bpe, int32_t left, int32_t right, int32_t result);

/* Looks at the finished list of merges. Where it is ordered, sets whole[id], of ids zeroed flags, for the
 * tokens that merging their bytes gives back (byte_ids: the tokens of the single bytes, -1 for none); else
 * only trying tells. */
trd_status trd__bpe_whole(trd__bpe *bpe, const int32_t byte_ids[256], int32_t ids, bool *whole);

/* Merges symbols (count token ids, overwritten) and returns how many are left. scratch: for words of more
 * than TRD__BPE_SHORT symbols, trd__bpe_scratch_bytes(count) bytes; else unused. */
enum { TRD__BPE_SHORT = 48 };
size_t trd__bpe_scratch_bytes(size_t count);
size_t trd__bpe_merge(const trd__bpe *bpe, int32_t *symbols, size_t count, void *scratch);

#endif
