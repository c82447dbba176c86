/* What a batch must be: every named error leaves the engine as it was, and what a loss sees is derived the
 * same way for everyone. */
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
#include "support/engine.h"
#include "support/scratch.h"

static void expect_rejected(trd_engine *engine, const trd_batch *batch, trd_status status, const char *part)
{
    assert_int_equal(trd_engine_fwd_bwd(engine, batch), status);
    expect_message(part);
    assert_int_equal(trd_engine_micro_step_count(engine), 0);
    assert_int_equal(trd_engine_total_micro_steps(engine), 0);
    assert_int_equal(trd_engine_data_position(engine), 0);
}

static void bad_batches_are_refused(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    test_batch b;
    test_batch_fill(&b, 1);
    expect_rejected(engine, NULL, TRD_INVALID_ARGUMENT, "batch");
    b.batch.token_ids = NULL;
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "token_ids");
    test_batch_fill(&b, 1);
    b.tokens[TEST_LENGTH + 5] = TEST_VOCAB;
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "row 1, position 5 expected 0 to 39, found 40");
    b.tokens[TEST_LENGTH + 5] = -1;
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "found -1");
    test_batch_fill(&b, 1);
    b.weights[3] = NAN;
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "loss weight at row 0, position 3");
    test_batch_fill(&b, 1);
    b.batch.rows = TEST_ROWS + 1;
    expect_rejected(engine, &b.batch, TRD_SHAPE, "1 to 2 rows (micro_batch_size_to_train_on), found 3");
    test_batch_fill(&b, 1);
    b.batch.length = TEST_LENGTH + 1;
    expect_rejected(engine, &b.batch, TRD_SHAPE, "(max_target_length), found 13");
    OK(trd_engine_close(engine));
}

static void segments_are_runs(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    test_batch b;
    test_batch_fill(&b, 1);
    const int32_t again[] = {1, 1, 2, 2, 0, 1, 1, 0, 0, 0, 0, 0};
    memcpy(b.segments + TEST_LENGTH, again, sizeof again);
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT,
                    "segment 1 again at row 1, position 5 (first at position 0)");
    b.segments[TEST_LENGTH + 5] = b.segments[TEST_LENGTH + 6] = -3;
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "found -3");
    const uint8_t hole[TEST_ROWS * TEST_LENGTH] = {1, 1, 0, 1};
    b.batch.segment_ids = NULL;
    b.batch.token_mask = hole;
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "segment 1 again at row 0, position 3");
    OK(trd_engine_close(engine));
}

static void extras_are_checked(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    test_batch b;
    const float values[2] = {1, 2};
    trd_array extras[2] = {{.name = "positions", .dtype = TRD_F32, .shape = TRD__SHAPE(2), .data = values},
                           {.name = "x", .dtype = TRD_F32, .shape = TRD__SHAPE(2), .data = values}};
    test_batch_fill(&b, 1);
    b.batch.extras = extras;
    b.batch.extra_count = 1;
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "\"positions\" has the name of a standard input");
    extras[0] = extras[1];
    b.batch.extra_count = 2;
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "\"x\" appears twice");
    extras[0].data = NULL;
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "found no data");
    OK(trd_engine_close(engine));
}

static trd_loss_output wants_advantages(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                        void *user)
{
    (void)model;
    (void)user;
    trd_value a = trd_inputs_get(b, in, "advantages");
    return trd_loss(trd_weighted(trd_sum_all(b, a), trd_scalar(b, TRD_F32, 1)));
}

static trd_loss_output no_metric(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)user;
    trd_value logprobs = trd_model_token_logprobs(b, model, in, (trd_value){0});
    trd_loss_output output = {.aux_count = 0};
    output.primary_loss.unreduced_sum = trd_sum_all(b, logprobs); /* and no denominator */
    return output;
}

static void bad_losses_are_refused(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    test_batch b;
    test_batch_fill(&b, 1);
    OK(trd_engine_with_loss_fn(engine, wants_advantages, NULL));
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "advantages");
    OK(trd_engine_with_loss_fn(engine, no_metric, NULL));
    expect_rejected(engine, &b.batch, TRD_INVALID_ARGUMENT, "weighted metric");
    assert_int_equal(trd_engine_with_loss_fn(engine, NULL, NULL), TRD_INVALID_ARGUMENT);
    OK(trd_engine_with_loss_fn(engine, trd_loss_sft, NULL));
    OK(trd_engine_fwd_bwd(engine, &b.batch)); /* none of it broke the engine */
    OK(trd_engine_close(engine));
}

static trd_value standard_input(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)model;
    return trd_cast(b, trd_inputs_get(b, in, user), TRD_F32);
}

static void expect_input(trd_engine *engine, const trd_batch *batch, const char *name, const float *expected)
{
    float seen[TEST_ROWS * TEST_LENGTH];
    OK(trd_engine_fwd_only(engine, standard_input, (void *)(uintptr_t)name, batch, seen,
                           sizeof(float) * (size_t)batch->rows * (size_t)batch->length));
    for (int i = 0; i < batch->rows * batch->length; i++) assert_true(seen[i] == expected[i]);
}

/* Left padding by token_mask; then packed segments with weights on tokens that nothing predicts. */
static void inputs_are_derived(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    const int32_t tokens[6] = {9, 9, 1, 2, 3, 4};
    const uint8_t mask[6] = {0, 0, 1, 1, 1, 1};
    trd_batch batch = {.rows = 1, .length = 6, .token_ids = tokens, .token_mask = mask};
    expect_input(engine, &batch, "segment_ids", (const float[]){0, 0, 1, 1, 1, 1});
    expect_input(engine, &batch, "positions", (const float[]){0, 0, 0, 1, 2, 3});
    expect_input(engine, &batch, "loss_weights", (const float[]){0, 0, 0, 1, 1, 1});
    batch.token_mask = NULL;
    expect_input(engine, &batch, "segment_ids", (const float[]){1, 1, 1, 1, 1, 1});
    const int32_t segments[6] = {4, 4, 2, 2, 2, 0};
    const float weights[6] = {1, 0.5f, 1, 2, 0, 1};
    batch.segment_ids = segments;
    batch.loss_weights = weights;
    expect_input(engine, &batch, "positions", (const float[]){0, 1, 0, 1, 2, 0});
    expect_input(engine, &batch, "loss_weights", (const float[]){0, 0.5f, 0, 2, 0, 0});
    OK(trd_engine_close(engine));
}

static int compiled;
static trd_loss_output scaled(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    trd_loss_output output = trd_loss_sft(b, model, in, user);
    double factor = trd_inputs_constant(in, "factor", 1.0);
    compiled++;
    output.primary_loss.unreduced_sum =
        trd_mul(b, output.primary_loss.unreduced_sum, trd_scalar(b, TRD_F32, factor));
    return output;
}

/* Constants belong to the signature: a changed one recompiles, a known one does not. */
typedef struct log_line {
    int count;
    char text[256];
} log_line;

static void keep_signature(void *user, trd_log_level level, const char *line)
{
    log_line *last = user;
    if (level != TRD_LOG_INFO || !strstr(line, "another signature")) return;
    last->count++;
    snprintf(last->text, sizeof last->text, "%s", line);
}

static void constants_recompile(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    log_line line = {0};
    o.log = (trd_log_sink){keep_signature, &line};
    o.schedule.learning_rate = 0;
    trd_engine *engine = test_engine(&o);
    OK(trd_engine_with_loss_fn(engine, scaled, NULL));
    const double factors[] = {1, 3, 1, 3};
    const int expected[] = {1, 2, 2, 2};
    double losses[4];
    for (int i = 0; i < 4; i++) {
        test_batch b;
        test_batch_fill(&b, 1);
        trd_constant factor = {"factor", factors[i]};
        b.batch.constants = &factor;
        b.batch.constant_count = 1;
        OK(trd_engine_fwd_bwd(engine, &b.batch));
        OK(trd_engine_update(engine));
        losses[i] = test_metric(engine, "loss");
        assert_int_equal(compiled, expected[i]);
    }
    assert_true(fabs(losses[1] - 3 * losses[0]) < 1e-5 && losses[2] == losses[0] && losses[3] == losses[1]);
    assert_int_equal(line.count, 1);
    assert_non_null(strstr(line.text, "constant factor is 3, before 1"));
    test_batch b;
    test_batch_fill(&b, 1);
    b.batch.length = 6;
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    assert_non_null(strstr(line.text, "length is 6, before 12"));
    b.batch.length = 12;
    for (int i = 0; i < 64; i++) { /* another value each time: old programs make room */
        trd_constant factor = {"factor", 10 + i};
        b.batch.constants = &factor;
        b.batch.constant_count = 1;
        OK(trd_engine_fwd_bwd(engine, &b.batch));
        OK(trd_engine_update(engine));
    }
    assert_int_equal(trd_engine_program_count(engine), 32 + 1); /* first of each signature, and update */
    int before = compiled;
    trd_constant factor = {"factor", 73};
    b.batch.constants = &factor;
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    assert_int_equal(compiled, before);
    factor.value = 10;
    OK(trd_engine_update(engine));
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    assert_int_equal(compiled, before + 1);
    OK(trd_engine_close(engine));
}

static trd_status adapt(void *user, const trd_batch *payload, trd_batch *adapted)
{
    *adapted = *payload;
    adapted->loss_weights = user;
    return TRD_OK;
}

static void adapter_and_copy(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o), *plain = test_engine(&o);
    test_batch b, clean;
    float ones[TEST_ROWS * TEST_LENGTH];
    for (int i = 0; i < TEST_ROWS * TEST_LENGTH; i++) ones[i] = 1;
    OK(trd_engine_with_gen_model_input_fn(engine, adapt, ones));
    expect_rejected(engine, NULL, TRD_INVALID_ARGUMENT, "expected a batch");
    test_batch_fill(&b, 1);
    test_batch_fill(&clean, 1);
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    memset(&b, 1, sizeof b); /* the payload was copied before the call returned */
    memset(ones, 0, sizeof ones);
    for (int i = 0; i < TEST_ROWS * TEST_LENGTH; i++) clean.weights[i] = 1;
    OK(trd_engine_fwd_bwd(plain, &clean.batch));
    OK(trd_engine_update(engine));
    OK(trd_engine_update(plain));
    test_expect_same(engine, plain);
    OK(trd_engine_close(engine));
    OK(trd_engine_close(plain));
}

/* A device fault sticks: later calls tell it again, reads are refused, closing is safe. */
static trd_loss_output wild_gather(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    trd_loss_output output = trd_loss_sft(b, model, in, user);
    trd_value table = trd_reshape(b, trd_inputs_get(b, in, "table"), TRD__SHAPE(2, 1));
    trd_value rows = trd_gather_rows(b, table, trd_inputs_get(b, in, "ids"));
    output.primary_loss.unreduced_sum = trd_add(b, output.primary_loss.unreduced_sum, trd_sum_all(b, rows));
    return output;
}

static void device_faults_stick(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    test_batch b;
    float parameter[64], table[2] = {1, 2};
    int32_t ids[2] = {0, 7};
    trd_array extras[2] = {{.name = "table", .dtype = TRD_F32, .shape = TRD__SHAPE(2), .data = table},
                           {.name = "ids", .dtype = TRD_I32, .shape = TRD__SHAPE(2), .data = ids}};
    OK(trd_engine_with_loss_fn(engine, wild_gather, NULL));
    test_batch_fill(&b, 1);
    b.batch.extras = extras;
    b.batch.extra_count = 2;
    trd_step_metrics metrics;
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    assert_int_not_equal(trd_engine_get_metrics(engine, false, &metrics), TRD_OK);
    expect_message("step 1");
    expect_message("gather_rows");
    assert_int_not_equal(trd_engine_fwd_bwd(engine, &b.batch), TRD_OK);
    expect_message("gather_rows");
    assert_int_not_equal(trd_engine_update(engine), TRD_OK);
    assert_int_not_equal(trd_engine_save(engine, NULL, true, NULL), TRD_OK);
    int norm = trd_view_find(trd_engine_params(engine), "model.norm.weight");
    assert_int_not_equal(trd_view_read(trd_engine_params(engine), norm, parameter), TRD_OK);
    trd_engine_close(engine);
}

static void bad_options_are_refused(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = NULL;
    assert_int_equal(trd_engine_create(&o, &engine), TRD_INVALID_ARGUMENT);
    expect_message("model_name");
    o.rows = 0;
    assert_int_equal(trd_engine_create(&o, &engine), TRD_INVALID_ARGUMENT);
    expect_message("micro_batch_size_to_train_on");
    o = test_options();
    o.weight_dtype = TRD_I32;
    assert_int_equal(trd_engine_create(&o, &engine), TRD_INVALID_ARGUMENT);
    expect_message("weight_dtype");
    o = test_options();
    o.model_name = "qwen3-0.6c";
    assert_int_not_equal(trd_engine_create(&o, &engine), TRD_OK);
    expect_message("qwen3-0.6b");
    o = test_options();
    o.max_inflight_computations = 65;
    assert_int_equal(trd_engine_create(&o, &engine), TRD_INVALID_ARGUMENT);
    expect_message("max_inflight_computations expected at most 64, found 65");
    assert_null(engine);
    OK(trd_engine_close(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_batches_are_refused), cmocka_unit_test(segments_are_runs),
        cmocka_unit_test(extras_are_checked),      cmocka_unit_test(bad_losses_are_refused),
        cmocka_unit_test(inputs_are_derived),      cmocka_unit_test(constants_recompile),
        cmocka_unit_test(adapter_and_copy),        cmocka_unit_test(device_faults_stick),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
