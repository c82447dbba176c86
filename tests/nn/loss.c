/* What losses are made of: the scale of weighted metrics, named inputs, and per-token log-probabilities,
 * which on packed rows must be the log-softmax of the logits one token earlier, within a segment. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/shape.h"
#include "nn/model.h"
#include "support/engine.h"
#include "support/scratch.h"
#include "support/small_program.h"

/* d = denominator; + eps; then at least min_denom; scale = 1 / d, 0 when d is 0. On the host and as graph. */
static void compute_scale(void **state)
{
    (void)state;
    const struct {
        double denominator, eps, min_denom, scale;
    } cases[] = {{0, 0, 0, 0},   {4, 0, 0, 0.25}, {0, 1e-3, 1, 1}, {0, 1e-3, 0, 1000}, {0, 0, 1, 1},
                 {5, 0, 1, 0.2}, {0.5, 0, 1, 1},  {3, 1, 0, 0.25}, {3, 1, 8, 0.125},   {1e9, 0, 0, 1e-9}};
    enum { CASES = sizeof cases / sizeof *cases };
    small_tensor inputs[CASES];
    for (int i = 0; i < CASES; i++) {
        assert_true(trd_compute_scale(cases[i].denominator, cases[i].eps, cases[i].min_denom) ==
                    cases[i].scale);
        inputs[i] = small_tensor_make("denominator", TRD_F32, trd__shape_scalar());
        *(float *)inputs[i].data = (float)cases[i].denominator;
    }
    small_program p;
    small_program_begin(&p, inputs, CASES);
    trd_builder *b = small_program_builder(&p);
    for (int i = 0; i < CASES; i++)
        small_program_result(&p, "scale",
                             trd_weighted_scale(b, p.values[i], cases[i].eps, cases[i].min_denom));
    small_program_finish(&p);
    trd__backend *backend = small_backend(NULL, 1);
    small_program_run(&p, backend, false);
    for (int i = 0; i < CASES; i++) {
        assert_int_equal(p.results[i].dtype, TRD_F64);
        assert_true(*(double *)p.results[i].data == cases[i].scale);
    }
    small_program_end(&p);
    trd__backend_free(backend);
}

static void metrics_of_a_loss(void **state)
{
    (void)state;
    trd_builder *b;
    OK(trd_builder_create(&b));
    trd_value x = trd_scalar(b, TRD_F32, 3);
    trd_weighted_metric mean = trd_loss_mean(b, x);
    assert_true(trd_same(mean.unreduced_sum, x));
    assert_int_equal(trd_value_shape(mean.denominator).rank, 0);
    trd_loss_output output = trd_loss(mean);
    for (int i = 0; i < TRD_MAX_AUX; i++) trd_loss_add_metric(b, &output, "m", mean);
    OK(trd_builder_status(b));
    assert_int_equal(output.aux_count, TRD_MAX_AUX);
    trd_loss_add_metric(b, &output, "one/too/many", mean);
    assert_int_equal(trd_builder_status(b), TRD_INVALID_ARGUMENT);
    expect_message("more than 32 aux metrics (at \"one/too/many\")");
    trd_builder_free(b);
}

static void named_inputs(void **state)
{
    (void)state;
    trd_builder *b;
    OK(trd_builder_create(&b));
    const trd__named_value named[] = {{"advantages", trd_scalar(b, TRD_F32, 1)}};
    const trd_constant constants[] = {{"clip_epsilon", 0.2}};
    const trd_inputs in = {.named = named, .named_count = 1, .constants = constants, .constant_count = 1};
    assert_true(trd_inputs_has(&in, "advantages"));
    assert_false(trd_inputs_has(&in, "rewards"));
    assert_true(trd_same(trd_inputs_get(b, &in, "advantages"), named[0].value));
    assert_true(trd_inputs_constant(&in, "clip_epsilon", 1) == 0.2);
    assert_true(trd_inputs_constant(&in, "beta", 0.5) == 0.5);
    OK(trd_builder_status(b));
    assert_true(trd_is_null(trd_inputs_get(b, &in, "rewards")));
    assert_int_equal(trd_builder_status(b), TRD_INVALID_ARGUMENT);
    expect_message("the loss asks for the input \"rewards\", which the payload does not have");
    trd_builder_free(b);
}

static trd_value logits_of(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)user;
    return trd_model_logits(b, model, in);
}

static trd_value weighted_logprobs(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)user;
    return trd_model_token_logprobs(b, model, in, trd_inputs_get(b, in, "loss_weights"));
}

static double log_softmax(const float *logits, int count, int chosen)
{
    float top = logits[0];
    double sum = 0;
    for (int v = 1; v < count; v++) top = fmaxf(top, logits[v]);
    for (int v = 0; v < count; v++) sum += exp((double)logits[v] - top);
    return logits[chosen] - top - log(sum);
}

static void logprobs_of_packed_rows(void **state)
{
    (void)state;
    enum { TOKENS = TEST_ROWS * TEST_LENGTH };
    static float logits[TOKENS * TEST_VOCAB];
    float all[TOKENS], weighted[TOKENS];
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        test_batch batch;
        int predicted = 0, left_out = 0;
        const trd_batch *rows = test_batch_fill(&batch, seed);
        OK(trd_engine_fwd_only(engine, logits_of, NULL, rows, logits, sizeof logits));
        OK(trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, rows, all, sizeof all));
        OK(trd_engine_fwd_only(engine, weighted_logprobs, NULL, rows, weighted, sizeof weighted));
        for (int i = 0; i < TOKENS; i++) {
            bool first = i % TEST_LENGTH == 0 || batch.segments[i] != batch.segments[i - 1];
            if (first || batch.segments[i] == 0) {
                assert_true(all[i] == 0 && weighted[i] == 0);
                continue;
            }
            double expected = log_softmax(logits + (i - 1) * TEST_VOCAB, TEST_VOCAB, batch.tokens[i]);
            assert_true(fabs(all[i] - expected) < 1e-5);
            assert_true(weighted[i] == (batch.weights[i] != 0 ? all[i] : 0)); /* the same bits, or nothing */
            predicted++;
            left_out += batch.weights[i] == 0;
        }
        assert_true(predicted > TOKENS / 2 && left_out > 0);
    }
    OK(trd_engine_close(engine));
}

/* A row of one token predicts nothing. */
static void logprobs_of_single_tokens(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    const int32_t tokens[TEST_ROWS] = {3, 5};
    float all[TEST_ROWS] = {1, 1};
    trd_batch batch = {.rows = TEST_ROWS, .length = 1, .token_ids = tokens};
    OK(trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, &batch, all, sizeof all));
    for (int i = 0; i < TEST_ROWS; i++) assert_true(all[i] == 0);
    OK(trd_engine_close(engine));
}

/* Loss of one step with the SFT loss under options. */
static double first_loss(trd_engine *engine, const trd_batch *rows, trd_sft_options *options)
{
    trd_step_metrics m;
    OK(trd_engine_with_loss_fn(engine, trd_loss_sft, options));
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, rows));
    OK(trd_engine_eval_end(engine));
    OK(trd_engine_get_eval_metrics(engine, &m));
    for (int k = 0; k < m.count; k++)
        if (strcmp(m.metrics[k].name, "loss") == 0) return m.metrics[k].value;
    fail_msg("no loss among the metrics");
    return 0;
}

/* Loss and aux metric with the penalty, against the sums of log-probabilities and log-sum-exps on the host.
 */
static void z_loss(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    trd_sft_options options = {.z_loss_multiplier = 0.25};
    test_batch batch;
    const trd_batch *rows = test_batch_fill(&batch, 1);
    int64_t vocabulary = trd_model_describe(trd_engine_model(engine)).vocab;
    size_t tokens = (size_t)(rows->rows * rows->length), count = tokens * (size_t)vocabulary;
    float *logits = malloc(count * sizeof *logits);
    assert_non_null(logits);
    OK(trd_engine_fwd_only(engine, logits_of, NULL, rows, logits, count * sizeof *logits));
    double penalty = 0, weights = 0;
    for (size_t i = 0; i < tokens; i++) {
        if (i % (size_t)rows->length == 0) continue;
        double weight = rows->loss_weights ? (double)rows->loss_weights[i] : 1.0;
        bool same =
            !rows->segment_ids || (rows->segment_ids[i] == rows->segment_ids[i - 1] && rows->segment_ids[i]);
        if (!same) continue;
        const float *row = logits + (i - 1) * (size_t)vocabulary;
        double sum = 0;
        for (int64_t v = 0; v < vocabulary; v++) sum += exp((double)row[v]);
        penalty += 0.25 * weight * log(sum) * log(sum);
        weights += weight;
    }
    double plain = first_loss(engine, rows, NULL), with = first_loss(engine, rows, &options);
    assert_true(fabs(with - plain - penalty / weights) < 1e-5 * with);
    assert_true(penalty > 0);
    free(logits);
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compute_scale),
        cmocka_unit_test(metrics_of_a_loss),
        cmocka_unit_test(named_inputs),
        cmocka_unit_test(z_loss),
        cmocka_unit_test(logprobs_of_packed_rows),
        cmocka_unit_test(logprobs_of_single_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
