/* remat_policy auto: what it chooses fits, costs no more than any policy that fits, grows no cheaper as the
 * limit falls, and changes no bit; what cannot fit is said in full. */
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

static void says_what_would_fit(void **state)
{
    (void)state;
    trd_engine_options o = qwen();
    o.memory_limit_bytes = plan_of(&o).peak_bytes;
    plan_of(&o);
    o.memory_limit_bytes--;
    expect_failure(&o, "found ", "remat_policy auto");
    o.remat_policy = TRD_REMAT_AUTO;
    o.memory_limit_bytes = plan_of(&o).parameter_bytes;
    expect_failure(&o, "smallest possible is ", "per_device_batch_size");
    /* What it says is true: that much is enough, and a byte less is not. */
    unsigned long long least = 0;
    assert_int_equal(
        sscanf(strstr(trd_error_message(), "smallest possible is "), "smallest possible is %llu", &least), 1);
    o.memory_limit_bytes = least;
    assert_int_equal(plan_of(&o).peak_bytes, least);
    o.memory_limit_bytes--;
    expect_failure(&o, "smallest possible is ", "state and inputs");
}

/* Trains a small model by each limit and holds it against none. */
static void changes_no_bit(void **state)
{
    (void)state;
    for (int scan = 0; scan < 2; scan++) {
        trd_engine_options o = test_adamw();
        o.scan_layers = scan;
        o.gradient_accumulation_steps = 2;
        trd_engine *none = test_engine(&o);
        test_batch b;
        for (int i = 0; i < 4; i++) {
            OK(trd_engine_fwd_bwd(none, test_batch_fill(&b, (uint64_t)i)));
            if (i % 2) OK(trd_engine_update(none));
        }
        trd_plan plan;
        OK(trd_engine_plan(none, &plan));
        const char *last = "";
        char seen[LIMITS][TRD_RECOMPUTATION_TEXT];
        int rules = 0;
        for (int i = 0; i < LIMITS; i++) {
            o.remat_policy = TRD_REMAT_AUTO;
            o.memory_limit_bytes = plan.peak_bytes - plan.activation_bytes * (uint64_t)i / (2 * LIMITS);
            trd_engine *automatic = test_engine(&o);
            trd_status status = TRD_OK;
            for (int k = 0; k < 4 && status == TRD_OK; k++) {
                status = trd_engine_fwd_bwd(automatic, test_batch_fill(&b, (uint64_t)k));
                if (status == TRD_OK && k % 2) OK(trd_engine_update(automatic));
            }
            if (status == TRD_NO_MEMORY) { /* in the first step: below it nothing fits either */
                assert_int_equal(trd_engine_step(automatic), 0);
                trd_engine_close(automatic);
                break;
            }
            OK(status);
            assert_true(test_metric(automatic, "loss") == test_metric(none, "loss"));
            test_expect_same(automatic, none);
            trd_plan chosen;
            OK(trd_engine_plan(automatic, &chosen));
            assert_true(chosen.peak_bytes <= o.memory_limit_bytes);
            assert_true(automatic->backend->table->stats(automatic->backend).memory_bytes <=
                        o.memory_limit_bytes);
            if (strcmp(chosen.recomputation, last) != 0) {
                memcpy(seen[rules], chosen.recomputation, TRD_RECOMPUTATION_TEXT);
                last = seen[rules++];
            }
            OK(trd_engine_close(automatic));
        }
        assert_true(rules >= 3);
        OK(trd_engine_close(none));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chooses_the_cheapest_that_fits),
                                       cmocka_unit_test(without_a_limit_takes_what_is_free),
                                       cmocka_unit_test(says_what_would_fit),
                                       cmocka_unit_test(changes_no_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
