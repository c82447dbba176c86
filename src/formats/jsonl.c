/* The line iterator. Invariant: offset is the start of a line or the file's end. */
#include "formats/jsonl.h"

#include <string.h>

#include "formats/sniff.h"

trd_status trd__jsonl_open(const char *path, trd__jsonl *file)
{
    *file = (trd__jsonl){0};
    TRD_TRY(trd__file_map_open(path, &file->map));
    const char *mistake = trd__sniff_mistake(file->map.data, file->map.bytes);
    if (mistake) {
        trd__jsonl_close(file);
        return trd__fail(TRD_CORRUPT, "reading %s: it %s", path, mistake);
    }
    if (file->map.bytes >= 3 && memcmp(file->map.data, "\xef\xbb\xbf", 3) == 0) file->offset = 3;
    return TRD_OK;
}

void trd__jsonl_close(trd__jsonl *file)
{
    trd__file_map_close(&file->map);
    *file = (trd__jsonl){0};
}

static bool blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t') return false;
    return true;
}

bool trd__jsonl_next(trd__jsonl *file, trd__jsonl_line *line)
{
    while (file->offset < file->map.bytes) {
        size_t start = file->offset, left = file->map.bytes - start;
        const char *text = (const char *)file->map.data + start;
        const char *end = memchr(text, '\n', left);
        size_t bytes = end ? (size_t)(end - text) : left;
        file->offset = start + bytes + (end ? 1 : 0);
        file->line++;
        if (bytes > 0 && text[bytes - 1] == '\r') bytes--;
        if (blank(text, bytes)) continue;
        *line = (trd__jsonl_line){text, bytes, file->line, start};
        return true;
    }
    return false;
}
