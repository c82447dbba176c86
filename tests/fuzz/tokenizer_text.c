/* Texts: with every byte in the vocabulary and nothing normalized, decoding gives any text back. */
#include <string.h>

#include <treadle/tokenizer.h>

#include "fuzz/fuzz.h"

static trd_tokenizer *tokenizer; /* opened once a process */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    trd_ids ids = {0};
    char *back;
    size_t back_bytes;
    if (!tokenizer)
        fuzz_require(trd_tokenizer_open("tokenizer/data/llama3-small.json", &tokenizer) == TRD_OK,
                     "runs in the folder tests");
    fuzz_require(trd_tokenizer_encode(tokenizer, (const char *)data, bytes, &ids) == TRD_OK,
                 "a text encodes");
    fuzz_require(trd_tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back, &back_bytes) == TRD_OK,
                 "encoded ids decode");
    fuzz_require(back_bytes == bytes && memcmp(back, data, bytes) == 0, "the text comes back");
    trd_text_free(back);
    trd_ids_free(&ids);
    return 0;
}
