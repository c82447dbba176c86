/* A curve of bounded size: when it is full, neighbours are merged into their mean and each later point stands
 * for twice as many values. Invariant: points are in the order they were added; values that are not finite
 * are left out. */
#ifndef TRD_REPORT_SERIES_H
#define TRD_REPORT_SERIES_H

#include <stdint.h>

enum { TRD__SERIES_POINTS = 1024 };

typedef struct trd__series {
    int count;
    int64_t per_point; /* values in a point; 0 counts as 1 */
    int64_t pending;   /* values gathered for the next point, their sums in x[count], y[count] */
    double x[TRD__SERIES_POINTS + 1], y[TRD__SERIES_POINTS + 1];
} trd__series;

/* A zeroed series is empty. */
void trd__series_add(trd__series *series, double x, double y);

#endif
