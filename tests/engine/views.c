/* Live views, handles to arrays that are gone, getters, forward graphs and plans. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

static void step_once(trd_engine *engine, uint64_t seed)
{
    test_batch b;
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, seed)));
    OK(trd_engine_update(engine));
}

static void handles_know_their_end(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    trd_view params = trd_engine_params(engine);
    int norm = trd_view_find(params, "model.norm.weight");
    float before[16], now[16];
    step_once(engine, 1);
    trd_handle handle = trd_view_handle(params, norm);
    OK(trd_view_read(params, norm, before));
    test_batch b;
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 2)));
    OK(trd_handle_read(handle, now)); /* a micro-batch does not donate the parameters */
    assert_memory_equal(before, now, sizeof now);
    OK(trd_engine_update(engine));
    step_once(engine, 3);
    assert_int_equal(trd_handle_read(handle, now), TRD_DELETED);
    expect_message("deleted by the update of step 2");
    OK(trd_view_read(params, norm, now)); /* the view is current */
    assert_memory_not_equal(before, now, sizeof now);
    trd_handle fresh = trd_view_handle(params, norm);
    OK(trd_handle_read(fresh, before));
    assert_memory_equal(before, now, sizeof now);
    OK(trd_engine_close(engine));
}

static void gradients_live_within_a_step(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    trd_view gradients = trd_engine_gradients(engine);
    float value[16];
    int norm = trd_view_find(gradients, "model.norm.weight");
    assert_int_equal(trd_view_read(gradients, norm, value), TRD_STATE);
    test_batch b;
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 1)));
    OK(trd_view_read(gradients, norm, value));
    trd_handle handle = trd_view_handle(gradients, norm);
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    assert_int_equal(trd_handle_read(handle, value), TRD_DELETED);
    assert_int_equal(trd_engine_train_step(engine, &b.batch), TRD_STATE);
    expect_message("2 micro-batches");
    OK(trd_engine_update(engine));
    assert_int_equal(trd_view_read(gradients, norm, value), TRD_STATE);
    assert_int_equal(trd_view_read(gradients, 999, value), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_view_find(gradients, "nothing"), -1);
    OK(trd_engine_close(engine));
}

static void counts(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    o.schedule = (trd_schedule_options){
        .type = TRD_SCHEDULE_COSINE, .learning_rate = 1, .warmup_steps_fraction = 0.5, .schedule_steps = 10};
    trd_engine *engine = test_engine(&o);
    test_batch b;
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 8)));
    assert_int_equal(trd_engine_data_position(engine), 8);
    assert_true(trd_engine_has_accumulated_grads(engine));
    assert_int_equal(trd_engine_micro_step_count(engine), 1);
    OK(trd_engine_update(engine));
    assert_false(trd_engine_has_accumulated_grads(engine));
    assert_int_equal(trd_engine_micro_step_count(engine), 0);
    OK(trd_engine_train_step(engine, test_batch_fill(&b, 9)));
    assert_int_equal(trd_engine_total_micro_steps(engine), 2);
    assert_int_equal(trd_engine_step(engine), 2);
    assert_true(test_metric(engine, "learning_rate") == trd_schedule_value(&o.schedule, 1));
    OK(trd_engine_set_step(engine, 6));
    step_once(engine, 1);
    assert_true(test_metric(engine, "learning_rate") == trd_schedule_value(&o.schedule, 6));
    assert_int_equal(trd_engine_step(engine), 7);
    assert_int_equal(trd_engine_set_step(engine, -1), TRD_INVALID_ARGUMENT);
    trd_engine_stats stats = trd_engine_get_stats(engine);
    assert_int_equal(stats.micro_batches, 3);
    assert_int_equal(stats.updates, 3);
    assert_true(stats.busy_ns > 0 && stats.host_ns > 0);
    OK(trd_engine_close(engine));
}

static trd_value mean_loss(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)user;
    trd_value weights = trd_inputs_get(b, in, "loss_weights");
    return trd_sum_all(b, trd_mul(b, trd_model_token_logprobs(b, model, in, weights), weights));
}

/* The same payload and parameters give the same bits by fwd_only, eval_step and fwd_bwd. */
static void forward_passes_agree(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    test_batch b;
    float sum, logprobs[TEST_ROWS * TEST_LENGTH], part[TEST_LENGTH];
    test_batch_fill(&b, 4);
    OK(trd_engine_fwd_only(engine, mean_loss, NULL, &b.batch, &sum, sizeof sum));
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    assert_true(test_double(trd_engine_gradients(engine), "loss_sum") == -(double)sum);
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, &b.batch));
    OK(trd_engine_eval_end(engine));
    double total = test_eval_metric(engine, "total_weights");
    assert_true(test_eval_metric(engine, "loss") == -(double)sum * (1 / total));
    OK(trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, &b.batch, logprobs, sizeof logprobs));
    for (int i = 0; i < TEST_ROWS * TEST_LENGTH; i++) {
        bool first = i % TEST_LENGTH == 0 || b.segments[i] != b.segments[i - 1];
        assert_true(first || b.segments[i] == 0 ? logprobs[i] == 0 : logprobs[i] < 0);
    }
    b.batch.rows = 1; /* the rows that pad the batch are dropped */
    OK(trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, &b.batch, part, sizeof part));
    assert_memory_equal(part, logprobs, sizeof part);
    assert_int_equal(
        trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, &b.batch, logprobs, sizeof logprobs),
        TRD_SHAPE);
    OK(trd_engine_close(engine));
}

static void compile_ahead(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *ahead = test_engine(&o), *lazy = test_engine(&o);
    test_batch b;
    OK(trd_engine_compile(ahead, test_batch_fill(&b, 1)));
    OK(trd_engine_compile(ahead, &b.batch));
    assert_int_equal(trd_engine_total_micro_steps(ahead), 0);
    step_once(ahead, 1);
    step_once(lazy, 1);
    test_expect_same(ahead, lazy);
    OK(trd_engine_close(ahead));
    OK(trd_engine_close(lazy));
}

/* Random weights depend on seed and name alone. */
static void weights_by_seed(void **state)
{
    (void)state;
    trd_engine_options o = test_options(), threads = test_options(), other = test_options();
    threads.num_threads = 2;
    other.init_weights_seed = 8;
    trd_engine *a = test_engine(&o), *b = test_engine(&threads), *c = test_engine(&other);
    test_expect_same(a, b);
    size_t bytes;
    unsigned char *x = test_state(trd_engine_params(a), &bytes), *y = test_state(trd_engine_params(c), NULL);
    assert_memory_not_equal(x, y, bytes);
    assert_true(test_float(trd_engine_params(a), "model.norm.weight", 3) == 1.0f);
    free(x);
    free(y);
    OK(trd_engine_close(a));
    OK(trd_engine_close(b));
    OK(trd_engine_close(c));
}

static void plan_is_exact(void **state)
{
    (void)state;
    trd_engine_options o = trd_engine_defaults();
    trd_plan plan;
    o.model_name = "smollm2-135m";
    o.rows = 1;
    o.length = 64;
    o.gradient_accumulation_steps = 2;
    OK(trd_plan_options(&o, &plan));
    assert_int_equal(plan.parameters, 134515008);
    assert_int_equal(plan.parameter_bytes, 4 * plan.parameters);
    assert_true(plan.optimizer_bytes >= 8 * (uint64_t)plan.parameters &&
                plan.optimizer_bytes < 8 * (uint64_t)plan.parameters + 4096);
    assert_true(plan.activation_bytes > 0);
    assert_true(plan.snapshot_bytes >= plan.checkpoint_bytes &&
                plan.snapshot_bytes < plan.checkpoint_bytes + 1000 * 64); /* each of less than 1000 aligned */
    assert_true(plan.peak_bytes >= 16 * (uint64_t)plan.parameters + plan.activation_bytes);
    /* 6 per weight and token, and the causal half of attention thrice. */
    double weights = 6.0 * (double)plan.parameters * 64 * 2;
    assert_true(plan.flops_per_step > 0.98 * weights && plan.flops_per_step < 1.05 * weights);
}

/* The peak is what the backend holds once everything has run, to the byte. */
static void plan_is_what_is_held(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    o.num_threads = 2;
    for (int policy = TRD_REMAT_NONE; policy <= TRD_REMAT_FULL; policy++)
        for (int steps = 1; steps <= 4; steps++) {
            test_batch b;
            trd_plan plan;
            o.remat_policy = (trd_remat_policy)policy;
            o.gradient_accumulation_steps = steps;
            o.diagnostics[TRD_DIAGNOSTIC_ACCUMULATE] = steps > 2;
            trd_engine *engine = test_engine(&o);
            test_batch_fill(&b, 1);
            for (int i = 0; i < steps; i++) OK(trd_engine_fwd_bwd(engine, &b.batch));
            OK(trd_engine_update(engine));
            OK(trd_engine_eval_begin(engine));
            OK(trd_engine_eval_step(engine, &b.batch));
            OK(trd_engine_eval_end(engine));
            uint64_t held = engine->backend->table->stats(engine->backend).memory_bytes;
            OK(trd_engine_plan(engine, &plan));
            assert_int_equal(plan.peak_bytes, held);
            OK(trd_engine_close(engine));
        }
}

/* State written from outside is what the next step starts from, and what was read before is gone. */
static void written_state_counts(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *engine = test_engine(&o), *other = test_engine(&o);
    test_batch b;
    OK(trd_engine_train_step(engine, test_batch_fill(&b, 1)));
    trd_view from[] = {trd_engine_params(engine), trd_engine_optimizer_state(engine)};
    trd_view to[] = {trd_engine_params(other), trd_engine_optimizer_state(other)};
    trd_handle old = trd_view_handle(to[0], 0);
    unsigned char value[8 * TEST_VOCAB * 64];
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < trd_view_count(from[v]); i++) {
            OK(trd_view_read(from[v], i, value));
            OK(trd_view_write(to[v], i, value));
        }
    assert_int_equal(trd_handle_read(old, value), TRD_DELETED);
    OK(trd_engine_set_step(other, 1));
    OK(trd_engine_train_step(engine, test_batch_fill(&b, 2)));
    OK(trd_engine_train_step(other, &b.batch));
    test_expect_same(engine, other);
    assert_int_equal(trd_view_write(to[0], trd_view_count(to[0]), value), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_view_write(trd_engine_gradients(other), 0, value), TRD_STATE);
    OK(trd_engine_close(other));
    OK(trd_engine_close(engine));
}

/* A step that consumes its gradients books none, until somebody wants them. */
static void train_step_books_no_gradients(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    o.gradient_clipping_threshold = 0;
    o.skip_step_on_nonfinite = false;
    test_batch b;
    trd_plan plan;
    trd_engine *engine = test_engine(&o);
    OK(trd_engine_train_step(engine, test_batch_fill(&b, 1)));
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, &b.batch));
    OK(trd_engine_eval_end(engine));
    OK(trd_engine_plan(engine, &plan));
    assert_int_equal(plan.gradient_bytes, 0);
    assert_int_equal(plan.peak_bytes, engine->backend->table->stats(engine->backend).memory_bytes);
    trd_view gradients = trd_engine_gradients(engine);
    trd_handle handle = trd_view_handle(gradients, 0);
    float value[TEST_VOCAB * 64];
    assert_int_equal(trd_view_read(gradients, 0, value), TRD_STATE);
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    OK(trd_view_read(gradients, trd_view_find(gradients, "model.norm.weight"), value));
    assert_int_equal(trd_handle_read(handle, value), TRD_DELETED);
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(train_step_books_no_gradients),
        cmocka_unit_test(written_state_counts),
        cmocka_unit_test(handles_know_their_end),
        cmocka_unit_test(gradients_live_within_a_step),
        cmocka_unit_test(counts),
        cmocka_unit_test(forward_passes_agree),
        cmocka_unit_test(compile_ahead),
        cmocka_unit_test(weights_by_seed),
        cmocka_unit_test(plan_is_exact),
        cmocka_unit_test(plan_is_what_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
