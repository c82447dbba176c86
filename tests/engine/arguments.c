/* Arguments that the engine refuses: what a checkpoint could not give back is refused when it is given, not
 * when the run is resumed, and a missing pointer is an error with a message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

static trd_engine_options options_in(void **state, const char *name)
{
    trd_engine_options o = test_adamw();
    o.checkpoint_directory = scratch_path(*state, name);
    return o;
}

static void step_once(trd_engine *engine)
{
    test_batch b;
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 3)));
    OK(trd_engine_update(engine));
}

/* Saves, and restores into another engine with the same options. */
static trd_engine *resumed(trd_engine *engine, const trd_engine_options *options)
{
    OK(trd_engine_close(engine));
    trd_engine *second = test_engine(options);
    OK(trd_engine_restore(second, -1, NULL));
    return second;
}

static void any_seed_is_resumed(void **state)
{
    const uint64_t seeds[] = {(uint64_t)1 << 60, UINT64_MAX, TRD__MOST_WHOLE};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        char name[16];
        snprintf(name, sizeof name, "seed-%zu", i);
        trd_engine_options o = options_in(state, name);
        o.init_weights_seed = seeds[i];
        o.dropout_rate = 0.1;
        trd_engine *engine = test_engine(&o);
        step_once(engine);
        engine = resumed(engine, &o);
        OK(trd_engine_close(engine));
        o.init_weights_seed ^= (uint64_t)1 << 59;
        engine = test_engine(&o);
        assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_INVALID_ARGUMENT);
        expect_message("init_weights_seed");
        OK(trd_engine_close(engine));
    }
}

static void numbers_that_a_checkpoint_cannot_hold(void **state)
{
    const int64_t most = 1000000000000000;
    trd_engine_options o = options_in(state, "numbers");
    trd_engine *engine = test_engine(&o);
    test_batch b;
    test_batch_fill(&b, 1);
    b.batch.position = (uint64_t)TRD__MOST_WHOLE + 1;
    assert_int_equal(trd_engine_fwd_bwd(engine, &b.batch), TRD_INVALID_ARGUMENT);
    expect_message("position");
    b.batch.position = TRD__MOST_WHOLE;
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    OK(trd_engine_update(engine));
    assert_int_equal(trd_engine_set_step(engine, most + 1), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_engine_set_step(engine, INT64_MAX), TRD_INVALID_ARGUMENT);
    OK(trd_engine_set_step(engine, most));
    OK(trd_engine_fwd_bwd(engine, &b.batch)); /* inside a step beyond it */
    engine = resumed(engine, &o);
    assert_true(trd_engine_step(engine) == most && trd_engine_micro_step_count(engine) == 1);
    assert_true(trd_engine_data_position(engine) == TRD__MOST_WHOLE);
    OK(trd_engine_close(engine));
}

static void text_that_a_checkpoint_cannot_hold(void **state)
{
    static const char wrong[] = "caf\xe9"; /* Latin-1 */
    trd_engine_options o = options_in(state, "text");
    trd_engine *engine = NULL;
    o.fingerprint = wrong;
    assert_int_equal(trd_engine_create(&o, &engine), TRD_INVALID_ARGUMENT);
    o.fingerprint = NULL;
    engine = test_engine(&o);
    const trd_recorded one = trd_recorded_number(1);
    assert_int_equal(trd_engine_record_metrics(engine, wrong, one, TRD_AGGREGATE_SUM), TRD_INVALID_ARGUMENT);
    expect_message("UTF-8");
    step_once(engine);
    assert_int_equal(trd_engine_save(engine, wrong, true, NULL), TRD_INVALID_ARGUMENT);
    expect_message("metadata expected text in UTF-8");
    engine = resumed(engine, &o);
    OK(trd_engine_close(engine));
}

static trd_loss_output loss_with_aux(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    trd_loss_output output = trd_loss_sft(b, model, in, NULL);
    trd_loss_add_metric(b, &output, user, trd_weighted(trd_scalar(b, TRD_F32, 4), trd_scalar(b, TRD_F32, 2)));
    return output;
}

/* Two metrics of one name would be two members of one JSON object. */
static void names_are_taken_once(void **state)
{
    static char own[] = "loss", latin[] = "caf\xe9", other[] = "reward";
    trd_engine_options o = options_in(state, "names");
    trd_engine *engine = test_engine(&o);
    test_batch b;
    test_batch_fill(&b, 1);
    const trd_recorded one = trd_recorded_number(1);
    assert_int_equal(trd_engine_record_metrics(engine, own, one, TRD_AGGREGATE_SUM), TRD_INVALID_ARGUMENT);
    expect_message("every step has one of that name");
    OK(trd_engine_with_loss_fn(engine, loss_with_aux, own));
    assert_int_equal(trd_engine_fwd_bwd(engine, &b.batch), TRD_INVALID_ARGUMENT);
    expect_message("every step has one of that name");
    OK(trd_engine_with_loss_fn(engine, loss_with_aux, latin));
    assert_int_equal(trd_engine_fwd_bwd(engine, &b.batch), TRD_INVALID_ARGUMENT);
    expect_message("UTF-8");
    OK(trd_engine_with_loss_fn(engine, loss_with_aux, other));
    OK(trd_engine_record_metrics(engine, other, one, TRD_AGGREGATE_SUM)); /* also the loss's */
    step_once(engine);
    assert_true(test_metric(engine, other) == 1);
    engine = resumed(engine, &o);
    assert_true(test_metric(engine, other) == 1);
    OK(trd_engine_close(engine));
}

/* Whatever makes a member impossible, the members before it are not recorded either. */
static void a_refused_group_records_nothing(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    trd_recorded members[] = {trd_recorded_number(1), trd_recorded_number(2)};
    const trd_recorded group = {.kind = TRD_RECORDED_GROUP, .members = members, .member_count = 2};
    members[0].name = "a";
    members[1].name = "b";
    OK(trd_engine_record_metrics(engine, "g/a", members[0], TRD_AGGREGATE_SUM));
    OK(trd_engine_record_metrics(engine, "g/b", members[1], TRD_AGGREGATE_MAX));
    assert_int_equal(trd_engine_record_metrics(engine, "g", group, TRD_AGGREGATE_SUM), TRD_INVALID_ARGUMENT);
    members[1].kind = (trd_recorded_kind)42;
    assert_int_equal(trd_engine_record_metrics(engine, "g", group, TRD_AGGREGATE_SUM), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_engine_record_metrics(engine, "g/a", members[0], (trd_aggregation)99),
                     TRD_INVALID_ARGUMENT);
    step_once(engine);
    assert_true(test_metric(engine, "g/a") == 1);
    OK(trd_engine_close(engine));
}

static void missing_pointers(void **state)
{
    (void)state;
    trd_engine_options o = test_options();
    trd_engine *engine = NULL;
    trd_plan plan;
    trd_eval_result result;
    float logprobs[TEST_ROWS * TEST_LENGTH];
    test_batch b;
    test_batch_fill(&b, 1);
    assert_int_equal(trd_engine_create(NULL, &engine), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_plan_options(NULL, &plan), TRD_INVALID_ARGUMENT);
    engine = test_engine(&o);
    assert_int_equal(trd_engine_fwd_only(engine, NULL, NULL, &b.batch, logprobs, sizeof logprobs),
                     TRD_INVALID_ARGUMENT);
    assert_int_equal(
        trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, &b.batch, NULL, sizeof logprobs),
        TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_engine_record_folded(engine, "x", 1, NULL, NULL), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_engine_evaluate(engine, NULL, 0, &result), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_engine_export(engine, NULL, TRD_F32), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_view_find(trd_engine_params(engine), NULL), -1);
    step_once(engine);
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_seed_is_resumed),
        cmocka_unit_test(numbers_that_a_checkpoint_cannot_hold),
        cmocka_unit_test(text_that_a_checkpoint_cannot_hold),
        cmocka_unit_test(names_are_taken_once),
        cmocka_unit_test(a_refused_group_records_nothing),
        cmocka_unit_test(missing_pointers),
    };
    return cmocka_run_group_tests_name("engine/arguments", tests, scratch_create, scratch_remove);
}
