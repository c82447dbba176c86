/* Features at once: every optimizer, with dropout, frozen parameters, bfloat16 accumulators, spikes,
 * gradients added up apart and a profile, is interrupted inside a step and goes on to the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { MICRO = 3, STEPS = 5 };

static void feed(trd_engine *engine, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        test_batch b;
        test_batch_fill(&b, (uint64_t)i + 1);
        if (i == 4) memset(b.weights, 0, sizeof b.weights); /* an empty micro-batch */
        if (i % 2) b.batch.length = TEST_LENGTH / 2; /* another family of programs over the same state */
        OK(trd_engine_fwd_bwd(engine, &b.batch));
        if (i % MICRO == MICRO - 1) OK(trd_engine_update(engine));
    }
}

static void interrupt(const trd_engine_options *options, const char *folder, int cut)
{
    trd_engine_options o = *options;
    trd_engine *whole = test_engine(&o);
    o.checkpoint_directory = folder;
    trd_engine *first = test_engine(&o);
    feed(whole, 0, STEPS * MICRO);
    feed(first, 0, cut);
    OK(trd_engine_close(first));
    trd_engine *second = test_engine(&o);
    OK(trd_engine_restore(second, -1, NULL));
    assert_int_equal(trd_engine_total_micro_steps(second), cut);
    feed(second, cut, STEPS * MICRO);
    test_expect_same(whole, second);
    unsigned char *state = test_state(trd_engine_model_state(whole), NULL);
    test_same_state(trd_engine_model_state(second), state);
    free(state);
    OK(trd_engine_close(second));
    OK(trd_engine_close(whole));
}

static void resumes_with_everything_on(void **state)
{
    static const char *const optimizers[] = {"adamw", "adam_pax", "adafactor", "muon", "sgd"};
    static const char *const frozen[] = {"layers\\.0\\.", "norm"};
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++)
        for (int apart = 0; apart < 2; apart++)
            for (int cut = 4; cut < 3 * MICRO; cut += 3 - apart) {
                char name[64];
                snprintf(name, sizeof name, "%s-%d-%d", optimizers[i], apart, cut);
                trd_engine_options o = test_adamw();
                o.optimizer.type = optimizers[i];
                o.optimizer.mu_dtype = o.grad_dtype = TRD_BF16;
                o.optimizer.adafactor.min_dim_size_to_factor = 8;
                o.dropout_rate = 0.2;
                o.freeze = frozen;
                o.freeze_count = 2;
                o.skip_step_on_spikes = true;
                o.skip_step_interval = 4;
                o.keep_period = 2;
                o.max_num_checkpoints_to_keep = 1;
                o.profiler = (trd_profiler_options){scratch_path(*state, "profile"), 0, 2, 3};
                memset(o.diagnostics, apart, sizeof o.diagnostics);
                interrupt(&o, scratch_path(*state, name), cut);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(resumes_with_everything_on)};
    return cmocka_run_group_tests_name("engine/together", tests, scratch_create, scratch_remove);
}
