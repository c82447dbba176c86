/* Reading by memory map and writing so that a crash leaves the old file or the new one, never half of either.
 * Every message names the path and the system's reason. */
#ifndef TRD_BASE_FILE_H
#define TRD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct trd__file_map {
    const unsigned char *data; /* read-only; NULL for an empty file */
    size_t bytes;
} trd__file_map;

trd_status trd__file_map_open(const char *path, trd__file_map *map);
void trd__file_map_close(trd__file_map *map); /* safe on a zeroed map */

/* A descriptor for reading, of a regular file: a pipe or a device is an error. The caller closes it. */
trd_status trd__file_open(const char *path, int *fd);

bool trd__file_exists(const char *path);
bool trd__name_exists(const char *path); /* also a link that leads nowhere */
bool trd__is_directory(const char *path);
/* Refuses, before there is anything to lose, a path whose place something of the other kind has: a folder
 * where a file is to be written, or the reverse. TRD_IO. */
trd_status trd__check_place(const char *path, bool folder);
trd_status trd__make_directories(const char *path);            /* like mkdir -p */
trd_status trd__remove_tree(const char *path);                 /* TRD_OK when it is not there */
trd_status trd__free_bytes(const char *path, uint64_t *bytes); /* free space of the file system of path */
char *trd__path_join(const char *folder, const char *name);    /* free with trd__free; NULL: no memory */

/* An atomic write: open a temporary name beside path, append, then commit (fsync, rename, fsync the folder)
 * or abandon. Errors stick: commit reports the first one. */
typedef struct trd__file_writer trd__file_writer;
trd_status trd__file_writer_open(const char *path, trd__file_writer **writer);
/* Before the first write: what is written goes past the system's cache where the file system can do that. For
 * large files that are not read soon: no memory must be found for them, and none is taken from others. Fails
 * for want of memory only. */
trd_status trd__file_writer_uncached(trd__file_writer *writer);
trd_status trd__file_write(trd__file_writer *writer, const void *data, size_t bytes);
trd_status trd__file_writer_commit(trd__file_writer *writer); /* frees writer in any case */
void trd__file_writer_abandon(trd__file_writer *writer);      /* removes the temporary file; NULL is fine */

/* Removes the temporary files that writers left in folder whose process is gone. */
trd_status trd__file_sweep(const char *folder);

/* Whole small file in one call, atomically. */
trd_status trd__file_save(const char *path, const void *data, size_t bytes);
trd_status trd__sync_directory(const char *path);

#endif
