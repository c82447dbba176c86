/* Conversions: every f16 and bf16 value there and back, rounding to nearest even held exhaustively at the
 * middle between neighbours, and every pair of dtypes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "support/scratch.h"

/* The value of f16 bits by the definition of IEEE 754 binary16. */
static double f16_value(unsigned bits)
{
    int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, exponent - 25);
}

static void f16_there_and_back(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        double expected = f16_value(bits);
        float found = trd__f16_to_f32((trd__f16)bits);
        if (isnan(expected)) {
            assert_true(isnan(found));
            assert_true(isnan(f16_value(trd__f32_to_f16(found))));
            continue;
        }
        assert_true((double)found == expected);
        assert_int_equal(trd__f32_to_f16(found), bits); /* the sign of 0 too */
    }
}

/* Between every two neighbours: below the middle down, above it up, in the middle to the even one. */
static void f16_rounds_to_even(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x7c00; bits++) {
        double low = f16_value(bits), high = bits + 1 == 0x7c00 ? 65536 : f16_value(bits + 1);
        float middle = (float)((low + high) / 2); /* exact: one more bit than f16 has */
        unsigned even = bits & 1 ? bits + 1 : bits;
        assert_int_equal(trd__f32_to_f16(middle), even);
        assert_int_equal(trd__f32_to_f16(nextafterf(middle, 0)), bits);
        assert_int_equal(trd__f32_to_f16(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(trd__f32_to_f16(-middle), 0x8000 | even);
    }
    assert_int_equal(trd__f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(trd__f32_to_f16(-3e38f), 0xfc00);
    assert_int_equal(trd__f32_to_f16(1e-30f), 0);
    assert_int_equal(trd__f32_to_f16(-0.0f), 0x8000);
}

static void bf16_rounds_to_even(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x7f80; bits++) {
        float low = trd__bf16_to_f32((trd__bf16)bits);
        assert_int_equal(trd__f32_to_bf16(low), bits);
        uint32_t between = (uint32_t)bits << 16 | 0x8000;
        float middle;
        memcpy(&middle, &between, sizeof middle);
        unsigned even = bits & 1 ? bits + 1 : bits;
        assert_int_equal(trd__f32_to_bf16(middle), even);
        assert_int_equal(trd__f32_to_bf16(nextafterf(middle, 0)), bits);
        assert_int_equal(trd__f32_to_bf16(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(trd__f32_to_bf16(-middle), 0x8000 | even);
    }
    assert_int_equal(trd__f32_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(trd__f32_to_bf16(-INFINITY), 0xff80);
    for (uint32_t payload = 1; payload < 0x800000;
         payload = payload * 3 + 1) { /* a NaN never becomes infinity */
        uint32_t wide = 0x7f800000u | payload;
        float nan;
        memcpy(&nan, &wide, sizeof nan);
        assert_true(isnan(trd__bf16_to_f32(trd__f32_to_bf16(nan))));
        assert_true(isnan(trd__f16_to_f32(trd__f32_to_f16(nan))));
    }
}

static const trd_dtype stored[] = {TRD_F32, TRD_F64, TRD_BF16, TRD_F16, TRD_I32, TRD_I64, TRD_U8, TRD_BOOL};
enum { STORED = sizeof stored / sizeof *stored, VALUES = 37 };

/* Small whole numbers, which every dtype but bool holds exactly. */
static void every_pair(void **state)
{
    (void)state;
    unsigned char source[VALUES * 8], target[VALUES * 8 + 8];
    for (int from = 0; from < STORED; from++)
        for (int to = 0; to < STORED; to++) {
            for (size_t i = 0; i < VALUES; i++) trd__store(stored[from], source, i, (double)i);
            memset(target, 0xa5, sizeof target);
            trd__convert(stored[from], source, stored[to], target, VALUES);
            bool truth = stored[from] == TRD_BOOL || stored[to] == TRD_BOOL;
            for (size_t i = 0; i < VALUES; i++)
                assert_true(trd__load(stored[to], target, i) == (truth ? (double)(i != 0) : (double)i));
            assert_int_equal(target[VALUES * trd_dtype_bytes(stored[to])], 0xa5); /* nothing beyond the end */
        }
}

static void names(void **state)
{
    (void)state;
    trd_dtype dtype;
    for (int d = 0; d < TRD_DTYPE_COUNT; d++) {
        assert_int_equal(trd_dtype_parse(trd_dtype_name((trd_dtype)d), &dtype), TRD_OK);
        assert_int_equal(dtype, d);
        assert_true(trd_dtype_bytes(dtype) >= 1 && trd_dtype_bytes(dtype) <= 8);
    }
    assert_int_equal(trd_dtype_parse("bf16", &dtype), TRD_OK);
    assert_int_equal(dtype, TRD_BF16);
    assert_int_equal(trd_dtype_parse("float", &dtype), TRD_INVALID_ARGUMENT);
    expect_message("found \"float\"");
    assert_string_equal(trd_dtype_name(TRD_DTYPE_COUNT), "unknown");
    assert_int_equal(trd_dtype_bytes(TRD_DTYPE_COUNT), 0);
    assert_true(trd__dtype_is_float(TRD_F16) && !trd__dtype_is_float(TRD_I32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_there_and_back),
        cmocka_unit_test(f16_rounds_to_even),
        cmocka_unit_test(bf16_rounds_to_even),
        cmocka_unit_test(every_pair),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
