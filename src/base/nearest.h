/* "Did you mean": the known name nearest to a mistyped one, for error messages. */
#ifndef TRD_BASE_NEAREST_H
#define TRD_BASE_NEAREST_H

#include <stddef.h>

/* The nearest of count names by edit distance, NULL when none is near enough to be a plausible slip. */
const char *trd__nearest(const char *name, const char *const *known, size_t count);

/* The same of names at most so many edits away: for names that differ little from one another. */
const char *trd__nearest_within(const char *name, const char *const *known, size_t count, size_t edits);

#endif
