/* GGUF, and the weights over it: every value and tensor of a file that opens can be read and converted. */
#include <stdlib.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/shape.h"
#include "checkpoint/weights.h"
#include "formats/gguf.h"
#include "fuzz/fuzz.h"

static volatile double sink;

static void read_values(const trd__gguf *file)
{
    for (size_t i = 0; i < trd__gguf_value_count(file); i++) {
        const trd__gguf_value *value = trd__gguf_value_at(file, i);
        fuzz_require(trd__gguf_find(file, value->key) == value, "a value is found by its key");
        for (size_t j = 0; j < value->count; j++)
            sink = value->strings ? (double)trd__checksum(value->strings[j].text, value->strings[j].bytes)
                                  : trd__gguf_number(value, j);
    }
}

static void read_weights(const char *path)
{
    trd__weights *w;
    if (trd__weights_open(path, &w)) return;
    for (size_t i = 0; i < trd__weights_count(w); i++) {
        const trd__weight *weight = trd__weights_at(w, i);
        size_t count = (size_t)trd__shape_count(&weight->shape);
        for (int half = 0; half < 2; half++) {
            void *out = malloc(count * (half ? 2 : 4) + 1);
            fuzz_require(out != NULL, "memory for a tensor");
            trd_status status = trd__weights_read(w, weight->name, half ? TRD_BF16 : TRD_F32, out);
            fuzz_require(status == TRD_OK, "a listed tensor can be read");
            free(out);
        }
    }
    trd__weights_close(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    trd__gguf *file;
    int fd;
    const char *path = fuzz_file(data, bytes, &fd);
    if (trd__gguf_open(path, &file) == TRD_OK) {
        read_values(file);
        trd__gguf_close(file);
        read_weights(path);
    }
    close(fd);
    return 0;
}
