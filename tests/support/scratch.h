/* A temporary folder for tests that write files, and whole files in one call. A failure fails the test. */
#ifndef TRD_TESTS_SCRATCH_H
#define TRD_TESTS_SCRATCH_H

#include <stddef.h>

/* Group set-up and tear-down for cmocka: *state becomes the folder's path, removed with what it holds. */
int scratch_create(void **state);
int scratch_remove(void **state);

/* "folder/name" in one of 64 static buffers, valid for the next 63 calls. Not thread-safe. */
const char *scratch_path(const char *folder, const char *name);
void scratch_write(const char *path, const void *data, size_t bytes);
/* Whole file, NUL-terminated; free with free. */
unsigned char *scratch_read(const char *path, size_t *bytes);

/* The last error message must contain part. */
void expect_message(const char *part);

#endif
