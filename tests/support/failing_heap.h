/* Lets one test program fail the n-th allocation, count allocations, and count blocks that are left: defines
 * malloc and its family, so exactly one source file of a program includes it. Under a sanitizer the blocks
 * are the sanitizer's, which then also looks for leaks and bad accesses of its own. */
#ifndef TRD_TESTS_FAILING_HEAP_H
#define TRD_TESTS_FAILING_HEAP_H

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"

#ifdef TRD_SANITIZED
#define HEAP_NEXT(name) __interceptor_##name
#define HEAP_PLAIN                                                                                           \
    __attribute__((no_sanitize("address", "undefined", "thread"))) /* runs before the sanitizer */
#else
#define HEAP_NEXT(name) __libc_##name
#define HEAP_PLAIN
#endif

extern char __executable_start[], etext[]; /* the linker's marks around this program's code */
void *HEAP_NEXT(malloc)(size_t bytes);
void *HEAP_NEXT(calloc)(size_t count, size_t size);
void *HEAP_NEXT(realloc)(void *block, size_t bytes);
void *HEAP_NEXT(memalign)(size_t alignment, size_t bytes);
void HEAP_NEXT(free)(void *block);

static struct {
    atomic_bool armed;
    bool lasting;   /* all from the n-th on fail, not that one alone */
    bool ours_only; /* leaves alone what libraries ask for: only calls from this program's own code count */
    atomic_long until_failure; /* allocations that still succeed */
    atomic_long taken;         /* allocations and mappings since armed first */
    atomic_long live;          /* blocks and mappings taken since armed last, and not given back */
} heap;

/* Where those are: who gives a block back cannot be told from the return address, which a tail call skips.
 * Addresses are kept inverted, so that this table keeps no lost block in reach of a sanitizer's search for
 * leaks. */
enum { HEAP_SLOTS = 1 << 18, HEAP_NEVER = 0, HEAP_GONE = 1 };
static struct {
    atomic_flag busy;
    size_t used; /* slots that are not HEAP_NEVER */
    uintptr_t at[HEAP_SLOTS];
} heap_blocks = {.busy = ATOMIC_FLAG_INIT};

HEAP_PLAIN static void heap_lock(void)
{
    while (atomic_flag_test_and_set(&heap_blocks.busy)) sched_yield();
}

/* The slot that holds block, or the first unused one. */
HEAP_PLAIN static uintptr_t *heap_slot(const void *block)
{
    size_t i = (size_t)((uintptr_t)block >> 4) * 0x9e3779b97f4a7c15u >> 46;
    while (heap_blocks.at[i] != HEAP_NEVER && heap_blocks.at[i] != ~(uintptr_t)block)
        i = (i + 1) % HEAP_SLOTS;
    return &heap_blocks.at[i];
}

HEAP_PLAIN static bool heap_counts(const void *caller)
{
    const char *at = caller;
    return heap.armed && (!heap.ours_only || (at >= __executable_start && at < etext));
}

HEAP_PLAIN static bool heap_fails(const void *caller)
{
    if (!heap_counts(caller)) return false;
    heap.taken++;
    long left = heap.until_failure--;
    if (heap.lasting ? left > 0 : left != 0) return false;
    errno = ENOMEM;
    return true;
}

HEAP_PLAIN static void *heap_remembered(void *block)
{
    if (!block) return NULL;
    heap_lock();
    uintptr_t *slot = heap_slot(block);
    if (*slot == HEAP_NEVER && ++heap_blocks.used == HEAP_SLOTS)
        abort(); /* the table is too small for this test */
    *slot = ~(uintptr_t)block;
    atomic_flag_clear(&heap_blocks.busy);
    heap.live++;
    return block;
}

HEAP_PLAIN static void *heap_counted(const void *caller, void *block)
{
    return heap_counts(caller) ? heap_remembered(block) : block;
}

HEAP_PLAIN static bool heap_forgets(void *block)
{
    if (!block || !heap.armed) return false;
    heap_lock();
    uintptr_t *slot = heap_slot(block);
    bool known = *slot != HEAP_NEVER;
    if (known) *slot = HEAP_GONE;
    atomic_flag_clear(&heap_blocks.busy);
    if (known) heap.live--;
    return known;
}

HEAP_PLAIN void *malloc(size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    return heap_fails(caller) ? NULL : heap_counted(caller, HEAP_NEXT(malloc)(bytes));
}

HEAP_PLAIN void *calloc(size_t count, size_t size)
{
    const void *caller = __builtin_return_address(0);
    return heap_fails(caller) ? NULL : heap_counted(caller, HEAP_NEXT(calloc)(count, size));
}

HEAP_PLAIN void *aligned_alloc(size_t alignment, size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    return heap_fails(caller) ? NULL : heap_counted(caller, HEAP_NEXT(memalign)(alignment, bytes));
}

HEAP_PLAIN void *realloc(void *block, size_t bytes)
{
    const void *caller = __builtin_return_address(0);
    if (heap_fails(caller)) return NULL;
    if (!block) return heap_counted(caller, HEAP_NEXT(malloc)(bytes));
    bool known = heap_forgets(block);
    void *moved = HEAP_NEXT(realloc)(block, bytes);
    return known ? heap_remembered(moved) : moved;
}

HEAP_PLAIN void free(void *block)
{
    heap_forgets(block);
    HEAP_NEXT(free)(block);
}

/* Anonymous memory fails like a block; a file that cannot be mapped is an input error, so that is only
 * counted. */
HEAP_PLAIN void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    const void *caller = __builtin_return_address(0);
    if (file < 0 && heap_fails(caller)) return MAP_FAILED;
    if (file >= 0 && heap_counts(caller)) heap.taken++;
    void *block = (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
    if (block != MAP_FAILED) heap_counted(caller, block);
    return block;
}

HEAP_PLAIN int munmap(void *block, size_t bytes)
{
    heap_forgets(block);
    return (int)syscall(SYS_munmap, block, bytes);
}

/* Thousands of files are written, and none has to outlive the machine. */
int fsync(int file)
{
    (void)file;
    return 0;
}

static void heap_arm(long until_failure)
{
    heap.until_failure = until_failure;
    heap.live = 0;
    if (heap_blocks.used) memset(heap_blocks.at, 0, sizeof heap_blocks.at);
    heap_blocks.used = 0;
    heap.armed = true;
}

/* Holds one run whose allocation n failed. Ours are all needed. What a library wanted it may do without, and
 * a system call that ran out of memory itself (a folder's listing) is an input error that says so. */
static inline void heap_check(long n, trd_status status)
{
    bool said = status == TRD_IO && strstr(trd_error_message(), "Cannot allocate memory");
    if (status != TRD_NO_MEMORY && (heap.ours_only || (!said && status != TRD_OK)))
        fail_msg("allocation %ld: %s: %s", n, trd_status_text(status), trd_error_message());
    if (heap.live != 0) fail_msg("allocation %ld: %ld blocks are left", n, (long)heap.live);
}

/* One run for every stride-th allocation, failing alone or with all that follow; work must get through when
 * none fails. Returns how many failed. */
static inline long heap_sweep(trd_status (*work)(void *context), void *context, long stride,
                              void (*after)(trd_status status))
{
    for (long n = 0, failures = 0;; n += stride, failures++) {
        heap_arm(n);
        trd_status status = work(context);
        heap.armed = false;
        if (heap.until_failure >= 0) {
            if (status != TRD_OK) fail_msg("%s", trd_error_message());
            return failures;
        }
        heap_check(n, status);
        if (after) after(status);
    }
}

/* Fails every stride-th allocation of work, alone and then with all that follow: first ours, then, when
 * libraries is set, also those of the libraries. Each time work must say so and leave no block; after (may be
 * NULL) checks what the failure left behind. Returns how many of ours failed alone. */
static inline long heap_fail_each(const char *what, trd_status (*work)(void *context), void *context,
                                  bool libraries, long stride, void (*after)(trd_status status))
{
    long failures[2][2] = {{0}};
    for (int all = 0; all <= libraries; all++)
        for (int lasting = 0; lasting < 2; lasting++) {
            heap.ours_only = !all;
            heap.lasting = lasting;
            failures[all][lasting] = heap_sweep(work, context, stride, after);
        }
    print_message("%s: %ld allocations of ours failed, %ld with all later ones: all are TRD_NO_MEMORY; "
                  "libraries' too: %ld, %ld\n",
                  what, failures[0][0], failures[0][1], failures[1][0], failures[1][1]);
    return failures[0][0];
}

#endif
