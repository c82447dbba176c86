/* Temporary folders under TMPDIR or /tmp. */
#include "support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"

int scratch_create(void **state)
{
    const char *parent = getenv("TMPDIR");
    static char folder[512];
    snprintf(folder, sizeof folder, "%s/treadle-test-XXXXXX", parent && *parent ? parent : "/tmp");
    *state = mkdtemp(folder);
    return *state ? 0 : -1;
}

int scratch_remove(void **state)
{
    return trd__remove_tree(*state) == TRD_OK ? 0 : -1;
}

const char *scratch_path(const char *folder, const char *name)
{
    static char paths[64][1024];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void scratch_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0)
        fail_msg("writing %s failed", path);
}

unsigned char *scratch_read(const char *path, size_t *bytes)
{
    trd__file_map map;
    if (trd__file_map_open(path, &map)) fail_msg("%s", trd_error_message());
    unsigned char *data = malloc(map.bytes + 1);
    if (!data) fail_msg("no memory for %s", path);
    if (map.bytes) memcpy(data, map.data, map.bytes);
    data[map.bytes] = '\0';
    *bytes = map.bytes;
    trd__file_map_close(&map);
    return data;
}

void expect_message(const char *part)
{
    if (!strstr(trd_error_message(), part)) fail_msg("expected \"%s\" in \"%s\"", part, trd_error_message());
}
