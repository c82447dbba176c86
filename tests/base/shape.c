/* Shapes: counts that overflow are an error value, never a wrong number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/shape.h"

static int64_t count(trd_shape shape)
{
    return trd__shape_count(&shape);
}

static void counts(void **state)
{
    (void)state;
    assert_int_equal(count(trd__shape_scalar()), 1);
    assert_int_equal(count(TRD__SHAPE(2, 3, 4)), 24);
    assert_int_equal(count(TRD__SHAPE(2, 0, 4)), 0);
    assert_int_equal(count(TRD__SHAPE(2, -1)), -1);
    assert_int_equal(count(TRD__SHAPE(INT64_MAX / 8)), INT64_MAX / 8);
    assert_int_equal(count(TRD__SHAPE(INT64_MAX / 8, 1, 1)), INT64_MAX / 8);
    assert_int_equal(count(TRD__SHAPE(INT64_MAX / 8 + 1)), -1); /* the bytes of float64 would overflow */
    assert_int_equal(count(TRD__SHAPE(INT64_MAX, 2)), -1);
    assert_int_equal(count(TRD__SHAPE((int64_t)1 << 32, (int64_t)1 << 31)), -1);
    assert_int_equal(count(TRD__SHAPE((int64_t)1 << 32, (int64_t)1 << 32, 1)), -1);
}

static void equality(void **state)
{
    (void)state;
    trd_shape a = TRD__SHAPE(2, 3), b = TRD__SHAPE(2, 3), c = TRD__SHAPE(2, 3, 1), d = TRD__SHAPE(3, 2);
    assert_true(trd__shape_equal(&a, &b));
    assert_false(trd__shape_equal(&a, &c));
    assert_false(trd__shape_equal(&a, &d));
    b.dim[5] = 9; /* beyond the rank: no part of the shape */
    assert_true(trd__shape_equal(&a, &b));
}

static void text(void **state)
{
    (void)state;
    char out[TRD__SHAPE_TEXT];
    trd_shape scalar = trd__shape_scalar(), one = TRD__SHAPE(5), three = TRD__SHAPE(2, 3, 4), widest;
    assert_string_equal(trd__shape_text(&scalar, out), "()");
    assert_string_equal(trd__shape_text(&one, out), "(5)");
    assert_string_equal(trd__shape_text(&three, out), "(2, 3, 4)");
    widest.rank = TRD_MAX_RANK;
    for (int i = 0; i < TRD_MAX_RANK; i++) widest.dim[i] = INT64_MIN;
    assert_true(strlen(trd__shape_text(&widest, out)) < TRD__SHAPE_TEXT);
    assert_int_equal(out[strlen(out) - 1], ')');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(equality),
        cmocka_unit_test(text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
