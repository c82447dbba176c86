/* repeat has no kernel: it is unrolled. */
#include "backend/cpu/kernel.h"

const trd__cpu_op trd__cpu_repeat[] = {{0}};
