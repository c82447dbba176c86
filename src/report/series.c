/* See the header. */
#include "report/series.h"

#include <math.h>

static void merge_neighbours(trd__series *series)
{
    for (int i = 0; i < TRD__SERIES_POINTS / 2; i++) {
        series->x[i] = 0.5 * (series->x[2 * i] + series->x[2 * i + 1]);
        series->y[i] = 0.5 * (series->y[2 * i] + series->y[2 * i + 1]);
    }
    series->count = TRD__SERIES_POINTS / 2;
    series->per_point *= 2;
}

void trd__series_add(trd__series *series, double x, double y)
{
    if (!isfinite(y)) return;
    if (series->per_point == 0) series->per_point = 1;
    double *sum_x = &series->x[series->count], *sum_y = &series->y[series->count];
    *sum_x = series->pending ? *sum_x + x : x;
    *sum_y = series->pending ? *sum_y + y : y;
    if (++series->pending < series->per_point) return;
    *sum_x /= (double)series->pending;
    *sum_y /= (double)series->pending;
    series->pending = 0;
    if (++series->count == TRD__SERIES_POINTS) merge_neighbours(series);
}
