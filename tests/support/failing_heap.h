/* Lets one test program fail the n-th allocation, count allocations, and count blocks that are left: defines
 * malloc and its family, so exactly one source file of a program includes it, and not under a sanitizer,
 * which owns the allocator. */
#ifndef TRD_TESTS_FAILING_HEAP_H
#define TRD_TESTS_FAILING_HEAP_H

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"

extern char __executable_start[], etext[]; /* the linker's marks around this program's code */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *block);

static struct {
    atomic_bool armed;
    bool ours_only; /* leaves alone what libraries ask for: only calls from this program's own code count */
    atomic_long until_failure; /* allocations that still succeed */
    atomic_long taken;         /* allocations and mappings since armed first */
    atomic_long live;          /* blocks taken less blocks given back while armed */
} heap;

static bool heap_counts(const void *caller)
{
    const char *at = caller;
    return heap.armed && (!heap.ours_only || (at >= __executable_start && at < etext));
}

static bool heap_fails(const void *caller)
{
    if (!heap_counts(caller)) return false;
    atomic_fetch_add(&heap.taken, 1);
    if (atomic_fetch_sub(&heap.until_failure, 1) > 0) return false;
    errno = ENOMEM;
    return true;
}

static void *heap_counted(const void *caller, void *block)
{
    if (block && heap_counts(caller)) atomic_fetch_add(&heap.live, 1);
    return block;
}

void *malloc(size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    return heap_fails(caller) ? NULL : heap_counted(caller, __libc_malloc(bytes));
}

void *calloc(size_t count, size_t size)
{
    const void *caller = __builtin_return_address(0);
    return heap_fails(caller) ? NULL : heap_counted(caller, __libc_calloc(count, size));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    return heap_fails(caller) ? NULL : heap_counted(caller, __libc_memalign(alignment, bytes));
}

void *realloc(void *block, size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    if (heap_fails(caller)) return NULL;
    return block ? __libc_realloc(block, bytes) : heap_counted(caller, __libc_malloc(bytes));
}

void free(void *block)
{
    if (block && heap_counts(__builtin_return_address(0))) atomic_fetch_sub(&heap.live, 1);
    __libc_free(block);
}

/* Counted, never failed: a mapping of a file is an input error, not want of memory. */
void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (heap_counts(__builtin_return_address(0))) atomic_fetch_add(&heap.taken, 1);
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

static void heap_arm(long until_failure)
{
    heap.until_failure = until_failure;
    heap.live = 0;
    heap.armed = true;
}

/* Fails allocation 0, 1, 2, ... of work until it gets through: it must say so, and leave no block. A system
 * call that ran out of memory itself (a folder's listing) reports an input error that says so. after (may be
 * NULL) checks what each failure left behind. Returns how many failed. */
static inline long heap_fail_each(trd_status (*work)(void *context), void *context,
                                  void (*after)(trd_status status))
{
    trd_status status = TRD_NO_MEMORY;
    long n = 0;
    for (; status != TRD_OK; n++) {
        if (n == 100000) fail_msg("%ld allocations and no end", n);
        heap_arm(n);
        status = work(context);
        heap.armed = false;
        bool said = status == TRD_IO && strstr(trd_error_message(), "Cannot allocate memory");
        if (status != TRD_OK && status != TRD_NO_MEMORY && !said)
            fail_msg("allocation %ld: %s: %s", n, trd_status_text(status), trd_error_message());
        if (heap.live != 0) fail_msg("allocation %ld: %ld blocks are left", n, heap.live);
        if (after) after(status);
    }
    return n - 1;
}

#endif
