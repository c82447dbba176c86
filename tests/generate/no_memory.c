/* Out of memory anywhere: opening a generator and generating fail with TRD_NO_MEMORY at every single
 * allocation of the calling thread, leak nothing, and work when the memory is there. */
#include "generate/fixture.h"
#include "support/scratch.h"

#include <errno.h>

#ifdef TRD_SANITIZED
int main(void)
{
    return 0; /* the sanitizer owns the allocator */
}
#else
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t bytes);
void __libc_free(void *block);

/* Of this thread only: what the product library allocates in the workers is not ours to fail. */
static _Thread_local struct {
    bool armed;
    long until_failure; /* allocations that still succeed */
    long live;
} heap;

static bool fails(void)
{
    if (!heap.armed || heap.until_failure-- > 0) return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *block)
{
    if (heap.armed && block) heap.live++;
    return block;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : counted(__libc_calloc(count, size));
}

void *realloc(void *block, size_t bytes)
{
    if (fails()) return NULL;
    return block ? __libc_realloc(block, bytes) : counted(__libc_malloc(bytes));
}

void free(void *block)
{
    if (heap.armed && block) heap.live--;
    __libc_free(block);
}

static trd_status work(const char *folder)
{
    static const int32_t ids[2][20] = {{1, 2, 3}, {4, 5, 6, 7}};
    const trd_prompt prompts[] = {{ids[0], 3}, {ids[1], 20}};
    trd_generator_options options = trd_generator_defaults();
    trd_generate_options how = trd_generate_defaults();
    trd_generated results[2] = {{0}, {0}};
    trd_generator *g;
    options.num_threads = 1;
    options.length = 32;
    how.max_tokens = 3;
    how.sampling.temperature = 1;
    TRD_TRY(trd_generator_open(folder, &options, &g));
    trd_status status = trd_generate(g, prompts, 2, &how, results, NULL);
    if (!status) assert_int_equal(results[1].count, 3);
    for (int i = 0; i < 2; i++) trd_generated_free(&results[i]);
    trd_generator_close(g);
    return status;
}

static void every_allocation(void **state)
{
    const char *folder = scratch_path(*state, "model");
    trd_engine *engine = fixture_engine(&families[0], TRD_F32, NULL);
    OK(trd_engine_export(engine, folder, TRD_F32));
    OK(trd_engine_close(engine));
    OK(work(folder)); /* what the system keeps for the next thread is there now */
    trd_status status = TRD_NO_MEMORY;
    long n = 0;
    for (; status != TRD_OK; n++) {
        heap.until_failure = n;
        heap.live = 0;
        heap.armed = true;
        status = work(folder);
        heap.armed = false;
        if (status != TRD_OK && status != TRD_NO_MEMORY)
            fail_msg("allocation %ld: %s: %s", n, trd_status_text(status), trd_error_message());
        if (heap.live != 0) fail_msg("allocation %ld: %ld blocks are left", n, heap.live);
    }
    assert_true(n > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests_name("generate/no_memory", tests, scratch_create, scratch_remove);
}
#endif
