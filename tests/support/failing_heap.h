/* Lets one test program fail the n-th allocation and count blocks that are left: defines malloc and its
 * family, so exactly one source file of a program includes it, and not under a sanitizer, which owns the
 * allocator. */
#ifndef TRD_TESTS_FAILING_HEAP_H
#define TRD_TESTS_FAILING_HEAP_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *block);

static struct {
    bool armed;
    long until_failure; /* allocations that still succeed */
    long live;          /* blocks taken less blocks given back while armed */
} heap;

static bool heap_fails(void)
{
    if (!heap.armed || heap.until_failure-- > 0) return false;
    errno = ENOMEM;
    return true;
}

static void *heap_counted(void *block)
{
    if (heap.armed && block) heap.live++;
    return block;
}

void *malloc(size_t bytes)
{
    return heap_fails() ? NULL : heap_counted(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t size)
{
    return heap_fails() ? NULL : heap_counted(__libc_calloc(count, size));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return heap_fails() ? NULL : heap_counted(__libc_memalign(alignment, bytes));
}

void *realloc(void *block, size_t bytes)
{
    if (heap_fails()) return NULL;
    return block ? __libc_realloc(block, bytes) : heap_counted(__libc_malloc(bytes));
}

void free(void *block)
{
    if (heap.armed && block) heap.live--;
    __libc_free(block);
}

#endif
