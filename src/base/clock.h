/* Monotonic time for durations, wall time for names and logs. */
#ifndef TRD_BASE_CLOCK_H
#define TRD_BASE_CLOCK_H

#include <stdint.h>

uint64_t trd__now_ns(void);     /* monotonic */
double trd__wall_seconds(void); /* since the epoch */

#endif
