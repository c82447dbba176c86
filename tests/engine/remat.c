/* remat_policy auto: what it chooses fits, costs no more than any policy that fits, grows no cheaper as the
 * limit falls, and changes no bit; what cannot fit is said in full, and at once where no rule helps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/internal.h"
#include "support/engine.h"

enum { LIMITS = 12 };

static trd_engine_options qwen(void)
{
    trd_engine_options o = trd_engine_defaults();
    o.model_name = "qwen3-0.6b";
    o.optimizer.type = "sgd";
    o.overrides.layers = 6;
    o.length = 512;
    o.num_threads = 1;
    return o;
}

static trd_plan plan_of(const trd_engine_options *o)
{
    trd_plan plan;
    OK(trd_plan_options(o, &plan));
    return plan;
}

/* Plans of auto from what none takes down to what nothing fits in. */
static void costs_least(const trd_engine_options *options)
{
    trd_engine_options o = *options;
    trd_plan fixed[3];
    for (int policy = TRD_REMAT_NONE; policy <= TRD_REMAT_FULL; policy++) {
        o.remat_policy = (trd_remat_policy)policy;
        fixed[policy] = plan_of(&o);
    }
    assert_true(fixed[TRD_REMAT_FULL].recomputed_flops > fixed[TRD_REMAT_NONE].recomputed_flops);
    uint64_t most = fixed[TRD_REMAT_NONE].peak_bytes, least = fixed[TRD_REMAT_FULL].peak_bytes;
    double cost = 0;
    int between = 0;
    o.remat_policy = TRD_REMAT_AUTO;
    for (int i = 0; i <= LIMITS; i++) {
        o.memory_limit_bytes = most - (most - least) * (uint64_t)i / LIMITS;
        trd_plan chosen = plan_of(&o);
        assert_true(chosen.peak_bytes <= o.memory_limit_bytes);
        assert_true(chosen.recomputed_flops >= cost);
        cost = chosen.recomputed_flops;
        for (int policy = TRD_REMAT_NONE; policy <= TRD_REMAT_FULL; policy++)
            if (fixed[policy].peak_bytes <= o.memory_limit_bytes)
                assert_true(cost <= fixed[policy].recomputed_flops);
        between +=
            cost > fixed[TRD_REMAT_MINIMAL].recomputed_flops && cost < fixed[TRD_REMAT_FULL].recomputed_flops;
    }
    assert_true(between > 1);
}

static void chooses_the_cheapest_that_fits(void **state)
{
    (void)state;
    trd_engine_options o = qwen();
    costs_least(&o);
    o.gradient_accumulation_steps = 3;
    o.scan_layers = true;
    costs_least(&o);
    o = qwen();
    o.gradient_clipping_threshold = 0; /* the loop runs train_step */
    o.skip_step_on_nonfinite = false;
    o.dtype = o.weight_dtype = o.grad_dtype = TRD_BF16;
    costs_least(&o);
}

static void without_a_limit_takes_what_is_free(void **state)
{
    (void)state;
    trd_engine_options o = qwen();
    o.remat_policy = TRD_REMAT_AUTO;
    assert_string_equal(plan_of(&o).recomputation, "none");
}

static void expect_failure(const trd_engine_options *o, const char *first, const char *second)
{
    trd_plan plan;
    assert_int_equal(trd_plan_options(o, &plan), TRD_NO_MEMORY);
    if (!strstr(trd_error_message(), first) || !strstr(trd_error_message(), second))
        fail_msg("%s", trd_error_message());
}

/* The number behind a text in the newest message. */
static uint64_t told(const char *text)
{
    const char *at = strstr(trd_error_message(), text);
    unsigned long long value = 0;
    if (!at || sscanf(at + strlen(text), "%llu", &value) != 1) fail_msg("%s", trd_error_message());
    return value;
}

static void says_what_would_fit(void **state)
{
    (void)state;
    trd_engine_options o = qwen();
    o.memory_limit_bytes = plan_of(&o).peak_bytes;
    plan_of(&o);
    o.memory_limit_bytes--;
    expect_failure(&o, "found ", "use remat_policy auto");
    o.remat_policy = TRD_REMAT_AUTO;
    o.memory_limit_bytes = plan_of(&o).parameter_bytes;
    expect_failure(&o, "found that at least ", "per_device_batch_size");
    /* What it says is true: with less than that no rule is tried, and that much is not enough for one. */
    o.memory_limit_bytes = told("found that at least ") - 1;
    expect_failure(&o, "found that at least ", "state and inputs");
    o.memory_limit_bytes++;
    expect_failure(&o, "found that ", "state and inputs");
    /* Now it tells what is enough, and a byte less is not. */
    uint64_t least = o.memory_limit_bytes = told("found that ");
    assert_int_equal(plan_of(&o).peak_bytes, least);
    o.memory_limit_bytes--;
    expect_failure(&o, "found that ", "state and inputs");
}

static const trd__backend_table *counted;
static int compilations;

static trd_status count_compilation(trd__backend *backend, const trd__program *program,
                                    const trd__compile_options *options, trd__executable **executable)
{
    compilations++;
    return counted->compile(backend, program, options, executable);
}

/* How many programs a plan that cannot fit compiles before it fails. */
static int compilations_until_failure(const trd_engine_options *o)
{
    trd_engine *engine;
    trd_plan plan;
    OK(trd__engine_create_bare(o, &engine));
    counted = engine->backend->table;
    trd__backend_table table = *counted;
    table.compile = count_compilation;
    engine->backend->table = &table;
    compilations = 0;
    assert_int_equal(trd_engine_plan(engine, &plan), TRD_NO_MEMORY);
    engine->backend->table = counted;
    trd__engine_destroy_bare(engine);
    return compilations;
}

static void fails_at_once_where_no_rule_helps(void **state)
{
    (void)state;
    trd_engine_options o = qwen();
    const trd_plan none = plan_of(&o);
    const uint64_t held = none.peak_bytes - none.activation_bytes - none.scratch_bytes;
    o.remat_policy = TRD_REMAT_AUTO;
    o.memory_limit_bytes = held - 1;
    assert_int_equal(compilations_until_failure(&o), 2); /* evaluation and update */
    assert_non_null(strstr(trd_error_message(), "bytes (memory_limit_bytes)"));
    assert_int_equal(told("expected a peak of at most "), o.memory_limit_bytes);
    assert_true(told("found that at least ") > held);
    assert_int_equal(told("bytes are needed, "), held);
}

/* A ladder of 28 layers has more than a hundred rungs. */
static void tries_whole_levels_where_nothing_fits(void **state)
{
    (void)state;
    trd_engine_options o = qwen();
    o.overrides.layers = 28;
    o.remat_policy = TRD_REMAT_AUTO;
    o.memory_limit_bytes = plan_of(&o).parameter_bytes;
    compilations_until_failure(&o);
    o.memory_limit_bytes = told("found that at least ");
    assert_in_range(compilations_until_failure(&o), 4, 12);
    assert_null(strstr(trd_error_message(), "at least"));
}

static void under_auto_names_no_other_policy(void **state)
{
    (void)state;
    trd_engine_options o = qwen();
    const trd_batch batch = {.rows = o.rows, .length = o.length};
    trd_engine *engine;
    trd__family *family;
    const trd__compiled *eval;
    o.remat_policy = TRD_REMAT_AUTO;
    o.memory_limit_bytes = 1;
    OK(trd__engine_create_bare(&o, &engine));
    OK(trd__family_find(engine, &batch, &family));
    assert_int_equal(trd__program_get(engine, family, TRD__PROGRAM_EVAL, &eval), TRD_NO_MEMORY);
    assert_non_null(strstr(trd_error_message(), "raise memory_limit_bytes"));
    assert_null(strstr(trd_error_message(), "remat_policy"));
    trd__engine_destroy_bare(engine);
}

enum { MICRO_BATCHES = 4 };

/* Two steps of two micro-batches each, as far as they go. */
static trd_status train(trd_engine *engine)
{
    test_batch b;
    trd_status status = TRD_OK;
    for (int i = 0; i < MICRO_BATCHES && status == TRD_OK; i++) {
        status = trd_engine_fwd_bwd(engine, test_batch_fill(&b, (uint64_t)i));
        if (status == TRD_OK && i % 2) OK(trd_engine_update(engine));
    }
    return status;
}

/* Trains by a limit and holds the result against none's. False where nothing fits; recomputation: the rule.
 */
static bool same_as_none(trd_engine *none, const trd_engine_options *o, char *recomputation)
{
    trd_engine *automatic = test_engine(o);
    trd_status status = train(automatic);
    if (status == TRD_NO_MEMORY) {
        assert_int_equal(trd_engine_step(automatic), 0); /* not in the midst of a run */
        trd_engine_close(automatic);
        return false;
    }
    OK(status);
    assert_true(test_metric(automatic, "loss") == test_metric(none, "loss"));
    test_expect_same(automatic, none);
    trd_plan chosen;
    OK(trd_engine_plan(automatic, &chosen));
    assert_true(chosen.peak_bytes <= o->memory_limit_bytes);
    assert_true(automatic->backend->table->stats(automatic->backend).memory_bytes <= o->memory_limit_bytes);
    memcpy(recomputation, chosen.recomputation, TRD_RECOMPUTATION_TEXT);
    OK(trd_engine_close(automatic));
    return true;
}

/* Ever lower limits, until nothing fits: the number of rules that were chosen. */
static int rules_same_as_none(trd_engine_options o)
{
    trd_engine *none = test_engine(&o);
    OK(train(none));
    trd_plan plan;
    OK(trd_engine_plan(none, &plan));
    o.remat_policy = TRD_REMAT_AUTO;
    char last[TRD_RECOMPUTATION_TEXT] = "", rule[TRD_RECOMPUTATION_TEXT];
    int rules = 0;
    for (int i = 0; i < LIMITS; i++) {
        o.memory_limit_bytes = plan.peak_bytes - plan.activation_bytes * (uint64_t)i / (2 * LIMITS);
        if (!same_as_none(none, &o, rule)) break;
        rules += strcmp(rule, last) != 0;
        memcpy(last, rule, sizeof last);
    }
    OK(trd_engine_close(none));
    return rules;
}

static void changes_no_bit(void **state)
{
    (void)state;
    for (int scan = 0; scan < 2; scan++) {
        trd_engine_options o = test_adamw();
        o.scan_layers = scan;
        o.gradient_accumulation_steps = 2;
        assert_true(rules_same_as_none(o) >= 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chooses_the_cheapest_that_fits),
        cmocka_unit_test(without_a_limit_takes_what_is_free),
        cmocka_unit_test(says_what_would_fit),
        cmocka_unit_test(fails_at_once_where_no_rule_helps),
        cmocka_unit_test(tries_whole_levels_where_nothing_fits),
        cmocka_unit_test(under_auto_names_no_other_policy),
        cmocka_unit_test(changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
