/* Out of memory anywhere: opening a generator and generating fail with TRD_NO_MEMORY at every single
 * allocation of ours, leak nothing, and work when the memory is there. */
#include "generate/fixture.h"
#include "support/scratch.h"

#include "support/failing_heap.h"

static trd_status work(void *folder)
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
    char path[1024];
    snprintf(path, sizeof path, "%s", folder);
    OK(work(path));
    assert_true(heap_fail_each("generate", work, path, false, 1, NULL) >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests_name("generate/no_memory", tests, scratch_create, scratch_remove);
}
