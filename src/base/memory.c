/* Reads the kernel's figures. Invariant: a figure that cannot be read never refuses anything. */
#include "base/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Below this a check costs more than it can save. */
enum { SMALL_BYTES = 256 << 20 };

static size_t read_text(const char *path, char *text, size_t capacity)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? -1 : read(fd, text, capacity - 1);
    if (fd >= 0) close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0 ? (size_t)bytes : 0;
}

/* The figure of the line "key:   123 kB" in bytes; 0 when there is none. */
static uint64_t figure(const char *text, const char *key)
{
    const char *line = strstr(text, key);
    return line ? strtoull(line + strlen(key), NULL, 10) * 1024 : 0;
}

uint64_t trd__memory_limit(void)
{
    char system[2048], own[4096], group[64];
    uint64_t limit = UINT64_MAX;
    if (read_text("/proc/meminfo", system, sizeof system) && strstr(system, "\nMemAvailable:") &&
        read_text("/proc/self/status", own, sizeof own))
        limit = figure(system, "\nMemAvailable:") + figure(system, "\nSwapFree:") +
                figure(own, "\nRssAnon:") + figure(own, "\nVmSwap:");
    /* In a container the root of the hierarchy is the container's own group; "max" is no number. */
    if (read_text("/sys/fs/cgroup/memory.max", group, sizeof group)) {
        uint64_t most = strtoull(group, NULL, 10);
        if (most && most < limit) limit = most;
    }
    return limit;
}

trd_status trd__memory_check(uint64_t total)
{
    if (total < SMALL_BYTES) return TRD_OK;
    uint64_t limit = trd__memory_limit();
    if (total <= limit) return TRD_OK;
    return trd__fail(TRD_NO_MEMORY,
                     "memory comes to %.1f GB, but this process can have only %.1f GB; use a smaller model, "
                     "batch or length, bfloat16, or remat_policy full",
                     (double)total / 1e9, (double)limit / 1e9);
}
