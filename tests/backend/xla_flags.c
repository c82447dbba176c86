/* Flags of XLA's compiler: known names pass with values of their kind, everything else is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/pjrt/flags.h"

static trd__arena *arena;

static int make_arena(void **state)
{
    (void)state;
    arena = trd__arena_create();
    return arena ? 0 : -1;
}

static int free_arena(void **state)
{
    (void)state;
    trd__arena_free(arena);
    return 0;
}

static void reads_each_kind(void **state)
{
    (void)state;
    trd__xla_flags f;
    assert_int_equal(trd__xla_flags_parse(arena, NULL, &f), TRD_OK);
    assert_int_equal(f.count, 0);
    assert_int_equal(trd__xla_flags_parse(arena, " \n", &f), TRD_OK);
    assert_int_equal(f.count, 0);
    const char *text = "--xla_cpu_enable_fast_math  --xla_cpu_enable_fast_min_max=false "
                       "--xla_cpu_prefer_vector_width=512 --xla_dump_to=a=b";
    assert_int_equal(trd__xla_flags_parse(arena, text, &f), TRD_OK);
    assert_int_equal(f.count, 4);
    assert_string_equal(f.flags[0].name, "xla_cpu_enable_fast_math");
    assert_int_equal(f.flags[0].number, 1);
    assert_int_equal(f.flags[1].number, 0);
    assert_int_equal(f.flags[2].kind, TRD__XLA_FLAG_INT);
    assert_int_equal(f.flags[2].number, 512);
    assert_string_equal(f.flags[3].text, "a=b");
}

static void refuses(const char *text, const char *message)
{
    trd__xla_flags f;
    assert_int_equal(trd__xla_flags_parse(arena, text, &f), TRD_INVALID_ARGUMENT);
    if (!strstr(trd_error_message(), message)) fail_msg("%s", trd_error_message());
}

static void refuses_what_it_does_not_know(void **state)
{
    (void)state;
    refuses("--xla_cpu_enable_fast_mth=true",
            "unknown flag \"xla_cpu_enable_fast_mth\"; did you mean \"xla_cpu_enable_fast_math\"?");
    refuses("--nothing_of_the_kind=1", "unknown flag \"nothing_of_the_kind\"; docs/xla.md lists");
    refuses("--xla_force_host_platform_device_count=4", "unknown flag");
    refuses("xla_cpu_enable_fast_math=true", "words of the form --name=value, found \"xla_cpu");
    refuses("--xla_cpu_enable_fast_math=yes",
            "xla_cpu_enable_fast_math: expected true or false, found \"yes\"");
    refuses("--xla_cpu_prefer_vector_width=12x", "expected a whole number, found \"12x\"");
    refuses("--xla_cpu_parallel_codegen_split_count=-3", "expected 0 or more, found \"-3\"");
    refuses("--xla_cpu_prefer_vector_width=", "expected a whole number, found \"\"");
    refuses("--xla_cpu_max_isa", "xla_cpu_max_isa: expected a text");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_each_kind),
                                       cmocka_unit_test(refuses_what_it_does_not_know)};
    return cmocka_run_group_tests_name("backend/xla_flags", tests, make_arena, free_arena);
}
