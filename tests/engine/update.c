/* Updates: division, norm, clipping, the skips that leave every bit as it was, and leaves that take a value.
 * The toy's gradient is the extra array "x" itself, so every number is known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nn/model.h"
#include "support/engine.h"
#include "support/toy.h"

static void divides_once(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = toy_of_one_leaf(&o, NULL);
    const float a[TOY_SIZE] = {3, 0, 0, 8}, b[TOY_SIZE] = {0, 0, 4, -8};
    OK(toy_feed(engine, a, 1));
    OK(toy_feed(engine, b, 3));
    OK(trd_engine_update(engine)); /* (3, 0, 4, 0) / 4 */
    assert_true(fabs(test_metric(engine, "gradient_norm") - 1.25) < 1e-12);
    assert_float_equal(test_float(trd_engine_params(engine), "w", 0), 0.925f, 1e-7f);
    assert_float_equal(test_float(trd_engine_params(engine), "w", 1), 1.0f, 0);
    assert_float_equal(test_float(trd_engine_params(engine), "w", 2), 0.9f, 1e-7f);
    OK(trd_engine_close(engine));
}

static void bounds_of_the_denominator(void **state)
{
    (void)state;
    toy_bounds limits = {.eps = 1e-3, .min_denom = 1};
    trd_engine_options o = test_options();
    trd_engine *engine = toy_of_one_leaf(&o, &limits);
    const float x[TOY_SIZE] = {1, 0, 0, 0};
    OK(toy_feed(engine, x, 2));
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "gradient_norm") == 1.0 / 2.001);
    assert_true(trd_compute_scale(0, 1e-3, 1) == 1.0);
    assert_true(trd_compute_scale(0, 0, 0) == 0.0);
    OK(trd_engine_close(engine));
}

static void clips_by_the_norm(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    o.gradient_clipping_threshold = 1.0;
    trd_engine *engine = toy_of_one_leaf(&o, NULL);
    const float big[TOY_SIZE] = {3, 4, 0, 0}, small[TOY_SIZE] = {0.5f, 0, 0, 0},
                none[TOY_SIZE] = {0, 0, 0, 0};
    OK(toy_feed(engine, big, 1));
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "gradient_norm") == 5.0);
    assert_float_equal(test_float(trd_engine_params(engine), "w", 0), 0.94f, 1e-7f);
    assert_float_equal(test_float(trd_engine_params(engine), "w", 1), 0.92f, 1e-7f);
    OK(toy_feed(engine, small, 1));
    OK(trd_engine_update(engine));
    assert_float_equal(test_float(trd_engine_params(engine), "w", 0), 0.89f, 1e-7f);
    unsigned char *before = test_state(trd_engine_params(engine), NULL);
    OK(toy_feed(engine, none, 1)); /* norm 0 divides by nothing */
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "gradient_norm") == 0.0);
    assert_true(test_metric(engine, "step_skipped") == 0.0);
    test_same_state(trd_engine_params(engine), before);
    free(before);
    OK(trd_engine_close(engine));
}

static void norm_stays_finite(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = toy_of_one_leaf(&o, NULL);
    const float x[TOY_SIZE] = {1e30f, 1e30f, 0, 0};
    OK(toy_feed(engine, x, 1));
    OK(trd_engine_update(engine));
    assert_true(fabs(test_metric(engine, "gradient_norm") / (sqrt(2.0) * (double)1e30f) - 1) < 1e-6);
    assert_true(test_metric(engine, "nonfinite_grads") == 0.0);
    OK(trd_engine_close(engine));
}

/* A step that must leave parameters and optimizer state alone, count included, and still advance. */
static void expect_skipped(trd_engine *engine, const float *x, int weighted)
{
    unsigned char *params = test_state(trd_engine_params(engine), NULL);
    unsigned char *optimizer = test_state(trd_engine_optimizer_state(engine), NULL);
    int64_t step = trd_engine_step(engine);
    OK(toy_feed(engine, x, weighted));
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "step_skipped") == 1.0);
    assert_int_equal(trd_engine_step(engine), step + 1);
    test_same_state(trd_engine_params(engine), params);
    test_same_state(trd_engine_optimizer_state(engine), optimizer);
    free(params);
    free(optimizer);
}

static void empty_update_touches_nothing(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *engine = toy_of_one_leaf(&o, NULL);
    const float x[TOY_SIZE] = {1, 2, 3, 4};
    OK(toy_feed(engine, x, 2));
    OK(trd_engine_update(engine)); /* moments are not 0 any more: decay and momentum would show */
    expect_skipped(engine, x, 0);
    assert_true(test_double(trd_engine_optimizer_state(engine), "count") == 1.0);
    OK(trd_engine_update(engine)); /* without gradients: nothing at all */
    assert_int_equal(trd_engine_step(engine), 2);
    OK(trd_engine_close(engine));
}

static void nonfinite_is_skipped_or_applied(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *engine = toy_of_one_leaf(&o, NULL);
    const float x[TOY_SIZE] = {1, 2, 3, 4}, bad[TOY_SIZE] = {1, INFINITY, 3, 4},
                worse[TOY_SIZE] = {NAN, 2, 3, 4};
    OK(toy_feed(engine, x, 2));
    OK(trd_engine_update(engine));
    expect_skipped(engine, bad, 2);
    assert_true(test_metric(engine, "nonfinite_grads") == 1.0);
    expect_skipped(engine, worse, 2);
    OK(trd_engine_close(engine));
    o.skip_step_on_nonfinite = false;
    engine = toy_of_one_leaf(&o, NULL);
    OK(toy_feed(engine, worse, 2));
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "step_skipped") == 0.0);
    assert_true(test_metric(engine, "nonfinite_grads") == 1.0);
    assert_true(isnan(test_float(trd_engine_params(engine), "w", 0)));
    OK(trd_engine_close(engine));
}

/* The same judgement on the host: Bessel-corrected, over the last `interval` values. */
static bool is_spike(const double *values, int count, int interval, double factor, double x)
{
    int first = count > interval ? count - interval : 0, n = count - first;
    double mean = 0, sum = 0;
    if (n < (interval / 2 > 2 ? interval / 2 : 2)) return false;
    for (int i = first; i < count; i++) mean += values[i] / n;
    for (int i = first; i < count; i++) sum += (values[i] - mean) * (values[i] - mean);
    return x - mean > factor * sqrt(sum / (n - 1));
}

static void spikes_are_skipped(void **state)
{
    (void)state;
    enum { STEPS = 24, INTERVAL = 8 };
    trd_engine_options o = test_options();
    o.skip_step_on_spikes = true;
    o.skip_step_interval = INTERVAL;
    o.skip_step_scaling_factor = 2.0;
    o.schedule.learning_rate = 1e-6;
    trd_engine *engine = toy_of_one_leaf(&o, NULL);
    double losses[STEPS], norms[STEPS];
    int count = 0, skipped = 0;
    for (int i = 0; i < STEPS; i++) {
        /* A spike at 8, when half of the interval is known, and a lasting rise at 10. */
        float size = 1.0f + 0.1f * (float)(i * 7 % 5) + (i >= 10 ? 12.0f : i == 8 ? 3.0f : 0.0f);
        float x[TOY_SIZE] = {size, 0, 0, 0};
        bool empty = i == 5, bad = i == 6; /* neither enters the history */
        if (bad) x[1] = NAN;
        OK(toy_feed(engine, x, empty ? 0 : 2));
        OK(trd_engine_update(engine));
        double loss = test_metric(engine, "loss"), norm = test_metric(engine, "gradient_norm");
        bool expected = empty || bad || is_spike(losses, count, INTERVAL, 2.0, loss) ||
                        is_spike(norms, count, INTERVAL, 2.0, norm);
        assert_int_equal(test_metric(engine, "step_skipped") != 0, expected);
        assert_true(i != 8 || expected);
        skipped += expected && !empty && !bad;
        if (empty || bad) continue;
        losses[count] = loss;
        norms[count++] = norm;
    }
    assert_true(skipped >= 2 && skipped < 9); /* the rise spikes at first and becomes the baseline */
    assert_true(test_double(trd_engine_optimizer_state(engine), "spike_seen") == INTERVAL);
    OK(trd_engine_close(engine));
}

/* -- leaves that take a value: out of sum, division, norm, clipping and optimizer -- */

enum { TAKEN = 3, WINDOW = 3 };

static trd_engine *with_taken(const trd_engine_options *o)
{
    static const test_leaf leaves[TAKEN] = {{"w", TOY_SIZE, 0},
                                            {"scale", TOY_SIZE, TRD_PARAM_OVERWRITE},
                                            {"amax", TOY_SIZE, TRD_PARAM_OVERWRITE_MAX}};
    return toy_engine(o, leaves, TAKEN, NULL);
}

/* Micro-batches of w, scale and amax. The values of scale need all of float32; amax rises and falls. */
static const float taken[WINDOW][TAKEN * TOY_SIZE] = {
    {3, 0, 0, 0, 10, 20, 30, 40, 5, -6, 7, 8},
    {0, 4, 0, 0, 1, 2, 3, 4, 9, -1, 9, 1},
    {1, 0, 2, 0, 1.0000001f, -2.0000005f, INFINITY, 0, -2, -3, 8, 1e30f}};

static void expect_taken(trd_engine *engine)
{
    trd_view params = trd_engine_params(engine);
    for (size_t i = 0; i < TOY_SIZE; i++) {
        const size_t at = 2 * TOY_SIZE + i;
        assert_true(test_float(params, "scale", i) == taken[WINDOW - 1][TOY_SIZE + i]);
        assert_true(test_float(params, "amax", i) == fmaxf(fmaxf(taken[0][at], taken[1][at]), taken[2][at]));
    }
}

/* Beside them the one that learns does what it does alone, whatever the accumulators' dtype. */
static void values_are_taken(void **state)
{
    (void)state;
    for (int narrow = 0; narrow < 2; narrow++) {
        trd_engine_options o = test_adamw();
        o.grad_dtype = narrow ? TRD_BF16 : TRD_F32;
        trd_engine *engine = with_taken(&o), *alone = toy_of_one_leaf(&o, NULL);
        for (int step = 0; step < 2; step++) {
            for (int i = 0; i < WINDOW; i++) {
                OK(toy_feed(engine, taken[i], 1));
                OK(toy_feed(alone, taken[i], 1));
            }
            OK(trd_engine_update(engine));
            OK(trd_engine_update(alone));
            expect_taken(engine);
            assert_true(test_metric(engine, "gradient_norm") == test_metric(alone, "gradient_norm"));
            assert_true(test_metric(engine, "nonfinite_grads") == 0.0); /* which is about gradients */
            for (size_t i = 0; i < TOY_SIZE; i++)
                assert_true(test_float(trd_engine_params(engine), "w", i) ==
                            test_float(trd_engine_params(alone), "w", i));
        }
        assert_int_equal(trd_view_count(trd_engine_optimizer_state(engine)),
                         trd_view_count(trd_engine_optimizer_state(alone)));
        OK(trd_engine_close(engine));
        OK(trd_engine_close(alone));
    }
}

static void skipped_steps_take_nothing(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    o.grad_dtype = TRD_BF16;
    trd_engine *engine = with_taken(&o);
    float bad[TAKEN * TOY_SIZE];
    for (int i = 0; i < WINDOW; i++) OK(toy_feed(engine, taken[i], 1));
    OK(trd_engine_update(engine));
    memcpy(bad, taken[0], sizeof bad);
    expect_skipped(engine, bad, 0); /* no weighted token */
    bad[0] = NAN;
    expect_skipped(engine, bad, 1);
    expect_taken(engine);
    OK(trd_engine_close(engine));
}

/* The fused step takes the same values, with gradients kept for their norm and with gradients consumed. */
static void fused_steps_take_the_same(void **state)
{
    (void)state;
    for (int consumed = 0; consumed < 2; consumed++) {
        trd_engine_options o = consumed ? test_options() : test_adamw();
        if (consumed) o.skip_step_on_nonfinite = false;
        trd_engine *pair = with_taken(&o), *fused = with_taken(&o);
        for (int i = 0; i < WINDOW; i++) {
            OK(toy_feed(pair, taken[i], 1));
            OK(trd_engine_update(pair));
            OK(toy_fuse(fused, taken[i], 1));
        }
        test_expect_same(pair, fused);
        OK(trd_engine_close(pair));
        OK(trd_engine_close(fused));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divides_once),
        cmocka_unit_test(bounds_of_the_denominator),
        cmocka_unit_test(clips_by_the_norm),
        cmocka_unit_test(norm_stays_finite),
        cmocka_unit_test(empty_update_touches_nothing),
        cmocka_unit_test(nonfinite_is_skipped_or_applied),
        cmocka_unit_test(spikes_are_skipped),
        cmocka_unit_test(values_are_taken),
        cmocka_unit_test(skipped_steps_take_nothing),
        cmocka_unit_test(fused_steps_take_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
