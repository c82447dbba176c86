/* The streaming product of few rows against the plain kernel, and its promise that a row's bits do not depend
 * on the rows beside it: not even where one row alone is so small a product that another kernel takes it. */
#include "backend/cpu/row_math.h"
#include "backend/cpu/stream_math.h"
#include "backend/kernels.h"
#include "support/normal.h"

extern const trd__cpu_op trd__cpu_matmul[];

static void check(trd_shape x, int64_t n, trd_dtype dtype, trd_dtype out, uint64_t seed)
{
    trd__matmul_attr attr = {.transpose_y = true, .dtype = out};
    kernel_case c = {.op = &trd__op_matmul, .attr = &attr, .seed = seed};
    int64_t k = x.dim[x.rank - 1];
    trd_shape y = x;
    y.dim[y.rank - 1] = n;
    case_random(&c, dtype, x, 1.0);
    case_random(&c, dtype, TRD__SHAPE(n, k), 1.0);
    case_output(&c, out, y);
    case_compare(&c, trd__cpu_matmul, "stream", out == TRD_F32 ? 2e-6 : 4e-3);
    case_free(&c);
}

static void every_size(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{16, 64}, {1, 1}, {130, 70}, {37, 17}, {50, 31}, {64, 0}};
    static const trd_dtype dtypes[][2] = {{TRD_F32, TRD_F32}, {TRD_BF16, TRD_BF16}, {TRD_BF16, TRD_F32}};
    for (int64_t rows = 1; rows <= TRD__STREAM_ROWS; rows++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t d = 0; d < 3; d++)
                check(TRD__SHAPE(rows, sizes[i][1]), sizes[i][0], dtypes[d][0], dtypes[d][1],
                      (uint64_t)rows * 100 + i * 10 + d);
    check(TRD__SHAPE(2, 3, 40), 21, TRD_F32, TRD_F32, 7); /* leading axes are rows */
}

static void rows_are_independent(void **state)
{
    (void)state;
    enum { K = 75 };
    float x[TRD__STREAM_ROWS * K], weight[TRD__STREAM_COLUMNS * K];
    float all[TRD__STREAM_ROWS * TRD__STREAM_COLUMNS], alone[TRD__STREAM_COLUMNS];
    for (int i = 0; i < TRD__STREAM_ROWS * K; i++) x[i] = (float)test_normal(1, 0, (uint64_t)i);
    for (int i = 0; i < TRD__STREAM_COLUMNS * K; i++) weight[i] = (float)test_normal(2, 0, (uint64_t)i);
    for (int isa = TRD__ISA_BASELINE; isa <= (int)trd__cpu_detect(); isa++)
        for (int rows = 1; rows <= TRD__STREAM_ROWS; rows++) {
            const trd__stream_math *math = trd__stream_math_for((trd__isa)isa);
            const trd__row_math *small = trd__row_math_for((trd__isa)isa);
            math->f32(x, rows, weight, K, all);
            for (int r = 0; r < rows; r++) {
                math->f32(x + r * K, 1, weight, K, alone);
                assert_memory_equal(alone, all + r * TRD__STREAM_COLUMNS, sizeof alone);
                small->product(false, true, 1, TRD__STREAM_COLUMNS, K, 1.0f, x + r * K, K, weight, K, 0.0f,
                               alone, TRD__STREAM_COLUMNS);
                assert_memory_equal(alone, all + r * TRD__STREAM_COLUMNS, sizeof alone);
            }
        }
}

/* What it does not take goes to the kernel behind it. */
static void refusals(void **state)
{
    (void)state;
    trd__matmul_attr attr = {.transpose_y = true, .dtype = TRD_F32};
    trd__type x = {.dtype = TRD_F32, .shape = TRD__SHAPE(TRD__STREAM_ROWS + 1, 512)}, y = {.dtype = TRD_F32};
    y.shape = TRD__SHAPE(500, 512);
    trd_node nodes[2] = {{.results = &x}, {.results = &y}};
    trd_value inputs[2] = {{&nodes[0], 0}, {&nodes[1], 0}};
    trd_node n = {.op = &trd__op_matmul, .attr = &attr, .inputs = inputs, .input_count = 2};
    const trd__cpu_info info = {.workers = 1};
    assert_string_equal(trd__cpu_choose(&n, &info)->name, "gemm");
    x.shape.dim[0] = 8;
    assert_string_equal(trd__cpu_choose(&n, &info)->name, "stream");
    attr.transpose_y = false;
    y.shape = TRD__SHAPE(512, 500);
    assert_string_equal(trd__cpu_choose(&n, &info)->name, "gemm");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size), cmocka_unit_test(rows_are_independent),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests_name("backend/kernels_matmul_stream", tests, NULL, NULL);
}
