/* The fast variant of swiglu and its gradient. */
#ifndef TRD_BACKEND_CPU_SWIGLU_H
#define TRD_BACKEND_CPU_SWIGLU_H

#include "backend/cpu/kernel.h"

extern const trd__cpu_kernel trd__swiglu_tiles; /* both ops */

#endif
