/* Lines of a text file over a memory map, for JSONL data. */
#ifndef TRD_FORMATS_JSONL_H
#define TRD_FORMATS_JSONL_H

#include <stdbool.h>

#include "base/file.h"

typedef struct trd__jsonl {
    trd__file_map map;
    size_t offset; /* of the next line */
    size_t line;   /* number of the last line returned, from 1 */
} trd__jsonl;

typedef struct trd__jsonl_line {
    const char *text; /* in the map, not NUL-terminated, without line end; valid until close */
    size_t bytes;
    size_t number; /* from 1, blank lines counted */
    size_t offset; /* of text in the file */
} trd__jsonl_line;

/* Opening refuses what cannot be text (Git LFS pointers, HTML pages, compressed files). */
trd_status trd__jsonl_open(const char *path, trd__jsonl *file);
void trd__jsonl_close(trd__jsonl *file); /* safe on a zeroed struct */
/* The next line that is not blank; a byte order mark at the start and carriage returns at line ends are left
 * out. False at the end of the file. */
bool trd__jsonl_next(trd__jsonl *file, trd__jsonl_line *line);

#endif
