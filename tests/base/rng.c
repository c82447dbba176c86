/* The generator: draws are functions of their place, and normals have the moments and tails they should. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

enum { PAIRS = 100000 };

static void normals_by_place(void **state)
{
    (void)state;
    static float all[2 * 1000], part[2 * 1000];
    trd__rng_normals(3, 4, 0, 1000, all);
    trd__rng_normals(3, 4, 300, 500, part);
    assert_memory_equal(all + 600, part, 1000 * sizeof *part);
    trd__rng_normals(3, 5, 0, 1000, part);
    assert_memory_not_equal(all, part, sizeof part);
    trd__rng_normals(4, 4, 0, 1000, part);
    assert_memory_not_equal(all, part, sizeof part);
}

static void normals_have_their_moments(void **state)
{
    (void)state;
    static float x[2 * PAIRS];
    double mean = 0, square = 0, fourth = 0, product = 0;
    int beyond = 0;
    trd__rng_normals(11, 12, 0, PAIRS, x);
    for (int i = 0; i < 2 * PAIRS; i++) {
        assert_true(isfinite(x[i]));
        mean += x[i];
        square += (double)x[i] * x[i];
        fourth += pow(x[i], 4);
        product += (i & 1) ? (double)x[i] * x[i - 1] : 0;
        beyond += fabsf(x[i]) > 2.5758293f; /* 1 in 100 */
    }
    double n = 2.0 * PAIRS;
    assert_true(fabs(mean / n) < 5 / sqrt(n));
    assert_true(fabs(square / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs(fourth / n - 3) < 5 * sqrt(96 / n));
    assert_true(fabs(product / PAIRS) < 5 / sqrt(PAIRS));
    assert_true(fabs(beyond / n - 0.01) < 5 * sqrt(0.01 / n));
}

/* Each draw against the formula in float64 on the same 64 bits. */
static void normals_are_exact_enough(void **state)
{
    (void)state;
    static float x[2 * 2000];
    trd__rng_normals(1, 2, 0, 2000, x);
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t bits = trd__rng_u64(1, 2, i);
        double u = ((double)(bits >> 40) + 1) * 0x1p-24, v = (double)(bits & 0xffffffu) * 0x1p-24;
        double radius = sqrt(-2 * log(u)), angle = 6.283185307179586 * v;
        assert_true(fabs(x[2 * i] - radius * cos(angle)) < 4e-6);
        assert_true(fabs(x[2 * i + 1] - radius * sin(angle)) < 4e-6);
    }
}

static void permutations(void **state)
{
    (void)state;
    uint64_t order[50], seen[50] = {0};
    trd__rng_permutation(1, 2, order, 50);
    for (int i = 0; i < 50; i++) seen[order[i]]++;
    for (int i = 0; i < 50; i++) assert_int_equal(seen[i], 1);
    for (uint64_t i = 0; i < 1000; i++) assert_true(trd__rng_below(1, 2, i, 7) < 7);
    assert_true(trd__rng_stream("a") != trd__rng_stream("b"));
}

/* The answers published with the generator (Random123's known-answer tests). */
static void threefry_is_the_published_one(void **state)
{
    (void)state;
    static const uint32_t known[][6] = {
        {0, 0, 0, 0, 0x6b200159, 0x99ba4efe},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x1cb996fc, 0xbb002be7},
        {0x13198a2e, 0x03707344, 0x243f6a88, 0x85a308d3, 0xc4923a9c, 0x483df7a0}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[2];
        trd__threefry(known[i], known[i] + 2, out);
        assert_int_equal(out[0], known[i][4]);
        assert_int_equal(out[1], known[i][5]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normals_by_place),
        cmocka_unit_test(normals_have_their_moments),
        cmocka_unit_test(normals_are_exact_enough),
        cmocka_unit_test(permutations),
        cmocka_unit_test(threefry_is_the_published_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
