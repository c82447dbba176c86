/* The row kernels of rms_norm, swiglu and rope against the plain ones, at odd sizes, and the exponential they
 * share against the C library's. */
#include "backend/cpu/row_math.h"
#include "backend/kernels.h"

extern const trd__cpu_op trd__cpu_rms_norm[], trd__cpu_swiglu[], trd__cpu_rope[];

static const trd_dtype dtypes[] = {TRD_F32, TRD_BF16};
static double tolerance(trd_dtype dtype)
{
    return dtype == TRD_F32 ? 1e-6 : 4e-3;
}

static void norms(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 5}, {9, 64}, {130, 333}, {40, 1024}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int d = 0; d < 2; d++)
            for (int form = 0; form < 5; form++) { /* forward, gradient with and without accumulator */
                trd_dtype dtype = dtypes[d], out = form > 2 ? TRD_F32 : dtype;
                trd__rms_norm_attr attr = {1e-5};
                trd_shape x = TRD__SHAPE(sizes[i][0], sizes[i][1]), scale = TRD__SHAPE(sizes[i][1]);
                kernel_case c = {
                    .op = form ? &trd__op_rms_norm_grad : &trd__op_rms_norm, .attr = &attr, .seed = i};
                case_random(&c, dtype, x, 3.0);
                case_random(&c, dtype, scale, 1.0);
                if (form) case_random(&c, dtype, x, 1.0);
                if (form == 1 || form == 3) case_null(&c);
                if (form == 2 || form == 4) case_random(&c, out, scale, 1.0);
                case_output(&c, dtype, x);
                if (form) case_output(&c, out, scale);
                case_compare(&c, trd__cpu_rms_norm, "rows", tolerance(dtype));
                case_free(&c);
            }
}

static void swiglu(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 37, 1024, 9001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int d = 0; d < 2; d++)
            for (int inputs = 2; inputs <= 3; inputs++) {
                kernel_case c = {.op = inputs == 2 ? &trd__op_swiglu : &trd__op_swiglu_grad, .seed = i};
                for (int k = 0; k < inputs; k++) case_random(&c, dtypes[d], TRD__SHAPE(sizes[i]), 4.0);
                for (int k = 1; k < inputs; k++) case_output(&c, dtypes[d], TRD__SHAPE(sizes[i]));
                case_compare(&c, trd__cpu_swiglu, "tiles", tolerance(dtypes[d]));
                case_free(&c);
            }
}

static void rope(void **state)
{
    (void)state;
    static const int64_t sizes[][5] = {
        {1, 3, 2, 6, 3}, {2, 37, 3, 64, 32}, {2, 50, 4, 20, 5}, {1, 2, 1, 8, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int d = 0; d < 2; d++)
            for (int inverse = 0; inverse < 2; inverse++) {
                trd__rope_attr attr = {inverse};
                trd_shape x = TRD__SHAPE(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
                kernel_case c = {.op = &trd__op_rope, .attr = &attr, .seed = i};
                case_random(&c, dtypes[d], x, 1.0);
                case_random(&c, TRD_F32, TRD__SHAPE(sizes[i][0], sizes[i][1], sizes[i][4], 2), 1.0);
                case_output(&c, dtypes[d], x);
                case_compare(&c, trd__cpu_rope, "rows", tolerance(dtypes[d]));
                case_free(&c);
            }
}

static void exponential(void **state)
{
    (void)state;
    for (int isa = TRD__ISA_BASELINE; isa <= (int)trd__cpu_detect(); isa++)
        for (float x = -106.0f; x < 90.0f; x += 0.0371f) {
            float y = x;
            trd__row_math_for((trd__isa)isa)->exp_in_place(&y, 0.0f, 1);
            double exact = x < -60.0f ? 0.0 : exp((double)x);
            if (exact > 3.4028235e38) {
                assert_true(isinf(y));
                continue;
            }
            if (fabs((double)y - exact) > 2.4e-7 * exact)
                fail_msg("exp(%g): expected %g, found %g", (double)x, exact, (double)y);
        }
    float nan = NAN;
    trd__row_math_for(trd__cpu_detect())->exp_in_place(&nan, 0.0f, 1);
    assert_true(isnan(nan));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(norms), cmocka_unit_test(swiglu),
                                       cmocka_unit_test(rope), cmocka_unit_test(exponential)};
    return cmocka_run_group_tests_name("backend/kernels_rows", tests, NULL, NULL);
}
