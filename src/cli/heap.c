/* The allocator's entry points, counted and passed on. A call counts as ours when it returns into this
 * program's own code, which holds the whole of Treadle; anything else is a library's. */
#include "cli/heap.h"

#ifdef TRD_SANITIZED

cli_heap_counts cli_heap_count(void)
{
    return (cli_heap_counts){0};
}

#else

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char __executable_start[], etext[]; /* the linker's marks around this program's code */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *block, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static _Atomic uint64_t ours, libraries;

static void note(const void *caller)
{
    const char *at = caller;
    _Atomic uint64_t *count = at >= __executable_start && at < etext ? &ours : &libraries;
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}

cli_heap_counts cli_heap_count(void)
{
    return (cli_heap_counts){atomic_load_explicit(&ours, memory_order_relaxed),
                             atomic_load_explicit(&libraries, memory_order_relaxed)};
}

void *malloc(size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_realloc(block, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    *block = __libc_memalign(alignment, bytes);
    return *block ? 0 : ENOMEM;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    note(__builtin_return_address(0));
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

#endif
