/* Updates at the edges of arithmetic: norms beyond float32's range, bfloat16 gradients, NaN and infinities
 * under every optimizer, denominators of 10^9 tokens, and spike history across a restart. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/shape.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"
#include "support/toy.h"

static const char *const optimizers[] = {"adamw", "adam_pax", "adafactor", "muon", "sgd"};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

static float rounded(float x, trd_dtype dtype)
{
    return dtype == TRD_BF16 ? trd__bf16_to_f32(trd__f32_to_bf16(x)) : x;
}

/* Gradients whose squares, and whose norm, are beyond float32 are finite all the same. */
static void finite_gradients_are_finite(void **state)
{
    (void)state;
    static const float sizes[] = {1e19f, 1e30f, 3e38f};
    for (int dtype = 0; dtype < 2; dtype++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            trd_engine_options o = test_options();
            o.grad_dtype = dtype ? TRD_BF16 : TRD_F32;
            o.gradient_clipping_threshold = 1;
            trd_engine *engine = toy_of_one_leaf(&o, NULL);
            const float g = rounded(sizes[i], o.grad_dtype), x[TOY_SIZE] = {g, -g, g, g};
            OK(toy_feed(engine, x, 1));
            OK(trd_engine_update(engine));
            assert_true(test_metric(engine, "gradient_norm") == 2.0 * (double)g);
            assert_true(test_metric(engine, "nonfinite_grads") == 0.0);
            assert_true(test_metric(engine, "step_skipped") == 0.0);
            assert_float_equal(test_float(trd_engine_params(engine), "w", 0), 0.95f, 1e-6f);
            assert_float_equal(test_float(trd_engine_params(engine), "w", 1), 1.05f, 1e-6f);
            OK(trd_engine_close(engine));
        }
}

/* A small denominator can carry finite sums out of the range: that is not finite, whatever the norm. */
static void division_can_overflow(void **state)
{
    (void)state;
    toy_bounds bounds = {.share = 1e-6};
    trd_engine_options o = test_options();
    trd_engine *engine = toy_of_one_leaf(&o, &bounds);
    const float big[TOY_SIZE] = {1e35f, 0, 0, 0}, small[TOY_SIZE] = {1e30f, 0, 0, 0};
    OK(toy_feed(engine, big, 1));
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "nonfinite_grads") == 1.0);
    assert_true(test_metric(engine, "step_skipped") == 1.0);
    assert_true(test_float(trd_engine_params(engine), "w", 0) == 1.0f);
    OK(toy_feed(engine, small, 1));
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "nonfinite_grads") == 0.0);
    OK(trd_engine_close(engine));
}

/* Each contribution is rounded to the accumulator's dtype, the norm is taken of what it holds, and the
 * divided gradient is rounded once more. */
static void bfloat16_gradients(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    o.grad_dtype = TRD_BF16;
    trd_engine *engine = toy_of_one_leaf(&o, NULL);
    const float a[TOY_SIZE] = {1.2345f, -3.1416f, 1e-3f, 77.7f}, b[TOY_SIZE] = {0.7071f, 2.7183f, 1, -77.7f};
    float held[TOY_SIZE];
    double squares = 0;
    OK(toy_feed(engine, a, 1));
    OK(toy_feed(engine, b, 2));
    OK(trd_engine_update(engine));
    for (int i = 0; i < TOY_SIZE; i++) {
        held[i] = rounded(rounded(a[i], TRD_BF16) + b[i], TRD_BF16);
        squares += (double)held[i] * (double)held[i];
    }
    assert_true(fabs(test_metric(engine, "gradient_norm") / (sqrt(squares) / 3) - 1) < 1e-12);
    for (size_t i = 0; i < TOY_SIZE; i++) {
        float g = rounded(held[i] * (float)(1.0 / 3.0), TRD_BF16);
        assert_true(test_float(trd_engine_params(engine), "w", i) == 1.0f - g * 0.1f);
    }
    OK(trd_engine_close(engine));
}

/* The llama's loss with a factor from the payload, which carries infinities and NaN into every gradient. */
static trd_loss_output poisoned(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    static const trd_sft_options sft;
    (void)user;
    trd_loss_output output = trd_loss_sft(b, model, in, (void *)&sft);
    trd_value factor = trd_sum_all(b, trd_inputs_get(b, in, "factor"));
    output.primary_loss.unreduced_sum = trd_mul(b, output.primary_loss.unreduced_sum, factor);
    return output;
}

static void micro_batch(trd_engine *engine, uint64_t seed, float factor, bool empty)
{
    test_batch b;
    test_batch_fill(&b, seed);
    const trd_array extra = {.name = "factor", .dtype = TRD_F32, .shape = TRD__SHAPE(1), .data = &factor};
    if (empty) memset(b.weights, 0, sizeof b.weights);
    b.batch.extras = &extra;
    b.batch.extra_count = 1;
    OK(trd_engine_fwd_bwd(engine, &b.batch));
}

/* A second micro-batch of the step is bad, or both are empty: nothing moves, whatever the optimizer. */
static void skipped_updates_leave_every_bit(void **state)
{
    (void)state;
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        trd_engine_options o = test_adamw();
        o.optimizer.type = optimizers[kind];
        o.optimizer.adafactor.min_dim_size_to_factor = 8;
        o.optimizer.mu_dtype = kind % 2 ? TRD_BF16 : TRD_F32;
        trd_engine *engine = test_engine(&o);
        OK(trd_engine_with_loss_fn(engine, poisoned, NULL));
        for (int i = 0; i < 2; i++) {
            micro_batch(engine, (uint64_t)i + 1, 1, false);
            OK(trd_engine_update(engine));
            assert_true(test_metric(engine, "step_skipped") == 0.0);
        }
        unsigned char *params = test_state(trd_engine_params(engine), NULL);
        unsigned char *optimizer = test_state(trd_engine_optimizer_state(engine), NULL);
        static const float factors[] = {INFINITY, -INFINITY, NAN, 1};
        for (int i = 0; i < 4; i++) {
            micro_batch(engine, 7, 1, i == 3);
            micro_batch(engine, 8, factors[i], i == 3);
            OK(trd_engine_update(engine));
            assert_true(test_metric(engine, "step_skipped") == 1.0);
            assert_true(test_metric(engine, "nonfinite_grads") == (i == 3 ? 0.0 : 1.0));
            test_same_state(trd_engine_params(engine), params);
            test_same_state(trd_engine_optimizer_state(engine), optimizer);
        }
        assert_true(test_double(trd_engine_optimizer_state(engine), "count") == 2.0);
        free(params);
        free(optimizer);
        OK(trd_engine_close(engine));
    }
}

/* Without gradients of any size every optimizer stays finite, also where it divides by a norm of 0. */
static void norm_zero(void **state)
{
    (void)state;
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        trd_engine_options o = test_adamw();
        o.optimizer.type = optimizers[kind];
        o.optimizer.weight_decay = 0;
        o.optimizer.adafactor.min_dim_size_to_factor = 8;
        trd_engine *engine = test_engine(&o);
        OK(trd_engine_with_loss_fn(engine, poisoned, NULL));
        unsigned char *params = test_state(trd_engine_params(engine), NULL);
        micro_batch(engine, 1, 0, false);
        OK(trd_engine_update(engine));
        assert_true(test_metric(engine, "gradient_norm") == 0.0);
        assert_true(test_metric(engine, "step_skipped") == 0.0);
        test_same_state(trd_engine_params(engine), params);
        free(params);
        OK(trd_engine_close(engine));
    }
}

/* With gradients of 0 only decay is left: every weight shrinks by rate * decay, and what the mask spares
 * keeps its bits. sgd knows no decay. */
static void masked_parameters_do_not_decay(void **state)
{
    (void)state;
    static const char *const mask[] = {"norm", "layers\\.0\\.self_attn", "embed"};
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        trd_engine_options o = test_adamw();
        o.optimizer.type = optimizers[kind];
        o.optimizer.adafactor.min_dim_size_to_factor = 8;
        o.optimizer.weight_decay = o.optimizer.muon.weight_decay = o.optimizer.adafactor.weight_decay = 0.5;
        o.optimizer.mask = mask;
        o.optimizer.mask_count = 3;
        trd_engine *engine = test_engine(&o), *before = test_engine(&o);
        OK(trd_engine_with_loss_fn(engine, poisoned, NULL));
        micro_batch(engine, 1, 0, false);
        OK(trd_engine_update(engine));
        trd_view params = trd_engine_params(engine), old = trd_engine_params(before);
        for (int i = 0; i < trd_view_count(params); i++) {
            const char *name = trd_view_describe(params, i).name;
            bool spared = strstr(name, "norm") || strstr(name, "layers.0.self_attn") || strstr(name, "embed");
            float x = test_float(params, name, 3), y = test_float(old, name, 3);
            if (spared || strcmp(optimizers[kind], "sgd") == 0)
                assert_true(x == y);
            else
                assert_float_equal(x, y * (1 - 0.01f * 0.5f), 1e-6f * fabsf(y));
        }
        OK(trd_engine_close(engine));
        OK(trd_engine_close(before));
    }
}

/* Products that an optimizer makes are none of the model's FLOPs, in one program with them or not. */
static void model_flops_know_no_optimizer(void **state)
{
    (void)state;
    for (int fused = 0; fused < 2; fused++) {
        double flops = 0;
        for (int kind = 0; kind < OPTIMIZERS; kind++) {
            trd_engine_options o = test_adamw();
            trd_plan plan;
            o.optimizer.type = optimizers[kind];
            o.gradient_clipping_threshold = 0;
            o.skip_step_on_nonfinite = !fused;
            trd_engine *engine = test_engine(&o);
            OK(trd_engine_plan(engine, &plan));
            if (kind == 0) flops = plan.flops_per_step;
            assert_true(flops > 0 && plan.flops_per_step == flops);
            OK(trd_engine_close(engine));
        }
    }
}

static void huge_denominators(void **state)
{
    (void)state;
    const double share = 333333333.0; /* of one weighted token; 11 make more than float32 counts */
    toy_bounds bounds = {.share = share};
    trd_engine_options o = test_options();
    o.schedule.learning_rate = 1e9;
    trd_engine *engine = toy_of_one_leaf(&o, &bounds);
    const float x[TOY_SIZE] = {1, 2, -3, 0.25f};
    OK(toy_feed(engine, x, 1));
    OK(toy_feed(engine, x, 2));
    OK(toy_feed(engine, x, 8));
    const double total = 11 * share; /* a window of three of, say, eight micro-batches */
    assert_true(test_double(trd_engine_gradients(engine), "denominator") == total);
    OK(trd_engine_update(engine));
    double norm = 3 * sqrt(1 + 4 + 9 + 0.0625);
    assert_true(fabs(test_metric(engine, "gradient_norm") / (norm / total) - 1) < 1e-15);
    assert_true(test_metric(engine, "total_weights") == total);
    for (size_t i = 0; i < TOY_SIZE; i++) {
        double expected = 1 - 1e9 * 3 * (double)x[i] / total;
        assert_float_equal(test_float(trd_engine_params(engine), "w", i), (float)expected, 3e-7f);
    }
    OK(trd_engine_close(engine));
}

/* A window that ends early is divided by what it holds. */
static void partial_windows(void **state)
{
    (void)state;
    trd_engine_options o = test_options(), plain = o;
    o.gradient_accumulation_steps = 8;
    trd_engine *partial = toy_of_one_leaf(&o, NULL), *whole = toy_of_one_leaf(&plain, NULL);
    const float x[TOY_SIZE] = {1, 2, -3, 4}, y[TOY_SIZE] = {5, 0, 1, -2}, sum[TOY_SIZE] = {6, 2, -2, 2};
    OK(toy_feed(partial, x, 2));
    OK(toy_feed(partial, y, 3));
    OK(toy_feed(whole, sum, 5));
    OK(trd_engine_update(partial));
    OK(trd_engine_update(whole));
    test_expect_same(partial, whole);
    OK(trd_engine_close(partial));
    OK(trd_engine_close(whole));
}

/* -- Spikes -- */

enum { STEPS = 30, INTERVAL = 6, RISE = 10, FIRST_JUDGED = INTERVAL / 2 };

static trd_engine_options spike_options(void)
{
    trd_engine_options o = test_adamw();
    o.skip_step_on_spikes = true;
    o.skip_step_interval = INTERVAL;
    o.skip_step_scaling_factor = 3;
    o.gradient_clipping_threshold = 0;
    o.schedule.learning_rate = 1e-6;
    return o;
}

/* Gradient sizes that vary a little, and from RISE on ten times as much. */
static void spike_step(trd_engine *engine, int i)
{
    float x[TOY_SIZE] = {(i >= RISE ? 10.0f : 1.0f) + 0.01f * (float)(i * 7 % 5), 0, 0, 0};
    OK(toy_feed(engine, x, 2));
    OK(trd_engine_update(engine));
}

/* Whether x is above mean + 3 deviations of the last values: sums in one pass, unlike the engine's two. */
static bool stands_out(const double *values, int count, double x)
{
    int n = count < INTERVAL ? count : INTERVAL;
    double sum = 0, squares = 0;
    for (int i = count - n; i < count; i++) {
        sum += values[i];
        squares += values[i] * values[i];
    }
    double variance = (squares - sum * sum / n) / (n - 1);
    return count >= FIRST_JUDGED && x > sum / n + 3 * sqrt(variance);
}

static void lasting_rise(void **state)
{
    (void)state;
    trd_engine_options o = spike_options();
    trd_engine *engine = toy_of_one_leaf(&o, NULL);
    double losses[STEPS], norms[STEPS];
    int skipped = 0, last = 0;
    for (int i = 0; i < STEPS; i++) {
        spike_step(engine, i);
        losses[i] = test_metric(engine, "loss");
        norms[i] = test_metric(engine, "gradient_norm");
        bool expected = stands_out(losses, i, losses[i]) || stands_out(norms, i, norms[i]);
        assert_int_equal(test_metric(engine, "step_skipped") != 0, expected);
        assert_true(!expected || i >= RISE);
        skipped += expected;
        if (expected) last = i;
    }
    assert_in_range(skipped, 1, INTERVAL);
    assert_true(last < RISE + INTERVAL); /* by then the rise is the baseline */
    assert_true(test_double(trd_engine_optimizer_state(engine), "count") == STEPS - skipped);
    OK(trd_engine_close(engine));
}

/* The history travels in checkpoints: a run resumed just before the rise judges it as one that was not. */
static void spike_history_is_saved(void **state)
{
    trd_engine_options o = spike_options();
    trd_engine *whole = toy_of_one_leaf(&o, NULL);
    o.checkpoint_directory = scratch_path(*state, "spikes");
    trd_engine *first = toy_of_one_leaf(&o, NULL);
    for (int i = 0; i < STEPS; i++) spike_step(whole, i);
    for (int i = 0; i < RISE; i++) spike_step(first, i);
    OK(trd_engine_save(first, NULL, true, NULL));
    OK(trd_engine_close(first));
    trd_engine *second = toy_of_one_leaf(&o, NULL);
    OK(trd_engine_restore(second, -1, NULL));
    assert_true(test_double(trd_engine_optimizer_state(second), "spike_seen") == INTERVAL);
    spike_step(second, RISE);
    assert_true(test_metric(second, "step_skipped") == 1.0);
    for (int i = RISE + 1; i < STEPS; i++) spike_step(second, i);
    test_expect_same(whole, second);
    OK(trd_engine_close(second));
    OK(trd_engine_close(whole));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finite_gradients_are_finite),
        cmocka_unit_test(division_can_overflow),
        cmocka_unit_test(bfloat16_gradients),
        cmocka_unit_test(skipped_updates_leave_every_bit),
        cmocka_unit_test(norm_zero),
        cmocka_unit_test(masked_parameters_do_not_decay),
        cmocka_unit_test(model_flops_know_no_optimizer),
        cmocka_unit_test(huge_denominators),
        cmocka_unit_test(partial_windows),
        cmocka_unit_test(lasting_rise),
        cmocka_unit_test(spike_history_is_saved),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
