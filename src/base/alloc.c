/* The one module that calls the C allocator. Invariant: no size is computed without an overflow check. */
#include "base/alloc.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"

static void *checked(void *block, size_t bytes)
{
    if (!block) trd__fail(TRD_NO_MEMORY, "allocating %zu bytes: the system has no memory left", bytes);
    return block;
}

static int product(size_t count, size_t size, size_t *bytes)
{
    if (__builtin_mul_overflow(count, size, bytes) || *bytes > PTRDIFF_MAX) {
        trd__fail(TRD_NO_MEMORY, "allocating %zu elements of %zu bytes: the size overflows", count, size);
        return 0;
    }
    if (*bytes == 0) *bytes = 1;
    return 1;
}

void *trd__alloc(size_t count, size_t size)
{
    size_t bytes;
    return product(count, size, &bytes) ? checked(malloc(bytes), bytes) : NULL;
}

void *trd__calloc(size_t count, size_t size)
{
    size_t bytes;
    return product(count, size, &bytes) ? checked(calloc(1, bytes), bytes) : NULL;
}

void *trd__realloc(void *block, size_t count, size_t size)
{
    size_t bytes;
    return product(count, size, &bytes) ? checked(realloc(block, bytes), bytes) : NULL;
}

void *trd__alloc_aligned(size_t bytes)
{
    size_t rounded;
    if (__builtin_add_overflow(bytes, TRD__ALIGNMENT - 1, &rounded)) return checked(NULL, bytes);
    rounded &= ~(size_t)(TRD__ALIGNMENT - 1);
    if (rounded == 0) rounded = TRD__ALIGNMENT;
    return checked(aligned_alloc(TRD__ALIGNMENT, rounded), rounded);
}

char *trd__strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = trd__alloc(bytes, 1);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

char *trd__format(const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = length < 0 ? NULL : trd__alloc((size_t)length + 1, 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

void trd__free(void *block)
{
    free(block);
}

void *trd__map(size_t bytes)
{
    if (bytes == 0) bytes = 1;
    void *block =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) return checked(NULL, bytes);
    madvise(block, bytes, MADV_HUGEPAGE);
    return block;
}

void trd__unmap(void *block, size_t bytes)
{
    if (block) munmap(block, bytes ? bytes : 1);
}
