/* Every heap allocation of the library goes through here: sizes are overflow-checked, failure returns NULL
 * and leaves the thread's error message set, so callers return TRD_NO_MEMORY without saying more. */
#ifndef TRD_BASE_ALLOC_H
#define TRD_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

enum { TRD__ALIGNMENT = 64 }; /* a cache line and an AVX-512 register */

/* The least multiple of TRD__ALIGNMENT that holds bytes, far below the end of 64 bits. */
static inline uint64_t trd__align_up(uint64_t bytes)
{
    return (bytes + TRD__ALIGNMENT - 1) & ~(uint64_t)(TRD__ALIGNMENT - 1);
}

void *trd__alloc(size_t count, size_t size);  /* uninitialized */
void *trd__calloc(size_t count, size_t size); /* zeroed */
void *trd__realloc(void *block, size_t count, size_t size);
void *trd__alloc_aligned(size_t bytes); /* 64-byte aligned, uninitialized; free with trd__free */
char *trd__strdup(const char *text);
char *trd__format(const char *format, ...) __attribute__((format(printf, 1, 2))); /* free with trd__free */
void trd__free(void *block);                                                      /* NULL is fine */

/* Anonymous memory straight from the kernel for large buffers: zeroed, page aligned, huge pages advised,
 * given back at once by trd__unmap. NULL with the message set on failure. */
void *trd__map(size_t bytes);
void trd__unmap(void *block, size_t bytes);

#endif
