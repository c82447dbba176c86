/* How many threads the CPU backend has: the option, else OMP_NUM_THREADS, else what the machine is good for;
 * its log line says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/machine.h"

typedef struct lines {
    char info[256], warning[256]; /* the last of each */
} lines;

static void keep_line(void *user, trd_log_level level, const char *line)
{
    lines *kept = user;
    snprintf(level == TRD_LOG_INFO ? kept->info : kept->warning, sizeof kept->info, "%s", line);
}

/* Threads of a backend made with the option, under the variable (NULL: unset), which is understood or not. */
static int threads_when(int option, const char *variable, bool understood)
{
    lines kept = {"", ""};
    char expected[64];
    trd__backend *backend;
    trd__backend_options o = {.name = "cpu", .threads = option, .log = {.write = keep_line, .user = &kept}};
    unsetenv("OMP_NUM_THREADS");
    if (variable) setenv("OMP_NUM_THREADS", variable, 1);
    assert_int_equal(trd__backend_create(&o, &backend), TRD_OK);
    int threads = backend->table->stats(backend).workers;
    backend->table->free(backend);
    snprintf(expected, sizeof expected, "backend cpu: %d threads, ", threads);
    assert_memory_equal(kept.info, expected, strlen(expected));
    if (understood) assert_string_equal(kept.warning, "");
    if (!understood)
        assert_non_null(strstr(kept.warning, "OMP_NUM_THREADS: expected a number from 1 to 1024, "));
    return threads;
}

static int threads_with(int option, const char *variable)
{
    return threads_when(option, variable, true);
}

static void option_goes_first(void **state)
{
    (void)state;
    assert_int_equal(threads_with(3, NULL), 3);
    assert_int_equal(threads_with(3, "2"), 3);
}

static void variable_goes_before_the_machine(void **state)
{
    (void)state;
    assert_int_equal(threads_with(0, "5"), 5);
    assert_int_equal(threads_with(0, "4,2"), 4); /* OpenMP's list: the outermost level's */
}

static void machine_is_the_default(void **state)
{
    (void)state;
    int workers = trd__machine_read("", NULL).workers;
    assert_int_equal(threads_with(0, NULL), workers);
    assert_int_equal(threads_with(0, ""), workers);
    static const char *const nonsense[] = {"many", "-1", "0", "3abc", "2.5", "1025", "4;2"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++)
        assert_int_equal(threads_when(0, nonsense[i], false), workers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(option_goes_first),
                                       cmocka_unit_test(variable_goes_before_the_machine),
                                       cmocka_unit_test(machine_is_the_default)};
    return cmocka_run_group_tests_name("backend/threads", tests, NULL, NULL);
}
