/* Reads the kernel's figures of processors, cores and quotas. Invariant: what cannot be read or makes no
 * sense is left out as a whole, so that the count of the affinity mask is always there to fall back to. */
#include "base/machine.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 4096, MOST_PROCESSORS = CPU_SETSIZE };

/* The text of a small file; false when there is none. */
__attribute__((format(printf, 2, 3))) static bool read_text(char text[TEXT_BYTES], const char *format, ...)
{
    char path[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof path) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? -1 : read(fd, text, TEXT_BYTES - 1);
    if (fd >= 0) close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0;
}

/* The digits at *text as a number, *text moves behind them; -1: there are none, or it is beyond reason. */
static long take_number(const char **text)
{
    if (!isdigit((unsigned char)**text)) return -1;
    char *end;
    long number = strtol(*text, &end, 10);
    *text = end;
    return number <= INT_MAX ? number : -1;
}

/* The processors of a list such as "0-3,8"; false when it is malformed. */
static bool parse_list(const char *text, cpu_set_t *set)
{
    CPU_ZERO(set);
    for (;; text++) {
        long first = take_number(&text), last = first;
        if (*text == '-') {
            text++;
            last = take_number(&text);
        }
        if (first < 0 || last < first || last >= MOST_PROCESSORS) return false;
        for (long i = first; i <= last; i++) CPU_SET((size_t)i, set);
        if (*text != ',') return *text == '\n' || *text == '\0';
    }
}

/* The number that is alone on its line; -1: the text is no such line. */
static long lone_number(const char *text)
{
    long number = take_number(&text);
    return *text == '\n' || *text == '\0' ? number : -1;
}

/* Whether the processor is the first of its core among the allowed; -1 when the kernel does not tell. */
static int leads_core(const char *root, int processor, const cpu_set_t *allowed)
{
    static const char folder[] = "sys/devices/system/cpu";
    char text[TEXT_BYTES];
    cpu_set_t core;
    if (!read_text(text, "%s/%s/cpu%d/topology/core_cpus_list", root, folder, processor) &&
        !read_text(text, "%s/%s/cpu%d/topology/thread_siblings_list", root, folder, processor))
        return -1;
    if (!parse_list(text, &core) || !CPU_ISSET((size_t)processor, &core)) return -1;
    for (int i = 0; i < processor; i++)
        if (CPU_ISSET((size_t)i, &core) && CPU_ISSET((size_t)i, allowed)) return 0;
    return 1;
}

/* The speed of a processor in units of its machine; -1 when the kernel does not tell. */
static long speed_of(const char *root, int processor)
{
    char text[TEXT_BYTES];
    if (!read_text(text, "%s/sys/devices/system/cpu/cpu%d/cpu_capacity", root, processor) &&
        !read_text(text, "%s/sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", root, processor))
        return -1;
    return lone_number(text);
}

static int compare_speeds(const void *left, const void *right)
{
    long a = *(const long *)left, b = *(const long *)right;
    return (b > a) - (b < a);
}

/* Of cores with these speeds, how many should work. All get equal parts and wait for the slowest: the rate is
 * their number times the least of the speeds. */
static int worth_a_worker(long *speeds, int count)
{
    qsort(speeds, (size_t)count, sizeof *speeds, compare_speeds);
    int best = count;
    for (int i = count; i >= 1; i--)
        if (i * speeds[i - 1] > best * speeds[best - 1]) best = i;
    return best;
}

static void read_cores(const char *root, const cpu_set_t *allowed, trd__machine *m)
{
    long speeds[MOST_PROCESSORS];
    int cores = 0;
    bool told = true;
    m->cores = m->fast_cores = m->processors;
    for (int i = 0; i < MOST_PROCESSORS; i++) {
        if (!CPU_ISSET((size_t)i, allowed)) continue;
        int leads = leads_core(root, i, allowed);
        if (leads < 0) return;
        if (!leads) continue;
        speeds[cores] = speed_of(root, i);
        told = told && speeds[cores] > 0;
        cores++;
    }
    m->cores = cores;
    m->fast_cores = told ? worth_a_worker(speeds, cores) : cores;
}

/* The quota of one control group in whole processors, INT_MAX: none. Version 2 has quota and period in a
 * file, "max" for no quota; version 1 has a file for each, -1 for no quota. */
static int group_quota(const char *root, const char *group)
{
    char text[TEXT_BYTES];
    long quota = -1, period = -1;
    if (read_text(text, "%s/sys/fs/cgroup/%s/cpu.max", root, group)) {
        const char *at = text;
        quota = take_number(&at);
        if (*at == ' ') period = lone_number(at + 1);
    } else if (read_text(text, "%s/sys/fs/cgroup/%s/cpu.cfs_quota_us", root, group)) {
        quota = lone_number(text);
        if (read_text(text, "%s/sys/fs/cgroup/%s/cpu.cfs_period_us", root, group)) period = lone_number(text);
    }
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : INT_MAX;
}

/* Where the hierarchy with the quotas is mounted, of a line "id:controllers:path": the controllers are empty
 * in version 2 and name cpu in version 1. NULL: the line is of another hierarchy. */
static const char *hierarchy(char *controllers)
{
    if (!*controllers) return "";
    for (char *name; (name = strsep(&controllers, ","));)
        if (strcmp(name, "cpu") == 0) return "cpu";
    return NULL;
}

/* The least quota of a group and of those that hold it. In a container the path may be the host's, which is
 * not seen here; then the mount's root is the container's own group. */
static int path_quota(const char *root, const char *mount, char *path)
{
    char group[TEXT_BYTES];
    int least = INT_MAX;
    for (;;) {
        int length = snprintf(group, sizeof group, "%s%s", mount, path);
        int quota = length >= 0 && (size_t)length < sizeof group ? group_quota(root, group) : INT_MAX;
        if (quota < least) least = quota;
        char *slash = strrchr(path, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

static int read_quota(const char *root)
{
    char text[TEXT_BYTES], *rest = text;
    int least = INT_MAX;
    if (!read_text(text, "%s/proc/self/cgroup", root)) return least;
    for (char *line; (line = strsep(&rest, "\n"));) {
        strsep(&line, ":");
        char *controllers = strsep(&line, ":");
        const char *mount = line ? hierarchy(controllers) : NULL;
        int quota = mount ? path_quota(root, mount, line) : INT_MAX;
        if (quota < least) least = quota;
    }
    return least;
}

trd__machine trd__machine_read(const char *root, const cpu_set_t *allowed)
{
    trd__machine m = {.processors = 1, .cores = 1, .fast_cores = 1, .quota = read_quota(root)};
    cpu_set_t own;
    if (!allowed && sched_getaffinity(0, sizeof own, &own) == 0) allowed = &own;
    if (allowed && CPU_COUNT(allowed) > 0) {
        m.processors = CPU_COUNT(allowed);
        read_cores(root, allowed, &m);
    }
    m.workers = m.fast_cores < m.quota ? m.fast_cores : m.quota;
    return m;
}
