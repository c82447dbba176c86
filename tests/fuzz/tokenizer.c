/* tokenizer.json: whatever opens encodes and decodes any text. */
#include <string.h>
#include <unistd.h>

#include <treadle/tokenizer.h>

#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char text[] =
        "ab <l> abc\xff word caf\xc3\xa9 cafe\xcc\x81 \xe4\xbd\xa0 123  \n\n don't <a><b>";
    trd_tokenizer *tokenizer;
    int fd;
    const char *path = fuzz_file(data, bytes, &fd);
    if (trd_tokenizer_open(path, &tokenizer) == TRD_OK) {
        trd_ids ids = {0};
        char *back;
        size_t back_bytes;
        trd_status status = trd_tokenizer_encode(tokenizer, text, sizeof text, &ids);
        if (!status) status = trd_tokenizer_encode(tokenizer, (const char *)data, bytes, &ids);
        /* Only a pattern that PCRE2 gives up on may refuse a text. */
        fuzz_require(status == TRD_OK || status == TRD_UNSUPPORTED, "an open tokenizer encodes");
        fuzz_require(trd_tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back, &back_bytes) == TRD_OK,
                     "encoded ids decode");
        trd_text_free(back);
        trd_ids_free(&ids);
    }
    trd_tokenizer_close(tokenizer);
    close(fd);
    return 0;
}
