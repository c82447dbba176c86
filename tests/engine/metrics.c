/* Metrics: token-weighted values read after the next dispatch, aggregation of what the caller records, a
 * bounded history, sinks in step order, and evaluation over a whole set. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/engine.h"
#include "support/scratch.h"

static trd_loss_output with_aux(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    trd_loss_output output = trd_loss_sft(b, model, in, user);
    trd_value weights = trd_inputs_get(b, in, "loss_weights");
    trd_value twice = trd_mul(b, output.primary_loss.unreduced_sum, trd_scalar(b, TRD_F32, 2));
    trd_loss_add_metric(b, &output, "group/double", trd_weighted(twice, trd_sum_all(b, weights)));
    trd_loss_add_metric(b, &output, "seven", trd_loss_mean(b, trd_scalar(b, TRD_F32, 7)));
    return output;
}

/* The loss of a step is sum / sum over its micro-batches; the mean of means counts empty ones as 0. */
static void values_of_a_step(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    o.schedule.learning_rate = 0.25;
    o.metrics_prefix = "run/";
    trd_engine *engine = test_engine(&o);
    OK(trd_engine_with_loss_fn(engine, with_aux, NULL));
    double sums[3], denominators[3], sum = 0, denominator = 0, means = 0, seen_sum = 0, seen = 0;
    for (int i = 0; i < 3; i++) {
        test_batch b;
        test_batch_fill(&b, (uint64_t)i + 1);
        if (i == 1) memset(b.weights, 0, sizeof b.weights);
        OK(trd_engine_fwd_bwd(engine, &b.batch));
        trd_view g = trd_engine_gradients(engine);
        sums[i] = test_double(g, "loss_sum") - seen_sum;
        denominators[i] = test_double(g, "denominator") - seen;
        seen_sum += sums[i];
        seen += denominators[i];
    }
    for (int i = 0; i < 3; i++) {
        sum += sums[i];
        denominator += denominators[i];
        means += denominators[i] > 0 ? sums[i] / denominators[i] / 3 : 0;
    }
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "run/learning_rate") == 0.25);
    assert_true(fabs(test_metric(engine, "run/loss") - sum / denominator) < 1e-9);
    assert_true(fabs(test_metric(engine, "run/perplexity") / exp(sum / denominator) - 1) < 1e-9);
    assert_true(fabs(test_metric(engine, "run/loss_mean_of_means") - means) < 1e-9);
    assert_true(test_metric(engine, "run/total_weights") == denominator);
    assert_true(fabs(test_metric(engine, "run/group/double") - 2 * sum / denominator) < 1e-6);
    assert_true(test_metric(engine, "run/seven") == 7);
    assert_true(test_metric(engine, "run/step_time") > 0);
    assert_true(test_metric(engine, "run/tokens_per_second") > 0);
    assert_true(test_metric(engine, "run/tflops") > 0);
    double busy = test_metric(engine, "run/utilization");
    assert_true(busy > 0 && busy <= 1);
    OK(trd_engine_close(engine));
}

/* A sink that notes what reaches it. */
typedef struct note {
    int begun, flushed, closed;
    int64_t resumed, steps[16];
    trd_metric_mode modes[16];
    double losses[16];
    int count;
    bool refuse;
} note;

static trd_status note_begin(void *user, const trd_run_info *info)
{
    note *n = user;
    n->begun++;
    n->resumed = info->resumed_step;
    return TRD_OK;
}

static trd_status note_write(void *user, trd_metric_mode mode, int64_t step, const trd_metric *metrics,
                             int count)
{
    note *n = user;
    if (n->refuse) return TRD_IO;
    for (int i = 0; i < count; i++)
        if (strcmp(metrics[i].name, "loss") == 0) n->losses[n->count] = metrics[i].value;
    n->modes[n->count] = mode;
    n->steps[n->count++] = step;
    return TRD_OK;
}

static trd_status note_flush(void *user)
{
    ((note *)user)->flushed++;
    return TRD_OK;
}

static trd_status note_close(void *user)
{
    ((note *)user)->closed++;
    return TRD_OK;
}

static trd_engine *noted(trd_engine_options *o, note *n)
{
    const trd_metric_sink sink = {note_begin, note_write, note_flush, note_close, n};
    o->sinks = &sink;
    o->sink_count = 1;
    return test_engine(o);
}

static void step_once(trd_engine *engine, uint64_t seed)
{
    test_batch b;
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, seed)));
    OK(trd_engine_update(engine));
}

static void written_after_the_next_dispatch(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    note n = {.begun = 0};
    trd_engine *engine = noted(&o, &n);
    step_once(engine, 1);
    assert_int_equal(n.count, 0); /* nothing is dispatched behind this update yet */
    for (uint64_t i = 2; i <= 6; i++) step_once(engine, i);
    assert_true(n.count >= 3); /* only max_inflight computations may be unread */
    trd_step_metrics metrics;
    OK(trd_engine_get_metrics(engine, true, &metrics));
    assert_int_equal(metrics.step, 6);
    assert_int_equal(n.count, 6);
    for (int i = 0; i < 6; i++) assert_int_equal(n.steps[i], i + 1);
    OK(trd_engine_get_metrics(engine, false, &metrics));
    assert_int_equal(metrics.step, -1); /* cleared */
    assert_int_equal(metrics.count, 0);
    step_once(engine, 7);
    OK(trd_engine_close(engine)); /* writes what is buffered */
    assert_int_equal(n.count, 7);
    assert_int_equal(n.begun, 1);
    assert_int_equal(n.resumed, -1);
    assert_int_equal(n.closed, 1);
}

static void failing_sink_is_told_once(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    note n = {.refuse = true};
    trd_engine *engine = noted(&o, &n);
    trd_step_metrics metrics;
    step_once(engine, 1);
    OK(trd_engine_get_metrics(engine, false, &metrics)); /* meets the failure */
    assert_int_equal(trd_engine_get_metrics(engine, false, &metrics), TRD_IO);
    n.refuse = false;
    step_once(engine, 2);
    OK(trd_engine_close(engine));
    assert_int_equal(n.count, 1);
}

static void host_metrics_aggregate(void **state)
{
    (void)state;
    static const double expected[] = {2, 6, 3, 1, 3};
    static const char *const names[] = {"mean", "sum", "last", "min", "max"};
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    for (int v = 1; v <= 3; v++) {
        test_batch b;
        for (int a = 0; a < 5; a++)
            OK(trd_engine_record_metrics(engine, names[a], trd_recorded_number(v), (trd_aggregation)a));
        OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, (uint64_t)v)));
    }
    assert_int_equal(trd_engine_record_metrics(engine, "mean", trd_recorded_number(1), TRD_AGGREGATE_SUM),
                     TRD_INVALID_ARGUMENT);
    OK(trd_engine_update(engine));
    OK(trd_engine_record_metrics(engine, "mean", trd_recorded_number(50),
                                 TRD_AGGREGATE_MEAN)); /* of the next step */
    for (int a = 0; a < 5; a++) assert_true(test_metric(engine, names[a]) == expected[a]);
    step_once(engine, 9);
    assert_true(test_metric(engine, "mean") == 50);
    OK(trd_engine_close(engine));
}

static double product(void *user, double so_far, double value, int count)
{
    ++*(int *)user;
    return count ? so_far * value : value;
}

/* Groups join names, nothing is skipped, weighted values are divided once, and a caller may fold. */
static void host_metrics_of_every_kind(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    trd_recorded inner[] = {{.kind = TRD_RECORDED_NUMBER, .name = "mean", .value = 3},
                            {.kind = TRD_RECORDED_NOTHING, .name = "skipped"}};
    trd_recorded members[] = {
        {.kind = TRD_RECORDED_WEIGHTED, .name = "entropy", .value = 6, .denominator = 4},
        {.kind = TRD_RECORDED_GROUP, .name = "reward", .members = inner, .member_count = 2}};
    const trd_recorded group = {.kind = TRD_RECORDED_GROUP, .members = members, .member_count = 2};
    int folds = 0;
    OK(trd_engine_record_metrics(engine, "rl", group, TRD_AGGREGATE_MEAN));
    members[0].value = 2;
    members[0].denominator = 12;
    OK(trd_engine_record_metrics(engine, "rl", group, TRD_AGGREGATE_MEAN));
    OK(trd_engine_record_metrics(engine, "top", trd_recorded_weighted(6, 4), TRD_AGGREGATE_MAX));
    OK(trd_engine_record_metrics(engine, "top", trd_recorded_weighted(2, 12), TRD_AGGREGATE_MAX));
    OK(trd_engine_record_metrics(engine, "empty", trd_recorded_weighted(1, 0), TRD_AGGREGATE_MEAN));
    OK(trd_engine_record_folded(engine, "product", 3, product, &folds));
    OK(trd_engine_record_folded(engine, "product", 5, product, &folds));
    inner[0].name = NULL;
    assert_int_equal(trd_engine_record_metrics(engine, "rl", group, TRD_AGGREGATE_MEAN),
                     TRD_INVALID_ARGUMENT);
    step_once(engine, 1);
    assert_true(test_metric(engine, "rl/entropy") == 0.5);
    assert_true(test_metric(engine, "rl/reward/mean") == 3);
    assert_true(test_metric(engine, "top") == 1.5);
    assert_true(test_metric(engine, "empty") == 0);
    assert_true(test_metric(engine, "product") == 15 && folds == 2);
    OK(trd_engine_close(engine));
}

static void count_warnings(void *user, trd_log_level level, const char *line)
{
    if (level == TRD_LOG_WARNING && strstr(line, "dropped")) ++*(int *)user;
}

static trd_loss_output with_taken_name(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                       void *user)
{
    trd_loss_output output = trd_loss_sft(b, model, in, NULL);
    trd_loss_add_metric(b, &output, user, output.primary_loss);
    return output;
}

/* A record has each name once, so that a checkpoint of it can be read: names of the engine's own metrics are
 * refused, and of an aux metric and a host value of one name the host's counts. */
static void names_are_there_once(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    o.metrics_prefix = "run/";
    trd_engine *engine = test_engine(&o);
    test_batch b;
    test_batch_fill(&b, 1);
    assert_int_equal(trd_engine_record_metrics(engine, "loss", trd_recorded_number(1), TRD_AGGREGATE_MEAN),
                     TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "metric \"loss\": every step has one of that name"));
    OK(trd_engine_with_loss_fn(engine, with_taken_name, (void *)"tokens_per_second"));
    assert_int_equal(trd_engine_fwd_bwd(engine, &b.batch), TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "\"tokens_per_second\": every step has one"));
    OK(trd_engine_with_loss_fn(engine, with_taken_name, (void *)"mine"));
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    OK(trd_engine_record_metrics(engine, "mine", trd_recorded_number(-3), TRD_AGGREGATE_LAST));
    OK(trd_engine_update(engine));
    trd_step_metrics m;
    int found = 0;
    OK(trd_engine_get_metrics(engine, false, &m));
    for (int i = 0; i < m.count; i++) found += strcmp(m.metrics[i].name, "run/mine") == 0;
    assert_int_equal(found, 1);
    assert_true(test_metric(engine, "run/mine") == -3);
    OK(trd_engine_close(engine));
}

static void history_is_bounded(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    int warnings = 0, count;
    const trd_step_metrics *steps;
    o.log = (trd_log_sink){count_warnings, &warnings};
    trd_engine *engine = test_engine(&o);
    for (uint64_t i = 1; i <= 130; i++) step_once(engine, i % 7 + 1);
    OK(trd_engine_get_metrics_history(engine, true, &steps, &count));
    assert_int_equal(count, 128);
    assert_int_equal(steps[0].step, 3);
    assert_int_equal(steps[127].step, 130);
    assert_int_equal(warnings, 1);
    OK(trd_engine_get_metrics_history(engine, false, &steps, &count));
    assert_int_equal(count, 0);
    OK(trd_engine_close(engine));
}

/* Evaluation: weighted by tokens over the set, training untouched, also in the middle of a step. */
static void evaluation_changes_nothing(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw(), plain = test_adamw();
    note n = {.begun = 0};
    trd_engine *engine = noted(&o, &n), *reference = test_engine(&plain);
    test_batch b, few;
    test_batch_fill(&few, 21);
    memset(few.weights + 4, 0, sizeof few.weights - 4 * sizeof *few.weights);
    few.weights[1] = few.weights[2] = 1;
    few.batch.rows = 1; /* padded, the padding dropped */
    double sum = 0, weights = 0;
    for (int i = 0; i < 2; i++) {
        OK(trd_engine_eval_begin(reference));
        OK(trd_engine_eval_step(reference, i ? &few.batch : test_batch_fill(&b, 20)));
        OK(trd_engine_eval_end(reference));
        sum += test_eval_metric(reference, "loss") * test_eval_metric(reference, "total_weights");
        weights += test_eval_metric(reference, "total_weights");
    }
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 1)));
    OK(trd_engine_fwd_bwd(reference, &b.batch));
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, test_batch_fill(&b, 20)));
    OK(trd_engine_eval_step(engine, &few.batch));
    OK(trd_engine_eval_end(engine));
    assert_true(test_eval_metric(engine, "total_weights") == weights);
    assert_true(fabs(test_eval_metric(engine, "loss") - sum / weights) < 1e-9);
    assert_int_equal(trd_engine_micro_step_count(engine), 1);
    OK(trd_engine_update(engine));
    OK(trd_engine_update(reference));
    test_expect_same(engine, reference);
    trd_step_metrics metrics;
    OK(trd_engine_get_metrics(engine, false, &metrics));
    assert_int_equal(n.count, 2);
    assert_int_equal(n.modes[0], TRD_METRIC_EVAL);
    assert_int_equal(n.modes[1], TRD_METRIC_TRAIN);
    OK(trd_engine_close(engine));
    OK(trd_engine_close(reference));
}

/* A whole evaluation: full, ragged and shorter batches, and one that is refused. */
static void evaluate(trd_engine *engine)
{
    test_batch b;
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, test_batch_fill(&b, 40)));
    b.batch.length = TEST_LENGTH / 2;
    OK(trd_engine_eval_step(engine, &b.batch));
    b.batch.rows = 1;
    OK(trd_engine_eval_step(engine, &b.batch));
    b.tokens[1] = -1;
    assert_int_equal(trd_engine_eval_step(engine, &b.batch), TRD_INVALID_ARGUMENT);
    OK(trd_engine_eval_end(engine));
}

/* Two steps of two micro-batches with an evaluation, or without, behind every call. */
static void run_steps(trd_engine *engine, bool evaluated)
{
    for (int i = 0; i < 4; i++) {
        test_batch b;
        OK(trd_engine_record_metrics(engine, "own", trd_recorded_number(i), TRD_AGGREGATE_SUM));
        OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 30 + (uint64_t)i)));
        unsigned char *gradients = evaluated ? test_state(trd_engine_gradients(engine), NULL) : NULL;
        if (evaluated) evaluate(engine);
        if (evaluated) test_same_state(trd_engine_gradients(engine), gradients);
        free(gradients);
        assert_int_equal(trd_engine_data_position(engine), 30 + i);
        if (i % 2 == 0) continue;
        OK(trd_engine_update(engine)); /* its numbers are not read yet */
        if (evaluated) evaluate(engine);
    }
}

static void evaluation_disturbs_no_step(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *engine = test_engine(&o), *plain = test_engine(&o);
    const trd_step_metrics *x, *y;
    int count_x, count_y;
    run_steps(engine, true);
    run_steps(plain, false);
    test_expect_same(engine, plain);
    OK(trd_engine_get_metrics_history(engine, false, &x, &count_x));
    OK(trd_engine_get_metrics_history(plain, false, &y, &count_y));
    assert_int_equal(count_x, 2);
    assert_int_equal(count_y, 2);
    for (int s = 0; s < 2; s++) {
        assert_int_equal(x[s].step, s + 1);
        assert_int_equal(x[s].count, y[s].count);
        for (int i = 0; i < x[s].count; i++) {
            assert_string_equal(x[s].metrics[i].name, y[s].metrics[i].name);
            if (i < 8 || strcmp(x[s].metrics[i].name, "own") == 0) /* the rest is time */
                assert_true(x[s].metrics[i].value == y[s].metrics[i].value);
        }
    }
    assert_true(test_metric(engine, "own") == 5);
    OK(trd_engine_close(engine));
    OK(trd_engine_close(plain));
}

static trd_loss_output doubled(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    trd_loss_output output = trd_loss_sft(b, model, in, user);
    output.primary_loss.unreduced_sum =
        trd_mul(b, output.primary_loss.unreduced_sum, trd_scalar(b, TRD_F32, 2));
    return output;
}

static void eval_has_its_own_loss(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    double losses[2];
    for (int i = 0; i < 2; i++) {
        test_batch b;
        if (i) OK(trd_engine_with_eval_loss_fn(engine, doubled, NULL));
        OK(trd_engine_eval_begin(engine));
        OK(trd_engine_eval_step(engine, test_batch_fill(&b, 3)));
        OK(trd_engine_eval_end(engine));
        losses[i] = test_eval_metric(engine, "loss");
    }
    assert_true(fabs(losses[1] - 2 * losses[0]) < 1e-6);
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_a_step),           cmocka_unit_test(written_after_the_next_dispatch),
        cmocka_unit_test(failing_sink_is_told_once),  cmocka_unit_test(host_metrics_aggregate),
        cmocka_unit_test(host_metrics_of_every_kind), cmocka_unit_test(history_is_bounded),
        cmocka_unit_test(evaluation_changes_nothing), cmocka_unit_test(evaluation_disturbs_no_step),
        cmocka_unit_test(eval_has_its_own_loss),      cmocka_unit_test(names_are_there_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
