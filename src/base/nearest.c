/* Edit distance with transpositions (optimal string alignment) over short names. */
#include "base/nearest.h"

#include <stdint.h>
#include <string.h>

enum { LONGEST = 64 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST || m > LONGEST) return SIZE_MAX;
    size_t rows[3][LONGEST + 1];
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++) last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            row[j] = least(least(last[j] + 1, row[j - 1] + 1), last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], before[j - 2] + 1);
        }
        size_t *free_row = before;
        before = last;
        last = row;
        row = free_row;
    }
    return last[m];
}

const char *trd__nearest_within(const char *name, const char *const *known, size_t count, size_t edits)
{
    const char *best = NULL;
    size_t nearest = edits + 1;
    for (size_t i = 0; i < count; i++) {
        size_t d = distance(name, known[i]);
        if (d < nearest) {
            nearest = d;
            best = known[i];
        }
    }
    return best;
}

const char *trd__nearest(const char *name, const char *const *known, size_t count)
{
    const char *best = trd__nearest_within(name, known, count, strlen(name) / 3 + 1);
    if (best) return best;
    for (size_t i = 0; i < count; i++) /* a part of the name, as in "lr_schedule" for "lr_schedule_type" */
        if (strlen(name) >= 4 && strstr(known[i], name)) return known[i];
    return NULL;
}
