/* How much memory this process may still come to. Linux hands out more than there is and kills a process
 * later, in the middle of its work; a check before the work can say what is too big. */
#ifndef TRD_BASE_MEMORY_H
#define TRD_BASE_MEMORY_H

#include <stdint.h>

#include "base/status.h"

/* Most anonymous memory, in bytes, that this process can have: what it uses and what is free, swap included,
 * or its control group's limit if that is less. UINT64_MAX where the system does not tell. */
uint64_t trd__memory_limit(void);

/* TRD_NO_MEMORY when `total` bytes, the process's large blocks taken together, are more than it can have. */
trd_status trd__memory_check(uint64_t total);

#endif
