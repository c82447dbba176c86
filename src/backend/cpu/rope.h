/* The fast variant of the rotary rotation. */
#ifndef TRD_BACKEND_CPU_ROPE_H
#define TRD_BACKEND_CPU_ROPE_H

#include "backend/cpu/kernel.h"

extern const trd__cpu_kernel trd__rope_rows;

#endif
