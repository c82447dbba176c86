/* A step allocates nothing of ours once its programs are compiled: the allocator's entry points are
 * interposed, and a call counts when it returns into this executable, which holds the whole library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/engine.h"

#ifdef TRD_SANITIZED

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    skip(); /* the sanitizers' allocator cannot be interposed */
}

#else

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char __executable_start[], etext[]; /* the linker's marks around this program's code */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *block, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_int ours;

static void note(const void *caller)
{
    const char *at = caller;
    if (at >= __executable_start && at < etext) atomic_fetch_add(&ours, 1);
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

void *aligned_alloc(size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    note(__builtin_return_address(0));
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

static void step(trd_engine *engine, test_batch *batches)
{
    for (int i = 0; i < 3; i++) {
        OK(trd_engine_fwd_bwd(engine, &batches[i].batch));
        OK(trd_engine_record_metrics(engine, "reward", trd_recorded_number(i), TRD_AGGREGATE_MEAN));
    }
    OK(trd_engine_update(engine));
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, &batches[0].batch));
    OK(trd_engine_eval_end(engine));
    OK(trd_engine_train_step(engine, &batches[1].batch));
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_step_metrics metrics;
    test_batch batches[3];
    o.num_threads = 2;
    trd_engine *engine = test_engine(&o);
    for (uint64_t i = 0; i < 3; i++) test_batch_fill(&batches[i], i + 1);
    for (int i = 0; i < 3; i++) step(engine, batches);
    OK(trd_engine_get_metrics(engine, false, &metrics));
    int before = atomic_load(&ours);
    assert_true(before > 0); /* the count works */
    for (int i = 0; i < 5; i++) step(engine, batches);
    OK(trd_engine_get_metrics(engine, false, &metrics));
    assert_int_equal(atomic_load(&ours) - before, 0);
    OK(trd_engine_close(engine));
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
