/* Scales, ticks and polylines. Invariant: coordinates are finite, as series hold finite values and a scale
 * never has width 0. */
#include "report/chart.h"

#include <math.h>
#include <stdbool.h>

enum { WIDTH = 720, HEIGHT = 260, LEFT = 64, RIGHT = 12, TOP = 30, BOTTOM = 26, TICKS = 5 };

typedef struct scale {
    double low, high;
} scale;

static double x_pixel(scale s, double x)
{
    return LEFT + (x - s.low) / (s.high - s.low) * (WIDTH - LEFT - RIGHT);
}

static double y_pixel(scale s, double y)
{
    return HEIGHT - BOTTOM - (y - s.low) / (s.high - s.low) * (HEIGHT - TOP - BOTTOM);
}

static bool find_scales(const trd__curve *curves, int count, scale *x, scale *y)
{
    *x = *y = (scale){INFINITY, -INFINITY};
    for (int c = 0; c < count; c++)
        for (int i = 0; i < curves[c].series->count; i++) {
            x->low = fmin(x->low, curves[c].series->x[i]);
            x->high = fmax(x->high, curves[c].series->x[i]);
            y->low = fmin(y->low, curves[c].series->y[i]);
            y->high = fmax(y->high, curves[c].series->y[i]);
        }
    if (x->low > x->high) return false;
    if (x->high <= x->low) *x = (scale){x->low - 0.5, x->low + 0.5};
    double margin = 0.05 * (y->high - y->low);
    if (margin <= 0) margin = y->low != 0 ? 0.1 * fabs(y->low) : 1;
    *y = (scale){y->low - margin, y->high + margin};
    return true;
}

/* A round distance between ticks: 1, 2 or 5 times a power of ten. */
static double tick_distance(scale s)
{
    double raw = (s.high - s.low) / TICKS, power = pow(10, floor(log10(raw)));
    double lead = raw / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static void put_axes(trd__text *text, scale x, scale y)
{
    double step = tick_distance(y);
    for (double v = ceil(y.low / step); v * step <= y.high; v++) {
        double at = y_pixel(y, v * step);
        trd__text_put(text, "<line class=grid x1=%d x2=%d y1=%.1f y2=%.1f />", LEFT, WIDTH - RIGHT, at, at);
        trd__text_put(text, "<text class=end x=%d y=%.1f>%.6g</text>", LEFT - 6, at + 4, v * step + 0.0);
    }
    step = fmax(1, tick_distance(x));
    for (double v = ceil(x.low / step); v * step <= x.high; v++)
        trd__text_put(text, "<text class=mid x=%.1f y=%d>%.0f</text>", x_pixel(x, v * step), HEIGHT - 8,
                      v * step);
}

static void put_curve(trd__text *text, const trd__curve *curve, scale x, scale y)
{
    const trd__series *series = curve->series;
    if (series->count > 1) {
        trd__text_put(text, "<polyline class=\"%s\" points=\"", curve->style);
        for (int i = 0; i < series->count; i++)
            trd__text_put(text, "%.1f,%.1f ", x_pixel(x, series->x[i]), y_pixel(y, series->y[i]));
        trd__text_put(text, "\"/>");
    }
    if (series->count == 0 || series->count > 32) return;
    for (int i = 0; i < series->count; i++) /* few points: show where they are */
        trd__text_put(text, "<circle class=\"%s\" cx=%.1f cy=%.1f r=3 />", curve->style,
                      x_pixel(x, series->x[i]), y_pixel(y, series->y[i]));
}

void trd__chart_put(trd__text *text, const char *title, const trd__curve *curves, int count)
{
    scale x, y;
    if (!find_scales(curves, count, &x, &y)) return;
    trd__text_put(text,
                  "<svg viewBox=\"0 0 %d %d\" role=img><title>%s</title><text class=head x=%d y=18>%s</text>",
                  WIDTH, HEIGHT, title, LEFT, title);
    put_axes(text, x, y);
    for (int c = 0; c < count; c++) put_curve(text, &curves[c], x, y);
    for (int c = 0, at = WIDTH - RIGHT; count > 1 && c < count; c++, at -= 90)
        trd__text_put(text, "<text class=\"end %s\" x=%d y=18>&#9632; %s</text>", curves[c].style, at,
                      curves[c].label);
    trd__text_put(text, "</svg>\n");
}
