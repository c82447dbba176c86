/* A line chart as inline SVG: no script, no font, no file beside it. */
#ifndef TRD_REPORT_CHART_H
#define TRD_REPORT_CHART_H

#include "report/series.h"
#include "report/text.h"

typedef struct trd__curve {
    const char *label;
    const char *style; /* class of its line, coloured by the page */
    const trd__series *series;
} trd__curve;

/* Puts nothing when no curve has a point. */
void trd__chart_put(trd__text *text, const char *title, const trd__curve *curves, int count);

#endif
