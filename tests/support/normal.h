/* Normal test data, one number at a time. */
#ifndef TRD_TESTS_SUPPORT_NORMAL_H
#define TRD_TESTS_SUPPORT_NORMAL_H

#include <math.h>

#include "base/rng.h"

/* Draw i of a stream: mean 0, deviation 1 (Box and Muller). */
static inline double test_normal(uint64_t seed, uint64_t stream, uint64_t i)
{
    double u = 1.0 - trd__rng_uniform(seed, stream, 2 * i); /* (0, 1] */
    double v = trd__rng_uniform(seed, stream, 2 * i + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

#endif
