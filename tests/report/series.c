/* Curves stay bounded and keep their shape. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "report/chart.h"

static void few_values_stay_as_they_are(void **state)
{
    (void)state;
    trd__series series = {0};
    for (int i = 0; i < 10; i++) trd__series_add(&series, i, i * 2);
    trd__series_add(&series, 10, NAN);
    trd__series_add(&series, 11, -INFINITY);
    assert_int_equal(series.count, 10);
    for (int i = 0; i < 10; i++) assert_true(series.x[i] == i && series.y[i] == i * 2);
}

static void many_values_are_merged(void **state)
{
    (void)state;
    trd__series series = {0};
    for (int i = 0; i < 1000000; i++) trd__series_add(&series, i, 3.0 * i);
    assert_in_range(series.count, TRD__SERIES_POINTS / 2, TRD__SERIES_POINTS - 1);
    for (int i = 0; i < series.count; i++) {
        assert_true(fabs(series.y[i] - 3 * series.x[i]) < 1e-6 * (1 + fabs(series.y[i])));
        assert_true(i == 0 || series.x[i] > series.x[i - 1]);
    }
}

static void charts_of_hard_data(void **state)
{
    (void)state;
    static const double values[][2] = {{5, 5}, {0, 0}, {1e300, -1e300}, {1e-300, 2e-300}};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        trd__series series = {0};
        trd__text text = {0};
        trd__series_add(&series, 1, values[v][0]);
        trd__series_add(&series, 2, values[v][1]);
        trd__chart_put(&text, "t", &(trd__curve){"train", "train", &series}, 1);
        assert_int_equal(text.status, TRD_OK);
        assert_non_null(strstr(text.data, "</svg>"));
        assert_null(strstr(text.data, "nan"));
        assert_null(strstr(text.data, "inf"));
        assert_in_range(text.bytes, 100, 4000);
        trd__text_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_values_stay_as_they_are),
        cmocka_unit_test(many_values_are_merged),
        cmocka_unit_test(charts_of_hard_data),
    };
    return cmocka_run_group_tests_name("report/series", tests, NULL, NULL);
}
