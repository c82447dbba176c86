/* The row kernels of rms_norm, swiglu and rope against the plain ones, at odd sizes; the exponential they
 * share against the C library's; rounding to bfloat16 and sums of squares, to the bit on every instruction
 * set. */
#include "backend/cpu/row_math.h"
#include "backend/cpu/tiles.h"
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

/* Gates whose sigmoid is 0 or next to nothing give nothing, whatever the gate. */
static void swiglu_of_large_gates(void **state)
{
    (void)state;
    static const float gates[] = {-1e38f, -1e36f, -1000.0f, -104.0f, -89.0f, -88.0f,
                                  -87.5f, 87.5f,  89.0f,    1000.0f, 1e36f};
    enum { GATES = sizeof gates / sizeof *gates, COUNT = 3 * GATES };
    for (int inputs = 2; inputs <= 3; inputs++) {
        kernel_case c = {.op = inputs == 2 ? &trd__op_swiglu : &trd__op_swiglu_grad, .seed = 1};
        for (int k = 0; k < inputs; k++) case_random(&c, TRD_F32, TRD__SHAPE(COUNT), 1.0);
        for (int k = 1; k < inputs; k++) case_output(&c, TRD_F32, TRD__SHAPE(COUNT));
        for (int i = 0; i < COUNT; i++) ((float *)c.inputs[0].data)[i] = gates[i % GATES];
        tensor outs[2];
        for (int k = 0; k < inputs - 1; k++) outs[k] = tensor_make(TRD_F32, TRD__SHAPE(COUNT));
        case_run(&c, kernel_named(trd__cpu_swiglu, c.op, NULL), TRD__ISA_BASELINE, 1, c.outputs);
        for (int isa = TRD__ISA_BASELINE; isa <= (int)trd__cpu_detect(); isa++) {
            case_run(&c, kernel_named(trd__cpu_swiglu, c.op, "tiles"), (trd__isa)isa, 1, outs);
            for (int k = 0; k < inputs - 1; k++)
                for (int i = 0; i < COUNT; i++) {
                    double expected = (double)((float *)c.outputs[k].data)[i];
                    double found = (double)((float *)outs[k].data)[i];
                    assert_true(fabs(found - expected) <= 1e-5 * fabs(expected) + 1e-30);
                }
        }
        for (int k = 0; k < inputs - 1; k++) trd__free(outs[k].data);
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

/* Values at which rounding to bfloat16 goes wrong first: ties to even and to odd, the largest that is finite
 * and what becomes infinite, subnormals; at the end NaNs with bits in the upper or only in the lower half. */
static const uint32_t hard[] = {0x00000000, 0x80000000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f817fff,
                                0x3f80ffff, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0x7f800000, 0xff800000,
                                0x00000001, 0x00008000, 0x00018000, 0x007fffff, 0x807f8000, 0xbf7fffff,
                                0x3f7f8000, 0x7f800001, 0x7fc00000, 0xffffffff, 0xff80ffff, 0x7fbf8000};
enum { HARD = sizeof hard / sizeof *hard, NANS = 5 };

/* Every instruction set rounds like trd__f32_to_bf16, whatever stands next to a value; where a NaN does,
 * another way may be taken. */
static void bfloat16_rounding(void **state)
{
    (void)state;
    enum { LENGTH = 83 };
    for (int isa = TRD__ISA_BASELINE; isa <= (int)trd__cpu_detect(); isa++)
        for (size_t shift = 0; shift < 2 * HARD; shift++) {
            float x[LENGTH], rounded[LENGTH / TRD__TILE_STEP * TRD__TILE_STEP];
            trd__bf16 zero[LENGTH], narrow[LENGTH], sum[LENGTH], stored[LENGTH];
            for (size_t i = 0; i < LENGTH; i++) {
                memcpy(&x[i], &hard[(i * (1 + shift % 5) + shift) % (shift % 2 ? HARD : HARD - NANS)],
                       sizeof *x);
                zero[i] = 0x8000; /* -0: x keeps its sign */
            }
            const trd__row_math *math = trd__row_math_for(isa);
            const trd__tiles *tiles = trd__tiles_for(isa);
            memcpy(rounded, x, sizeof rounded);
            math->narrow(x, narrow, LENGTH);
            math->narrow_add(x, zero, sum, LENGTH);
            tiles->store(x, TRD_BF16, stored, 0, LENGTH);
            tiles->round(rounded, TRD_BF16, sizeof rounded / sizeof *rounded);
            for (size_t i = 0; i < LENGTH; i++) {
                trd__bf16 expected = trd__f32_to_bf16(x[i]);
                assert_int_equal(narrow[i], expected);
                assert_int_equal(stored[i], expected);
                if (!isnan(x[i])) assert_int_equal(sum[i], expected);
                if (isnan(x[i])) assert_true(isnan(trd__bf16_to_f32(sum[i])));
                if (i < sizeof rounded / sizeof *rounded)
                    assert_int_equal(trd__f32_to_bf16(rounded[i]), expected);
            }
        }
}

/* Squares added right from memory have the bits of those that pass through a register, on every instruction
 * set, also where they are no float32: of subnormals and of the largest. */
static void streamed_squares(void **state)
{
    (void)state;
    enum { LENGTH = 5 * TRD__PARTIALS };
    float x[LENGTH], wide[LENGTH];
    trd__bf16 narrow[LENGTH];
    for (size_t i = 0; i < LENGTH; i++) {
        x[i] = i % 7 == 0 ? 0x1p-140f : i % 11 == 0 ? 0x1.fp127f : (float)trd__rng_uniform(5, 1, i) - 0.5f;
        narrow[i] = trd__f32_to_bf16(x[i]);
        wide[i] = trd__bf16_to_f32(narrow[i]);
    }
    for (int isa = TRD__ISA_BASELINE; isa <= (int)trd__cpu_detect(); isa++) {
        const trd__tiles *tiles = trd__tiles_for(isa);
        for (int bf16 = 0; bf16 < 2; bf16++) {
            double expected[TRD__PARTIALS] = {1.0}, found[TRD__PARTIALS] = {1.0};
            trd__tiles_for(TRD__ISA_BASELINE)->sum_squares(expected, bf16 ? wide : x, LENGTH);
            tiles->stream_squares(found, bf16 ? TRD_BF16 : TRD_F32, bf16 ? (void *)narrow : (void *)x, 0,
                                  LENGTH);
            assert_memory_equal(found, expected, sizeof found);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(norms),
                                       cmocka_unit_test(swiglu),
                                       cmocka_unit_test(swiglu_of_large_gates),
                                       cmocka_unit_test(rope),
                                       cmocka_unit_test(exponential),
                                       cmocka_unit_test(bfloat16_rounding),
                                       cmocka_unit_test(streamed_squares)};
    return cmocka_run_group_tests_name("backend/kernels_rows", tests, NULL, NULL);
}
