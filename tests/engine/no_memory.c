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
#include "support/scratch.h"

#ifdef TRD_SANITIZED
int main(void)
{
    return 0; /* the sanitizer owns the allocator */
}
#else

#include "support/failing_heap.h"

/* Hundreds of checkpoints are written here and none has to outlive the machine. */
int fsync(int file)
{
    (void)file;
    return 0;
}

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

/* One life with allocation number n failing; returns whether n was reached. */
static bool live_once(const trd_engine_options *o, const trd_batch *batch, long n)
{
    static const test_leaf leaf = {"w", 4, 0};
    trd_model *model = test_toy(&leaf, 1);
    trd_engine *engine = NULL;
    OK(trd__remove_tree(o->checkpoint_directory)); /* each life is a run of its own */
    heap_arm(n);
    trd_status status = trd__engine_create_with_model(o, model, &engine);
    if (status == TRD_OK) status = use(engine, batch);
    trd_status closed = trd_engine_close(engine);
    heap.armed = false;
    bool reached = heap.until_failure < 0;
    if (!reached) test_ok(status, "a life without failure", __FILE__, __LINE__);
    if (!reached) test_ok(closed, "close", __FILE__, __LINE__);
    if (reached && status == TRD_OK && closed == TRD_OK) return true; /* what failed was not needed */
    if (reached && status != TRD_OK && status != TRD_NO_MEMORY)
        fail_msg("allocation %ld: %s: %s", n, trd_status_text(status), trd_error_message());
    return reached;
}

static void every_allocation_fails_once(void **state)
{
    trd_engine_options o = test_adamw();
    test_batch b;
    long n = 0, balance;
    heap.ours_only = true;
    test_batch_fill(&b, 1);
    o.checkpoint_directory = scratch_path(*state, "run");
    o.async_checkpointing = false;
    o.profiler = (trd_profiler_options){scratch_path(*state, "profile"), 1, 1, -1};
    assert_false(live_once(&o, &b.batch, LONG_MAX));
    balance = heap.live; /* below 0: the model was made before counting began */
    for (; live_once(&o, &b.batch, n); n++)
        if (heap.live != balance) fail_msg("allocation %ld: %ld blocks leaked", n, heap.live - balance);
    assert_true(n > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_fails_once)};
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
#endif
