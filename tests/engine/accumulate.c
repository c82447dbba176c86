/* Accumulation: the sums of any number of micro-batches equal one batch of their rows, whatever they hold,
 * and neither fusion, threads in flight nor the time of reading changes a bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/engine.h"

enum { MICRO = 3, CELLS = TEST_ROWS * TEST_LENGTH };

/* Three ragged micro-batches (one without a weighted token) against one batch of all their rows. */
static void ragged_equals_one(void **state)
{
    (void)state;
    trd_engine_options o = test_options(), wide = test_options();
    wide.rows = MICRO * TEST_ROWS;
    trd_engine *parts = test_engine(&o), *whole = test_engine(&wide);
    test_batch b[MICRO];
    int32_t tokens[MICRO * CELLS], segments[MICRO * CELLS];
    float weights[MICRO * CELLS];
    for (int i = 0; i < MICRO; i++) {
        test_batch_fill(&b[i], (uint64_t)i + 1);
        if (i == 1) memset(b[i].weights, 0, sizeof b[i].weights);
        if (i == 2) b[i].batch.rows = 1; /* ragged: fewer rows, padded by the engine */
        OK(trd_engine_fwd_bwd(parts, &b[i].batch));
        memcpy(tokens + i * CELLS, b[i].tokens, sizeof b[i].tokens);
        memcpy(segments + i * CELLS, b[i].segments, sizeof b[i].segments);
        memcpy(weights + i * CELLS, b[i].weights, sizeof b[i].weights);
    }
    trd_batch all = {.rows = MICRO * TEST_ROWS - 1,
                     .length = TEST_LENGTH,
                     .token_ids = tokens,
                     .segment_ids = segments,
                     .loss_weights = weights};
    OK(trd_engine_fwd_bwd(whole, &all));
    trd_view g = trd_engine_gradients(parts), h = trd_engine_gradients(whole);
    assert_true(test_double(g, "denominator") > 0);
    assert_true(test_double(g, "denominator") == test_double(h, "denominator"));
    assert_true(test_double(g, "nonempty_micro_batches") == 2.0);
    for (int i = 0; i < trd_view_count(g); i++) {
        trd_array array = trd_view_describe(g, i);
        if (array.dtype != TRD_F32) continue;
        float *x = malloc(4 * TEST_VOCAB * 64), *y = malloc(4 * TEST_VOCAB * 64);
        double off = 0, norm = 0;
        OK(trd_view_read(g, i, x));
        OK(trd_view_read(h, i, y));
        size_t count = (size_t)(array.shape.dim[0] * (array.shape.rank > 1 ? array.shape.dim[1] : 1));
        for (size_t k = 0; k < count; k++) {
            off += pow((double)x[k] - (double)y[k], 2);
            norm += pow((double)y[k], 2);
        }
        assert_true(norm > 0 && sqrt(off) < 1e-5 * sqrt(norm));
        free(x);
        free(y);
    }
    OK(trd_engine_close(parts));
    OK(trd_engine_close(whole));
}

/* What a first micro-batch leaves does not depend on what the accumulators held. */
static void first_defines_everything(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    o.schedule.learning_rate = 0; /* parameters stay, so the gradients must repeat */
    trd_engine *engine = test_engine(&o);
    test_batch b, other;
    test_batch_fill(&b, 5);
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    unsigned char *expected = test_state(trd_engine_gradients(engine), NULL);
    OK(trd_engine_update(engine));
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&other, 6)));
    OK(trd_engine_update(engine));
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    test_same_state(trd_engine_gradients(engine), expected);
    OK(trd_engine_update(engine));
    memset(b.weights, 0, sizeof b.weights); /* a loss without weighted rows defines zeros */
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    size_t bytes;
    unsigned char *zero = test_state(trd_engine_gradients(engine), &bytes);
    for (size_t i = 0; i < bytes; i++) assert_true(zero[i] == 0 || zero[i] == 0x80); /* 0 or -0 */
    free(zero);
    free(expected);
    OK(trd_engine_close(engine));
}

static void run(trd_engine *engine, bool fused, bool eager)
{
    for (uint64_t step = 0; step < 5; step++) {
        test_batch b;
        test_batch_fill(&b, 10 + step);
        if (fused) {
            OK(trd_engine_train_step(engine, &b.batch));
        } else {
            OK(trd_engine_fwd_bwd(engine, &b.batch));
            OK(trd_engine_update(engine));
        }
        if (eager) test_metric(engine, "loss");
    }
}

static void compare_runs(const trd_engine_options *o, const trd_engine_options *other, bool fused, bool eager)
{
    trd_engine *a = test_engine(o), *b = test_engine(other);
    const trd_step_metrics *x, *y;
    int count_x, count_y;
    run(a, false, false);
    run(b, fused, eager);
    test_expect_same(a, b);
    OK(trd_engine_get_metrics_history(a, false, &x, &count_x));
    OK(trd_engine_get_metrics_history(b, false, &y, &count_y));
    assert_int_equal(count_x, 5);
    assert_int_equal(count_y, 5);
    for (int s = 0; s < 5; s++)
        for (int i = 0; i < 8; i++) { /* what follows is time */
            assert_string_equal(x[s].metrics[i].name, y[s].metrics[i].name);
            assert_true(x[s].metrics[i].value == y[s].metrics[i].value);
        }
    OK(trd_engine_close(a));
    OK(trd_engine_close(b));
}

static void train_step_is_the_pair(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    compare_runs(&o, &o, true, false);
    o.weight_dtype = o.dtype = o.grad_dtype = TRD_BF16;
    compare_runs(&o, &o, true, false);
}

/* Nothing to wait for: each gradient is consumed as it is formed. */
static void consuming_gradients_changes_no_bit(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    o.gradient_clipping_threshold = 0;
    o.skip_step_on_nonfinite = o.skip_step_on_spikes = false;
    compare_runs(&o, &o, true, false);
    o.num_threads = 2;
    o.optimizer.type = "sgd";
    compare_runs(&o, &o, true, false);
    o.weight_dtype = o.dtype = o.grad_dtype = TRD_BF16;
    o.remat_policy = TRD_REMAT_FULL;
    compare_runs(&o, &o, true, false);
}

static void publication_changes_no_bit(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw(), other = test_adamw();
    o.num_threads = other.num_threads = 2;
    compare_runs(&o, &other, false, true);
    for (int inflight = 1; inflight <= 7; inflight += 3) {
        other.max_inflight_computations = inflight;
        compare_runs(&o, &other, false, false);
    }
}

static void remat_changes_no_bit(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw(), other = test_adamw();
    other.remat_policy = TRD_REMAT_FULL;
    compare_runs(&o, &other, false, false);
    other.remat_policy = TRD_REMAT_MINIMAL;
    compare_runs(&o, &other, true, false);
}

/* A shorter payload gets its own program over the same accumulators, also inside a step. */
static void shorter_payload_in_a_step(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *a = test_engine(&o), *b = test_engine(&o);
    test_batch full, cut;
    test_batch_fill(&full, 3);
    test_batch_fill(&cut, 4);
    for (int r = 0; r < TEST_ROWS; r++) /* the same as padding from position 8 on */
        for (int t = 8; t < TEST_LENGTH; t++) cut.segments[r * TEST_LENGTH + t] = 0;
    OK(trd_engine_fwd_bwd(a, &full.batch));
    OK(trd_engine_fwd_bwd(a, &cut.batch));
    int32_t tokens[TEST_ROWS * 8], segments[TEST_ROWS * 8];
    float weights[TEST_ROWS * 8];
    for (int i = 0; i < TEST_ROWS * 8; i++) {
        int at = i / 8 * TEST_LENGTH + i % 8;
        tokens[i] = cut.tokens[at];
        segments[i] = cut.segments[at];
        weights[i] = cut.weights[at];
    }
    trd_batch shorter = {.rows = TEST_ROWS,
                         .length = 8,
                         .token_ids = tokens,
                         .segment_ids = segments,
                         .loss_weights = weights};
    OK(trd_engine_fwd_bwd(b, &full.batch));
    OK(trd_engine_fwd_bwd(b, &shorter));
    OK(trd_engine_update(a));
    OK(trd_engine_update(b));
    assert_true(fabs(test_metric(a, "loss") - test_metric(b, "loss")) < 1e-6);
    assert_true(fabs(test_metric(a, "gradient_norm") / test_metric(b, "gradient_norm") - 1) < 1e-5);
    OK(trd_engine_close(a));
    OK(trd_engine_close(b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_equals_one),          cmocka_unit_test(first_defines_everything),
        cmocka_unit_test(train_step_is_the_pair),     cmocka_unit_test(consuming_gradients_changes_no_bit),
        cmocka_unit_test(publication_changes_no_bit), cmocka_unit_test(remat_changes_no_bit),
        cmocka_unit_test(shorter_payload_in_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
