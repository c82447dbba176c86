/* Processors, cores and quotas from hand-made files: hyper-threads count once, the least quota on the way to
 * the root holds, and what is missing or malformed is as if the kernel had not told it. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/machine.h"
#include "support/scratch.h"

static const char *root; /* of the hand-made files; a fresh one for each test */

/* Writes root/path with the folders it is in. */
__attribute__((format(printf, 2, 3))) static void put(const char *text, const char *format, ...)
{
    char path[512], file[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    int length = snprintf(file, sizeof file, "%s/%s", root, path);
    for (char *at = file + strlen(root) + 1; at < file + length; at++) {
        if (*at != '/') continue;
        *at = '\0';
        mkdir(file, 0700);
        *at = '/';
    }
    scratch_write(file, text, strlen(text));
}

static void put_core(int processor, const char *siblings)
{
    put(siblings, "sys/devices/system/cpu/cpu%d/topology/core_cpus_list", processor);
}

/* What is read with the first `count` processors allowed. */
static trd__machine of_first(int count)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    for (int i = 0; i < count; i++) CPU_SET((size_t)i, &allowed);
    return trd__machine_read(root, &allowed);
}

static void fresh(void *folder)
{
    static int count;
    char name[32];
    snprintf(name, sizeof name, "root%d", count++);
    root = scratch_path(folder, name);
    assert_int_equal(mkdir(root, 0700), 0);
}

static void nothing_told(void **state)
{
    fresh(*state);
    trd__machine m = of_first(6);
    assert_int_equal(m.processors, 6);
    assert_int_equal(m.cores, 6);
    assert_int_equal(m.fast_cores, 6);
    assert_int_equal(m.quota, INT_MAX);
    assert_int_equal(m.workers, 6);
}

static void hyper_threads_count_once(void **state)
{
    fresh(*state);
    for (int i = 0; i < 8; i++) {
        char siblings[16];
        snprintf(siblings, sizeof siblings, "%d,%d\n", i % 4, i % 4 + 4);
        put_core(i, siblings);
    }
    assert_int_equal(of_first(8).workers, 4);
    assert_int_equal(of_first(8).processors, 8);
    assert_int_equal(of_first(6).workers, 4); /* of two cores both threads */
    assert_int_equal(of_first(3).workers, 3);
    cpu_set_t upper; /* no first thread of a core is allowed */
    CPU_ZERO(&upper);
    for (size_t i = 4; i < 7; i++) CPU_SET(i, &upper);
    assert_int_equal(trd__machine_read(root, &upper).workers, 3);
}

/* Kernels before 5.0 have the list under another name; neighbours may be siblings. */
static void older_names(void **state)
{
    fresh(*state);
    for (int i = 0; i < 4; i++)
        put(i < 2 ? "0-1\n" : "2-3\n", "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
    assert_int_equal(of_first(4).cores, 2);
}

static void malformed_lists_are_left_out(void **state)
{
    static const char *const bad[] = {"",
                                      "\n",
                                      "x\n",
                                      "1-\n",
                                      "1-0\n",
                                      "0,\n",
                                      "0-1x\n",
                                      "5\n",
                                      "-1\n",
                                      "1 0\n",
                                      "0-99999999999999999999\n",
                                      "1-1024\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fresh(*state);
        put_core(0, "0-1\n");
        put_core(1, bad[i]);
        assert_int_equal(of_first(2).workers, 2);
    }
    fresh(*state);
    put_core(0, "0-1\n"); /* processor 1 has no file */
    assert_int_equal(of_first(2).workers, 2);
    put_core(1, "0-1\n");
    assert_int_equal(of_first(2).workers, 1);
}

static void put_speeds(const char *file, const char *const speeds[], int count)
{
    for (int i = 0; i < count; i++) {
        char self[16];
        snprintf(self, sizeof self, "%d\n", i);
        put_core(i, self);
        if (speeds[i]) put(speeds[i], "sys/devices/system/cpu/cpu%d/%s", i, file);
    }
}

static void slow_cores_work_where_they_pay(void **state)
{
    static const char *const capacity[] = {"300\n", "300\n", "1024\n", "1024\n"};
    fresh(*state);
    put_speeds("cpu_capacity", capacity, 4);
    assert_int_equal(of_first(4).cores, 4);
    assert_int_equal(of_first(4).workers, 2); /* 2 x 1024 is more than 4 x 300 */
    assert_int_equal(of_first(2).workers, 2);
    static const char *const turbo[] = {"5800000\n", "5800000\n", "5500000\n", "4400000\n"};
    fresh(*state);
    put_speeds("cpufreq/cpuinfo_max_freq", turbo, 4);
    assert_int_equal(of_first(4).workers, 4);
    static const char *const unknown[] = {"300\n", "many\n", "1024\n", "1024\n"}, *const gap[] = {"1024\n",
                                                                                                  NULL};
    fresh(*state);
    put_speeds("cpu_capacity", unknown, 4);
    assert_int_equal(of_first(4).workers, 4);
    fresh(*state);
    put_speeds("cpu_capacity", gap, 2);
    assert_int_equal(of_first(2).workers, 2);
}

static void quota_is_rounded_up(void **state)
{
    static const struct {
        const char *text;
        int quota;
    } cases[] = {{"150000 100000\n", 2},
                 {"100000 100000\n", 1},
                 {"1000 100000\n", 1},
                 {"200001 100000\n", 3},
                 {"max 100000\n", INT_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fresh(*state);
        put("0::/\n", "proc/self/cgroup");
        put(cases[i].text, "sys/fs/cgroup/cpu.max");
        assert_int_equal(of_first(8).quota, cases[i].quota);
        assert_int_equal(of_first(8).workers, cases[i].quota < 8 ? cases[i].quota : 8);
    }
}

static void least_quota_on_the_way_to_the_root(void **state)
{
    fresh(*state);
    put("0::/a.slice/b.service\n", "proc/self/cgroup");
    put("max 100000\n", "sys/fs/cgroup/a.slice/b.service/cpu.max");
    assert_int_equal(of_first(8).workers, 8);
    put("250000 100000\n", "sys/fs/cgroup/a.slice/cpu.max");
    assert_int_equal(of_first(8).workers, 3);
    put("600000 100000\n", "sys/fs/cgroup/a.slice/b.service/cpu.max");
    assert_int_equal(of_first(8).workers, 3);
    put("50000 100000\n", "sys/fs/cgroup/a.slice/b.service/cpu.max");
    assert_int_equal(of_first(8).workers, 1);
    put("10000 100000\n", "sys/fs/cgroup/other/cpu.max");
    assert_int_equal(of_first(8).workers, 1);
}

/* The path is the host's, and the container sees its own group as the root. */
static void path_outside_the_container(void **state)
{
    fresh(*state);
    put("0::/../../docker/0123\n", "proc/self/cgroup");
    put("400000 100000\n", "sys/fs/cgroup/cpu.max");
    assert_int_equal(of_first(8).workers, 4);
}

static void version_1(void **state)
{
    fresh(*state);
    put("5:memory:/box\n4:cpuset:/box\n3:cpu,cpuacct:/box\n1:name=systemd:/box\n", "proc/self/cgroup");
    put("-1\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    put("100000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us");
    put("1\n", "sys/fs/cgroup/memory/box/cpu.cfs_quota_us");
    put("1\n", "sys/fs/cgroup/memory/box/cpu.cfs_period_us");
    assert_int_equal(of_first(8).quota, INT_MAX);
    put("75000\n", "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us");
    assert_int_equal(of_first(8).quota, INT_MAX); /* no period */
    put("50000\n", "sys/fs/cgroup/cpu/box/cpu.cfs_period_us");
    assert_int_equal(of_first(8).quota, 2);
}

static void malformed_quotas_are_left_out(void **state)
{
    static const char *const files[] = {"", "\n", "0::", "0:/\n", "::::\n", "0\n\n\n", "x:cpu\n"};
    static const char *const quotas[] = {
        "",           "\n",          "100000\n",         "100000 \n",    "100000 0\n",
        "0 100000\n", "-5 100000\n", "100000x 100000\n", "1 100000 9\n", "1 99999999999999999999\n"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        fresh(*state);
        put(files[i], "proc/self/cgroup");
        assert_int_equal(of_first(8).workers, 8);
    }
    for (size_t i = 0; i < sizeof quotas / sizeof *quotas; i++) {
        fresh(*state);
        put("0::/\n", "proc/self/cgroup");
        put(quotas[i], "sys/fs/cgroup/cpu.max");
        assert_int_equal(of_first(8).workers, 8);
    }
}

static void this_machine(void **state)
{
    (void)state;
    trd__machine m = trd__machine_read("", NULL);
    assert_in_range(m.processors, 1, CPU_SETSIZE);
    assert_in_range(m.cores, 1, m.processors);
    assert_in_range(m.workers, 1, m.cores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_told),
        cmocka_unit_test(hyper_threads_count_once),
        cmocka_unit_test(older_names),
        cmocka_unit_test(malformed_lists_are_left_out),
        cmocka_unit_test(slow_cores_work_where_they_pay),
        cmocka_unit_test(quota_is_rounded_up),
        cmocka_unit_test(least_quota_on_the_way_to_the_root),
        cmocka_unit_test(path_outside_the_container),
        cmocka_unit_test(version_1),
        cmocka_unit_test(malformed_quotas_are_left_out),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests_name("base/machine", tests, scratch_create, scratch_remove);
}
