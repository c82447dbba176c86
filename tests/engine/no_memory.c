/* Out of memory anywhere in an engine's life: every single allocation of ours fails once, the call says so,
 * nothing leaks, and closing is safe. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/failing_heap.h"
#include "support/scratch.h"

static trd_loss_output squares(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)model;
    (void)user;
    trd_loss_output output = trd_loss(trd_loss_mean(b, trd_sum_all(b, trd_square(b, in->parameters[0]))));
    trd_loss_add_metric(b, &output, "weights",
                        trd_loss_mean(b, trd_sum_all(b, trd_inputs_get(b, in, "loss_weights"))));
    return output;
}

static trd_status use(trd_engine *engine, const trd_batch *batch)
{
    TRD_TRY(trd_engine_with_loss_fn(engine, squares, NULL));
    TRD_TRY(trd_engine_fwd_bwd(engine, batch));
    TRD_TRY(trd_engine_fwd_bwd(engine, batch));
    TRD_TRY(trd_engine_record_metrics(engine, "reward", trd_recorded_number(1), TRD_AGGREGATE_MEAN));
    TRD_TRY(trd_engine_save(engine, "middle", true, NULL));
    TRD_TRY(trd_engine_update(engine));
    TRD_TRY(trd_engine_train_step(engine, batch));
    TRD_TRY(trd_engine_eval_begin(engine));
    TRD_TRY(trd_engine_eval_step(engine, batch));
    TRD_TRY(trd_engine_eval_end(engine));
    TRD_TRY(trd_engine_save(engine, NULL, true, NULL));
    char *metadata;
    TRD_TRY(trd_engine_restore(engine, -1, &metadata));
    free(metadata);
    return TRD_OK;
}

typedef struct life {
    trd_engine_options options;
    test_batch payload;
} life;

static trd_status live(void *context)
{
    static const test_leaf leaf = {"w", 4, 0};
    life *l = context;
    trd_engine *engine = NULL;
    long left = heap.until_failure;
    heap.until_failure = LONG_MAX; /* what is the test's; its blocks are counted all the same */
    OK(trd__remove_tree(l->options.checkpoint_directory)); /* each life is a run of its own */
    trd_model *model = test_toy(&leaf, 1);
    heap.until_failure = left;
    trd_status status = trd__engine_create_with_model(&l->options, model, &engine);
    if (status == TRD_OK) status = use(engine, &l->payload.batch);
    trd_status closed = trd_engine_close(engine);
    return status != TRD_OK ? status : closed;
}

static void every_allocation_fails_once(void **state)
{
    life l = {.options = test_adamw()};
    test_batch_fill(&l.payload, 1);
    l.options.checkpoint_directory = scratch_path(*state, "run");
    l.options.async_checkpointing = false;
    l.options.profiler = (trd_profiler_options){scratch_path(*state, "profile"), 1, 1, -1};
    assert_true(heap_fail_each("an engine's life", live, &l, false, 1, NULL) > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_fails_once)};
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
