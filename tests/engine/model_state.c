/* Model state: read and replaced by every micro-batch of training in order, read and never written elsewhere,
 * saved and restored with the rest. A toy keeps running statistics; the llama drops out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/shape.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { SIZE = 4, MEAN = 0, SEEN = 1, MICRO = 2, STEPS = 2, MASKED = 40000 };

/* Sum of w x (1 + mean) over the total weight; the mean moves a quarter of the way to x. */
static trd_loss_output statistics_loss(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                       void *user)
{
    (void)user;
    trd_value x = trd_inputs_get(b, in, "x"), one = trd_scalar(b, TRD_F32, 1);
    trd_value mean = trd__model_state(b, model, in, MEAN), seen = trd__model_state(b, model, in, SEEN);
    trd_value term = trd_mul(b, trd_mul(b, in->parameters[0], x), trd_add(b, one, mean));
    trd_value step = trd_mul(b, trd_sub(b, x, mean), trd_scalar(b, TRD_F32, 0.25));
    trd__model_replace_state(in, MEAN, trd_add(b, mean, step));
    trd__model_replace_state(in, SEEN, trd_add(b, seen, trd_scalar(b, TRD_I32, 1)));
    trd_value weights = trd_sum_all(b, trd_inputs_get(b, in, "loss_weights"));
    return trd_loss(trd_weighted(trd_sum_all(b, term), weights));
}

static trd_value statistics_seen(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)user;
    trd_value mean = trd__model_state(b, model, in, MEAN);
    trd__model_replace_state(in, MEAN, trd_add(b, mean, mean)); /* outside training nobody takes it */
    return mean;
}

static trd_engine *statistics(const trd_engine_options *o)
{
    static const test_leaf leaf = {"w", SIZE, 0};
    static const trd__state states[] = {
        {.name = "mean", .dtype = TRD_F32, .shape = {1, {SIZE}}, .initial = 0.5},
        {.name = "seen", .dtype = TRD_I32}};
    trd_model *model = test_toy(&leaf, 1);
    trd_engine *engine = NULL;
    int index;
    for (int i = 0; i < 2; i++) {
        OK(trd__model_declare_state(model, &states[i], &index));
        assert_int_equal(index, i);
    }
    OK(trd__engine_create_with_model(o, model, &engine));
    OK(trd_engine_with_loss_fn(engine, statistics_loss, NULL));
    return engine;
}

typedef struct payload {
    float x[SIZE], weights[TEST_LENGTH];
    int32_t tokens[TEST_LENGTH];
    trd_array extra;
    trd_batch batch;
} payload;

static const trd_batch *payload_of(payload *p, float first, bool weighted)
{
    memset(p, 0, sizeof *p);
    for (int i = 0; i < SIZE; i++) p->x[i] = first + (float)i;
    p->weights[1] = weighted ? 1.0f : 0.0f;
    p->extra = (trd_array){.name = "x", .dtype = TRD_F32, .shape = TRD__SHAPE(SIZE), .data = p->x};
    p->batch = (trd_batch){.rows = 1,
                           .length = TEST_LENGTH,
                           .token_ids = p->tokens,
                           .loss_weights = p->weights,
                           .extras = &p->extra,
                           .extra_count = 1};
    return &p->batch;
}

static int32_t seen(trd_engine *engine)
{
    int32_t value;
    trd_view view = trd_engine_model_state(engine);
    OK(trd_view_read(view, trd_view_find(view, "seen"), &value));
    return value;
}

/* What an evaluation and a forward graph find, and that they leave it. */
static void look(trd_engine *engine, const float *mean)
{
    float read[SIZE];
    payload p;
    unsigned char *before = test_state(trd_engine_model_state(engine), NULL);
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, payload_of(&p, 1, true)));
    OK(trd_engine_eval_end(engine));
    double expected = 0;
    for (size_t i = 0; i < SIZE; i++)
        expected += (double)test_float(trd_engine_params(engine), "w", i) * p.x[i] * (1.0 + mean[i]);
    assert_true(fabs(test_eval_metric(engine, "loss") - expected) < 1e-5 * fabs(expected));
    OK(trd_engine_fwd_only(engine, statistics_seen, NULL, &p.batch, read, sizeof read));
    assert_memory_equal(read, mean, sizeof read);
    test_same_state(trd_engine_model_state(engine), before);
    free(before);
}

static void statistics_follow_every_micro_batch(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = statistics(&o);
    float mean[SIZE] = {0.5f, 0.5f, 0.5f, 0.5f};
    payload p;
    for (int i = 0; i < 7; i++) {
        look(engine, mean);
        bool skipped = i >= 4; /* without weighted tokens the update learns nothing, the state moves on */
        payload_of(&p, (float)i - 2, !skipped);
        if (i == 3)
            OK(trd_engine_train_step(engine, &p.batch));
        else
            OK(trd_engine_fwd_bwd(engine, &p.batch));
        for (int k = 0; k < SIZE; k++) mean[k] += (p.x[k] - mean[k]) * 0.25f;
        for (size_t k = 0; k < SIZE; k++)
            assert_true(test_float(trd_engine_model_state(engine), "mean", k) == mean[k]);
        assert_int_equal(seen(engine), i + 1);
        look(engine, mean);
        if (i == 1 || i == 2 || i == 6) OK(trd_engine_update(engine));
    }
    assert_true(test_metric(engine, "step_skipped") == 1.0);
    assert_int_equal(seen(engine), 7);
    OK(trd_engine_close(engine));
}

static void handles_die_with_the_micro_batch(void **state)
{
    (void)state;
    float read[SIZE];
    payload p;
    trd_engine_options o = test_options();
    trd_engine *engine = statistics(&o);
    trd_handle handle = trd_view_handle(trd_engine_model_state(engine), MEAN);
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, payload_of(&p, 1, true)));
    OK(trd_engine_eval_end(engine));
    OK(trd_handle_read(handle, read));
    OK(trd_engine_fwd_bwd(engine, &p.batch));
    assert_int_equal(trd_handle_read(handle, read), TRD_DELETED);
    assert_non_null(strstr(trd_error_message(), "\"mean\": deleted by a later micro-batch"));
    handle = trd_view_handle(trd_engine_model_state(engine), MEAN);
    OK(trd_engine_update(engine)); /* which binds no model state */
    OK(trd_handle_read(handle, read));
    OK(trd_engine_close(engine));
}

static void planned_and_rejected(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = statistics(&o), *none = NULL;
    trd_plan plan;
    const test_leaf leaf = {"w", SIZE, 0};
    o.dropout_rate = 0.1;
    assert_int_equal(trd__engine_create_with_model(&o, test_toy(&leaf, 1), &none), TRD_UNSUPPORTED);
    assert_non_null(strstr(trd_error_message(), "the architecture \"toy\" has no dropout"));
    o.dropout_rate = 1;
    assert_int_equal(trd__engine_create_with_model(&o, test_llama(), &none), TRD_INVALID_ARGUMENT);
    o.dropout_rate = 0.5;
    none = test_engine(&o);
    OK(trd_engine_plan(none, &plan));
    assert_int_equal(plan.model_state_bytes, 64); /* one counter, in its cache line */
    assert_int_equal(plan.peak_bytes, plan.parameter_bytes + plan.optimizer_bytes + plan.gradient_bytes +
                                          plan.model_state_bytes + plan.input_bytes + plan.activation_bytes +
                                          plan.scratch_bytes);
    OK(trd_engine_close(none));
    o.dropout_rate = 0;
    none = test_engine(&o);
    OK(trd_engine_plan(none, &plan));
    assert_int_equal(plan.model_state_bytes, 0);
    assert_int_equal(trd_view_count(trd_engine_model_state(none)), 0);
    OK(trd_engine_close(none));
    OK(trd_engine_close(engine));
}

/* -- dropout -- */

static trd_engine_options dropping(void)
{
    trd_engine_options o = test_adamw();
    o.dropout_rate = 0.3;
    o.gradient_accumulation_steps = MICRO;
    return o;
}

static void read_everything(trd_engine *engine)
{
    OK(trd_engine_wait(engine));
    free(test_state(trd_engine_params(engine), NULL));
    free(test_state(trd_engine_optimizer_state(engine), NULL));
    free(test_state(trd_engine_model_state(engine), NULL));
    if (trd_engine_has_accumulated_grads(engine)) free(test_state(trd_engine_gradients(engine), NULL));
    trd_step_metrics metrics;
    OK(trd_engine_get_metrics(engine, false, &metrics));
}

static void evaluate(trd_engine *engine)
{
    test_batch b;
    float logprobs[TEST_ROWS * TEST_LENGTH];
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, test_batch_fill(&b, 500)));
    OK(trd_engine_eval_end(engine));
    OK(trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, &b.batch, logprobs, sizeof logprobs));
}

/* Micro-batches begin to end of the run; `between` runs after every call of the engine. */
static void feed(trd_engine *engine, int begin, int end, void (*between)(trd_engine *engine))
{
    for (int i = begin; i < end; i++) {
        test_batch b;
        OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 20 + (uint64_t)i)));
        if (between) between(engine);
        if (i % MICRO != MICRO - 1) continue;
        OK(trd_engine_update(engine));
        if (between) between(engine);
    }
}

static void expect_same(trd_engine *a, trd_engine *b)
{
    const trd_step_metrics *x, *y;
    int count_x, count_y;
    unsigned char *states = test_state(trd_engine_model_state(b), NULL);
    test_expect_same(a, b);
    test_same_state(trd_engine_model_state(a), states);
    OK(trd_engine_get_metrics_history(a, false, &x, &count_x));
    OK(trd_engine_get_metrics_history(b, false, &y, &count_y));
    assert_int_equal(count_x, STEPS);
    assert_int_equal(count_y, STEPS);
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < 8; i++) /* what follows is time */
            assert_true(x[s].metrics[i].value == y[s].metrics[i].value);
    free(states);
}

static void publication_changes_no_bit(void **state)
{
    (void)state;
    void (*const between[])(trd_engine *) = {read_everything, evaluate};
    trd_engine_options o = dropping();
    for (int i = 0; i < 4; i++) {
        o.num_threads = 1 + i / 2;
        trd_engine *never = test_engine(&o), *other = test_engine(&o);
        feed(never, 0, STEPS * MICRO, NULL);
        feed(other, 0, STEPS * MICRO, between[i % 2]);
        expect_same(never, other);
        OK(trd_engine_close(never));
        OK(trd_engine_close(other));
    }
}

static void resumes_inside_a_step(void **state)
{
    trd_engine_options o = dropping(), plain = dropping();
    char folder[600];
    for (int cut = 1; cut < STEPS * MICRO; cut++) {
        snprintf(folder, sizeof folder, "%s/cut-%d", (const char *)*state, cut);
        o.checkpoint_directory = folder;
        trd_engine *whole = test_engine(&plain), *first = test_engine(&o);
        feed(whole, 0, STEPS * MICRO, NULL);
        feed(first, 0, cut, NULL);
        OK(trd_engine_save(first, NULL, true, NULL));
        OK(trd_engine_close(first));
        trd_engine *second = test_engine(&o);
        feed(second, 0, 1, NULL); /* what the restore must replace */
        OK(trd_engine_restore(second, -1, NULL));
        feed(second, cut, STEPS * MICRO, NULL);
        expect_same(whole, second);
        OK(trd_engine_close(second));
        OK(trd_engine_close(whole));
    }
}

/* Masks are drawn by the seed, which is no part of what a restore replaces. */
static void another_seed_is_refused(void **state)
{
    trd_engine_options o = dropping();
    char folder[600];
    snprintf(folder, sizeof folder, "%s/seed", (const char *)*state);
    o.checkpoint_directory = folder;
    trd_engine *engine = test_engine(&o);
    feed(engine, 0, 1, NULL);
    OK(trd_engine_close(engine));
    o.init_weights_seed++;
    engine = test_engine(&o);
    assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_INVALID_ARGUMENT);
    expect_message("init_weights_seed expected");
    OK(trd_engine_close(engine));
}

static void recomputing_draws_the_same(void **state)
{
    (void)state;
    static const trd_remat_policy policies[] = {TRD_REMAT_NONE, TRD_REMAT_MINIMAL, TRD_REMAT_FULL};
    trd_engine_options o = dropping();
    trd_engine *plain = test_engine(&o);
    feed(plain, 0, STEPS * MICRO, NULL);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        o.remat_policy = policies[i];
        trd_engine *other = test_engine(&o);
        feed(other, 0, STEPS * MICRO, NULL);
        expect_same(plain, other);
        OK(trd_engine_close(other));
    }
    OK(trd_engine_close(plain));
}

static void train_step_is_the_pair(void **state)
{
    (void)state;
    trd_engine_options o = dropping();
    trd_engine *pair = test_engine(&o), *fused = test_engine(&o);
    for (uint64_t i = 0; i < STEPS; i++) {
        test_batch b;
        OK(trd_engine_fwd_bwd(pair, test_batch_fill(&b, i)));
        OK(trd_engine_update(pair));
        OK(trd_engine_train_step(fused, &b.batch));
    }
    expect_same(pair, fused);
    OK(trd_engine_close(pair));
    OK(trd_engine_close(fused));
}

/* Evaluation is that of the model without dropout; training is not, and differs from call to call. */
static void only_training_drops(void **state)
{
    (void)state;
    trd_engine_options o = dropping(), off = dropping();
    off.dropout_rate = 0;
    trd_engine *with = test_engine(&o), *without = test_engine(&off);
    test_batch b;
    double losses[3];
    evaluate(with);
    evaluate(without);
    assert_true(test_eval_metric(with, "loss") == test_eval_metric(without, "loss"));
    o.schedule.learning_rate = 0;
    trd_engine *still = test_engine(&o);
    for (int i = 0; i < 2; i++) {
        OK(trd_engine_train_step(still, test_batch_fill(&b, 3)));
        losses[i] = test_metric(still, "loss");
    }
    OK(trd_engine_train_step(without, test_batch_fill(&b, 3)));
    losses[2] = test_metric(without, "loss");
    assert_true(losses[0] != losses[1] && losses[0] != losses[2] && losses[1] != losses[2]);
    OK(trd_engine_close(with));
    OK(trd_engine_close(without));
    OK(trd_engine_close(still));
}

/* The loss of a first micro-batch with the parameters moved by `share` of a gradient step. */
static double loss_along(trd_engine *from, double share)
{
    trd_engine_options o = dropping();
    trd_engine *engine = test_engine(&o);
    trd_view params = trd_engine_params(engine), gradients = trd_engine_gradients(from);
    test_batch b;
    double loss;
    for (int i = 0; i < trd_view_count(params); i++) {
        float values[TEST_VOCAB * 64], slopes[TEST_VOCAB * 64];
        trd_array array = trd_view_describe(params, i);
        OK(trd_view_read(params, i, values));
        OK(trd_view_read(gradients, i, slopes));
        for (int64_t k = 0; k < trd__shape_count(&array.shape); k++) values[k] += (float)share * slopes[k];
        OK(engine->backend->table->set_write(engine->backend, engine->state[TRD__ROLE_PARAMS], i, values));
    }
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 9)));
    loss = test_double(trd_engine_gradients(engine), "loss_sum");
    OK(trd_engine_close(engine));
    return loss;
}

/* The gradient belongs to the masks of the forward pass: moving along it changes the loss by its square. */
static void gradient_has_the_masks_of_the_loss(void **state)
{
    (void)state;
    trd_engine_options o = dropping();
    trd_engine *engine = test_engine(&o);
    test_batch b;
    double squares = 0, share = 1e-4;
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 9)));
    trd_view gradients = trd_engine_gradients(engine);
    for (int i = 0; i < trd_engine_model(engine)->parameter_count; i++) {
        float slopes[TEST_VOCAB * 64];
        trd_array array = trd_view_describe(gradients, i);
        OK(trd_view_read(gradients, i, slopes));
        for (int64_t k = 0; k < trd__shape_count(&array.shape); k++) squares += pow((double)slopes[k], 2);
    }
    double slope = (loss_along(engine, share) - loss_along(engine, -share)) / (2 * share);
    assert_true(fabs(slope / squares - 1) < 0.01);
    OK(trd_engine_close(engine));
}

/* -- masks -- */

/* Sum of the dropped parameter: its gradient is mask / (1 - rate). */
static trd_loss_output mask_loss(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    const int64_t *site = user;
    trd_value counter = trd__model_state(b, model, in, 0);
    trd__model_replace_state(in, 0, trd_add(b, counter, trd_scalar(b, TRD_I32, 1)));
    trd_value dropped =
        trd_dropout(b, in->parameters[0], counter, trd_scalar(b, TRD_I32, (double)*site), 0.25, 11);
    return trd_loss(trd_loss_mean(b, trd_sum_all(b, dropped)));
}

/* Reads the masks of two micro-batches one after the other. */
static void draw_masks(int threads, int64_t site, float *first, float *second)
{
    const test_leaf leaf = {"w", MASKED, 0};
    const trd__state counter = {.name = "counter", .dtype = TRD_I32};
    trd_engine_options o = test_options();
    o.num_threads = threads;
    trd_engine *engine = NULL;
    trd_model *model = test_toy(&leaf, 1);
    int index;
    payload p;
    OK(trd__model_declare_state(model, &counter, &index));
    OK(trd__engine_create_with_model(&o, model, &engine));
    OK(trd_engine_with_loss_fn(engine, mask_loss, &site));
    for (int i = 0; i < 2; i++) {
        OK(trd_engine_fwd_bwd(engine, payload_of(&p, 0, true)));
        OK(trd_view_read(trd_engine_gradients(engine), 0, i ? second : first));
        OK(trd_engine_update(engine));
    }
    OK(trd_engine_close(engine));
}

static void masks_have_their_moments(void **state)
{
    (void)state;
    static float masks[6][MASKED];
    draw_masks(1, 0, masks[0], masks[1]);
    draw_masks(1, 1, masks[2], masks[3]);
    draw_masks(3, 0, masks[4], masks[5]);
    assert_memory_equal(masks[4], masks[0], sizeof masks[0]); /* whatever the number of threads */
    assert_memory_equal(masks[5], masks[1], sizeof masks[1]);
    double kept[4] = {0}, both[4][4] = {{0}}, neighbours = 0;
    for (int i = 0; i < MASKED; i++) {
        if (i) neighbours += masks[0][i] != 0 && masks[0][i - 1] != 0;
        for (int m = 0; m < 4; m++) {
            assert_true(masks[m][i] == 0 || masks[m][i] == (float)(1 / 0.75));
            kept[m] += masks[m][i] != 0;
            for (int k = 0; k < m; k++) both[m][k] += masks[m][i] != 0 && masks[k][i] != 0;
        }
    }
    const double share = 0.75, deviation = sqrt(share * (1 - share) / MASKED);
    const double pair = share * share, off = 5 * sqrt(pair * (1 - pair) / MASKED);
    for (int m = 0; m < 4; m++) {
        assert_true(fabs(kept[m] / MASKED - share) < 5 * deviation);
        for (int k = 0; k < m; k++) assert_true(fabs(both[m][k] / MASKED - pair) < off); /* independent */
    }
    assert_true(fabs(neighbours / MASKED - pair) < off);
}

static void rate_0_is_no_op(void **state)
{
    (void)state;
    trd_builder *b;
    OK(trd_builder_create(&b));
    trd_value x = trd_constant_fill(b, TRD_F32, TRD__SHAPE(3), 1), counter = trd_scalar(b, TRD_I32, 0);
    int nodes = b->graph.node_count;
    assert_true(trd_same(trd_dropout(b, x, counter, counter, 0, 1), x));
    assert_int_equal(b->graph.node_count, nodes);
    OK(trd_builder_status(b));
    assert_true(trd_is_null(trd_dropout(b, x, counter, counter, 1, 1)));
    assert_int_equal(trd_builder_status(b), TRD_INVALID_ARGUMENT);
    trd_builder_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_follow_every_micro_batch),
        cmocka_unit_test(handles_die_with_the_micro_batch),
        cmocka_unit_test(planned_and_rejected),
        cmocka_unit_test(publication_changes_no_bit),
        cmocka_unit_test(resumes_inside_a_step),
        cmocka_unit_test(another_seed_is_refused),
        cmocka_unit_test(recomputing_draws_the_same),
        cmocka_unit_test(train_step_is_the_pair),
        cmocka_unit_test(only_training_drops),
        cmocka_unit_test(gradient_has_the_masks_of_the_loss),
        cmocka_unit_test(masks_have_their_moments),
        cmocka_unit_test(rate_0_is_no_op),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
