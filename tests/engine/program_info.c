/* The list of compiled programs: what is in it, and what a fingerprint tells apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/engine.h"

static trd_program_info program(const trd_engine *engine, const char *name)
{
    for (int i = 0; i < trd_engine_program_count(engine); i++)
        if (strcmp(trd_engine_program(engine, i).name, name) == 0) return trd_engine_program(engine, i);
    fail_msg("no program %s", name);
    return (trd_program_info){0};
}

static trd_engine *compiled_engine(const trd_engine_options *options)
{
    test_batch b;
    trd_engine *engine = test_engine(options);
    OK(trd_engine_compile(engine, test_batch_fill(&b, 1)));
    return engine;
}

static void lists_what_is_compiled(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *engine = test_engine(&o);
    test_batch b;
    assert_int_equal(trd_engine_program_count(engine), 0);
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 1)));
    assert_int_equal(trd_engine_program_count(engine), 1);
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    OK(trd_engine_update(engine));
    OK(trd_engine_wait(engine));
    assert_int_equal(trd_engine_program_count(engine), 3);
    static const char *const names[] = {"first", "accum", "update"};
    static const uint64_t runs[] = {1, 2, 1};
    for (int i = 0; i < 3; i++) {
        trd_program_info info = trd_engine_program(engine, i);
        assert_string_equal(info.name, names[i]);
        assert_int_equal(info.runs, runs[i]);
        assert_int_equal(info.length, i < 2 ? TEST_LENGTH : 0);
        assert_true(info.busy_ns > 0 && info.fingerprint && info.kernels > 0);
        assert_true(info.least_ns > 0 && info.least_ns * info.runs <= info.busy_ns);
        assert_true(info.bytes_read > 0 && info.bytes_written > 0 && info.peak_bytes > 0);
        assert_true(i == 2 || info.flops > 0);
    }
    assert_true(trd_engine_program(engine, 0).flops == trd_engine_program(engine, 1).flops);
    assert_null(trd_engine_program(engine, 3).name);
    assert_null(trd_engine_program(engine, -1).name);
    OK(trd_engine_compile(engine, &b.batch));
    assert_int_equal(trd_engine_program_count(engine), 5);
    OK(trd_engine_with_loss_fn(engine, trd_loss_sft, NULL));
    assert_int_equal(trd_engine_program_count(engine), 0);
    OK(trd_engine_close(engine));
}

static void expect_fingerprints(const trd_engine_options *a, const trd_engine_options *b, bool same)
{
    static const char *const names[] = {"first", "accum", "update", "eval", "train_step"};
    trd_engine *left = compiled_engine(a), *right = compiled_engine(b);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t x = program(left, names[i]).fingerprint, y = program(right, names[i]).fingerprint;
        if ((x == y) != same) fail_msg("%s: %llx and %llx", names[i], (long long)x, (long long)y);
        for (size_t k = 0; k < i; k++) assert_true(program(left, names[k]).fingerprint != x);
    }
    OK(trd_engine_close(right));
    OK(trd_engine_close(left));
}

static void fingerprints_tell_programs_apart(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw(), other = o;
    expect_fingerprints(&o, &other, true);
    other.max_inflight_computations = 5; /* nothing of a program */
    other.init_weights_seed = 9;
    expect_fingerprints(&o, &other, true);
    other = o;
    other.grad_dtype = TRD_BF16;
    trd_engine *left = compiled_engine(&o), *right = compiled_engine(&other);
    assert_true(program(left, "eval").fingerprint == program(right, "eval").fingerprint);
    assert_true(program(left, "accum").fingerprint != program(right, "accum").fingerprint);
    assert_true(program(left, "update").fingerprint != program(right, "update").fingerprint);
    OK(trd_engine_close(right));
    OK(trd_engine_close(left));
    other = o;
    other.num_threads = o.num_threads + 1;
    expect_fingerprints(&o, &other, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_what_is_compiled),
                                       cmocka_unit_test(fingerprints_tell_programs_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
