/* A step allocates nothing of ours once its programs are compiled: a call of the
 * allocator counts when it returns into this executable, which holds the whole library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/engine.h"
#include "support/failing_heap.h"
#include "support/scratch.h"

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

static void expect_no_allocation(trd_engine_options o)
{
    trd_step_metrics metrics;
    test_batch batches[3];
    o.num_threads = 2;
    heap.ours_only = true;
    heap.taken = 0;
    heap_arm(LONG_MAX);
    trd_engine *engine = test_engine(&o);
    for (uint64_t i = 0; i < 3; i++) test_batch_fill(&batches[i], i + 1);
    for (int i = 0; i < 3; i++) step(engine, batches);
    OK(trd_engine_get_metrics(engine, false, &metrics));
    heap.armed = false;
    assert_true(heap.taken > 0); /* the count works */
    heap.taken = 0;
    heap_arm(LONG_MAX);
    for (int i = 0; i < 5; i++) step(engine, batches);
    OK(trd_engine_get_metrics(engine, false, &metrics));
    heap.armed = false;
    assert_int_equal(heap.taken, 0);
    OK(trd_engine_close(engine));
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    expect_no_allocation(test_adamw());
}

static void nor_does_recording_a_profile(void **state)
{
    trd_engine_options o = test_adamw();
    o.profiler = (trd_profiler_options){scratch_path(*state, "profile"), 0, 1000, -1};
    expect_no_allocation(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_allocates_nothing),
                                       cmocka_unit_test(nor_does_recording_a_profile)};
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
