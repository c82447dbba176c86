/* What a test does more of in the nightly run (./check nightly sets TRD_NIGHTLY): more seeds, large shapes.
 * Whatever the usual run holds, the nightly run holds too. */
#ifndef TRD_TESTS_NIGHTLY_H
#define TRD_TESTS_NIGHTLY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static inline bool nightly(void)
{
    const char *set = getenv("TRD_NIGHTLY");
    return set && *set;
}

/* count, or that many times it at night. */
static inline uint64_t nightly_times(uint64_t count, uint64_t times)
{
    return nightly() ? count * times : count;
}

#endif
