/* Safetensors: every byte of every tensor of a file that opens can be read. */
#include <unistd.h>

#include "base/checksum.h"
#include "formats/safetensors.h"
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    trd__safetensors *file;
    int fd;
    const char *path = fuzz_file(data, bytes, &fd);
    if (trd__safetensors_open(path, &file) == TRD_OK) {
        size_t total = 0, header;
        for (size_t i = 0; i < trd__safetensors_count(file); i++) {
            const trd__safetensor *tensor = trd__safetensors_at(file, i);
            volatile uint64_t sum = trd__checksum(tensor->data, tensor->bytes);
            (void)sum;
            total += tensor->bytes;
            fuzz_require(trd__safetensors_find(file, tensor->name) == tensor,
                         "a tensor is found by its name");
        }
        trd__safetensors_header(file, &header);
        fuzz_require(header + total == bytes, "header and tensors cover the file");
        trd__safetensors_close(file);
    }
    close(fd);
    return 0;
}
