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

static void keep_line(void *user, trd_log_level level, const char *line)
{
    if (level == TRD_LOG_INFO) snprintf(user, 256, "%s", line);
}

/* Threads of a backend made with the option, under the variable (NULL: unset). */
static int threads_with(int option, const char *variable)
{
    char line[256] = "", expected[64];
    trd__backend *backend;
    trd__backend_options o = {.name = "cpu", .threads = option, .log = {.write = keep_line, .user = line}};
    unsetenv("OMP_NUM_THREADS");
    if (variable) setenv("OMP_NUM_THREADS", variable, 1);
    assert_int_equal(trd__backend_create(&o, &backend), TRD_OK);
    int threads = backend->table->stats(backend).workers;
    backend->table->free(backend);
    snprintf(expected, sizeof expected, "backend cpu: %d threads, ", threads);
    assert_memory_equal(line, expected, strlen(expected));
    return threads;
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
    assert_int_equal(threads_with(0, "many"), workers);
    assert_int_equal(threads_with(0, "-1"), workers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(option_goes_first),
                                       cmocka_unit_test(variable_goes_before_the_machine),
                                       cmocka_unit_test(machine_is_the_default)};
    return cmocka_run_group_tests_name("backend/threads", tests, NULL, NULL);
}
