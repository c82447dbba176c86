/* Offsets for buffers whose lifetimes are known: what every backend with one arena needs.
 *
 * A buffer lives from position `first` to `last`, both included; two buffers whose lifetimes meet never
 * overlap in memory. Offsets are multiples of 64 bytes. */
#ifndef TRD_BACKEND_PLANNER_H
#define TRD_BACKEND_PLANNER_H

#include <stdint.h>

#include "base/status.h"

typedef struct trd__lifetime {
    uint64_t bytes;
    int first, last;
    uint64_t offset; /* out */
} trd__lifetime;

/* Sets the offsets; arena_bytes: what they need together, lower_bound_bytes: the most that is live at once,
 * which no plan can go below. */
trd_status trd__plan_memory(trd__lifetime *buffers, int count, uint64_t *arena_bytes,
                            uint64_t *lower_bound_bytes);

#endif
