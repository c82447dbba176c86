/* Schedules at the steps where their formula is known in closed form. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <treadle/optim.h>

static void expect_rate(const trd_schedule_options *o, int64_t step, double share)
{
    double found = trd_schedule_value(o, step), expected = o->learning_rate * share;
    if (!(fabs(found - expected) <= 1e-15))
        fail_msg("step %lld: expected %.17g, found %.17g", (long long)step, expected, found);
}

static const trd_schedule_options base = {.learning_rate = 0.01,
                                          .warmup_steps_fraction = 0.1,
                                          .final_fraction = 0.1,
                                          .decay_steps_fraction = 0.2,
                                          .schedule_steps = 100};

static void warm_up(void **state)
{
    (void)state;
    const trd_schedule_type types[] = {TRD_SCHEDULE_CONSTANT, TRD_SCHEDULE_COSINE, TRD_SCHEDULE_WSD};
    for (int i = 0; i < 3; i++) {
        trd_schedule_options o = base;
        o.type = types[i];
        expect_rate(&o, 0, 0);
        expect_rate(&o, 1, 0.1);
        expect_rate(&o, 5, 0.5);
        expect_rate(&o, 10, 1);
        o.warmup_steps_fraction = 0;
        expect_rate(&o, 0, 1);
        o.warmup_steps_fraction = 0.005; /* less than a step */
        expect_rate(&o, 0, 1);
    }
}

static void constant(void **state)
{
    (void)state;
    trd_schedule_options o = base;
    o.type = TRD_SCHEDULE_CONSTANT;
    expect_rate(&o, 11, 1);
    expect_rate(&o, 99, 1);
    expect_rate(&o, 1000, 1);
}

static void cosine(void **state)
{
    (void)state;
    trd_schedule_options o = base;
    o.type = TRD_SCHEDULE_COSINE;
    expect_rate(&o, 55, 0.1 + 0.9 * 0.5);
    expect_rate(&o, 40, 0.1 + 0.9 * 0.75); /* a third of the way: cos 60 degrees */
    expect_rate(&o, 100, 0.1);
    expect_rate(&o, 1000, 0.1);
    o.final_fraction = 0;
    expect_rate(&o, 100, 0);
    for (int64_t step = 10; step < 100; step++)
        assert_true(trd_schedule_value(&o, step + 1) < trd_schedule_value(&o, step));
}

static void warm_up_stable_decay(void **state)
{
    (void)state;
    trd_schedule_options o = base;
    o.type = TRD_SCHEDULE_WSD;
    expect_rate(&o, 11, 1);
    expect_rate(&o, 80, 1);
    expect_rate(&o, 90, 0.55);
    expect_rate(&o, 95, 0.325);
    expect_rate(&o, 100, 0.1);
    expect_rate(&o, 200, 0.1);
    o.decay_style = TRD_DECAY_COSINE;
    expect_rate(&o, 80, 1);
    expect_rate(&o, 85, 0.1 + 0.9 * 0.5 * (1 + sqrt(0.5)));
    expect_rate(&o, 90, 0.55);
    expect_rate(&o, 100, 0.1);
    o.decay_steps_fraction = 0; /* nothing decays */
    expect_rate(&o, 99, 1);
    o.decay_steps_fraction = 0.9; /* everything after warm-up does */
    o.decay_style = TRD_DECAY_LINEAR;
    expect_rate(&o, 55, 0.55);
}

static void no_steps(void **state)
{
    (void)state;
    trd_schedule_options o = base;
    o.schedule_steps = 0;
    for (int type = TRD_SCHEDULE_CONSTANT; type <= TRD_SCHEDULE_WSD; type++) {
        o.type = (trd_schedule_type)type;
        assert_true(isfinite(trd_schedule_value(&o, 0)));
        assert_true(isfinite(trd_schedule_value(&o, 5)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up),  cmocka_unit_test(constant),
        cmocka_unit_test(cosine),   cmocka_unit_test(warm_up_stable_decay),
        cmocka_unit_test(no_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
