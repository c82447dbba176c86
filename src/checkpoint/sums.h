/* Checksums of a checkpoint's tensors, by all processors this process may use. */
#ifndef TRD_CHECKPOINT_SUMS_H
#define TRD_CHECKPOINT_SUMS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct trd__summed {
    const void *data;
    size_t bytes;
    uint64_t sum; /* set by trd__sums */
} trd__summed;

/* Sets every sum. first_task (NULL: none) runs beside, on the calling thread, and its status is returned;
 * where the system refuses threads the work is done in turn. */
trd_status trd__sums(trd__summed *items, size_t count, trd_status (*first_task)(void *), void *context);

#endif
