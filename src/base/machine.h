/* What the machine gives this process to compute with: processors, cores and a share of their time, as the
 * Linux kernel tells in /sys and /proc. */
#ifndef TRD_BASE_MACHINE_H
#define TRD_BASE_MACHINE_H

#include <sched.h>

/* Each is at least 1. */
typedef struct trd__machine {
    int processors; /* in the affinity mask */
    int cores;      /* physical cores among them: hyper-threads of a core count once */
    int fast_cores; /* of the cores, those worth a worker when all get equal parts of the work */
    int quota;      /* processors that the control groups' CPU quota comes to, rounded up; INT_MAX: none */
    int workers;    /* what a compute-bound pool should have: fast_cores within the quota */
} trd__machine;

/* `root` goes before the paths that are read: "" for this machine, else a folder that holds hand-made files.
 * `allowed` is the affinity mask; NULL: this process's own. Never fails: a file that is missing or malformed
 * is as if the kernel did not have what it tells. */
trd__machine trd__machine_read(const char *root, const cpu_set_t *allowed);

#endif
