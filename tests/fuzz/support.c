/* Memory files for fuzz targets. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz/fuzz.h"

const char *fuzz_file(const uint8_t *data, size_t bytes, int *fd)
{
    static char path[64];
    *fd = memfd_create("fuzz", MFD_CLOEXEC);
    fuzz_require(*fd >= 0 && write(*fd, data, bytes) == (ssize_t)bytes, "a memory file can be written");
    snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
    return path;
}

void fuzz_require(int holds, const char *property)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", property);
    abort();
}
