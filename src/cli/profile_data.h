/* What a run's traces add up to: programs and ops with their calls, times and costs. */
#ifndef TRD_CLI_PROFILE_DATA_H
#define TRD_CLI_PROFILE_DATA_H

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

/* All calls of one op by one kernel, or all runs of one program. */
typedef struct cli_profile_row {
    const char *name;
    const char *detail; /* an op's kernel, a program's fingerprint */
    int64_t calls;
    double total_us;
    double flops, bytes; /* of all calls; bytes: read and written */
} cli_profile_row;

typedef struct cli_profile_rows {
    cli_profile_row *rows;
    int count, capacity;
} cli_profile_rows;

typedef struct cli_profile {
    trd__arena *arena;
    int windows;
    int64_t micro_steps, workers, dropped_spans;
    double busy_us, extent_us; /* of programs; from the first one's begin to the last one's end, by window */
    cli_profile_rows programs, ops; /* the costliest first */
} cli_profile;

/* path: a run's folder, its folder of traces, or one trace file. */
trd_status cli_profile_read(const char *path, cli_profile *profile);
void cli_profile_free(cli_profile *profile);

#endif
