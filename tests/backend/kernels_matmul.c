/* The gemm kernel against the plain one: all transpositions, dtypes, accumulators, batches and odd sizes. */
#include <math.h>

#include "backend/cpu/bf16_product.h"
#include "backend/cpu/row_math.h"
#include "backend/kernels.h"
#include "support/nightly.h"
#include "support/normal.h"

extern const trd__cpu_op trd__cpu_matmul[];

typedef struct product {
    int64_t batch, m, n, k;
    bool shared_y;
} product;

/* native: for the kernel that multiplies bfloat16 as it is; NULL: the one that widens. */
static void check_way(const trd__bf16_product *native, product p, bool tx, bool ty, trd_dtype x,
                      trd_dtype out, bool accumulate, uint64_t seed)
{
    trd__matmul_attr attr = {.transpose_x = tx, .transpose_y = ty, .dtype = out};
    kernel_case c = {.op = &trd__op_matmul, .attr = &attr, .seed = seed, .bf16_product = native};
    trd_shape xs = TRD__SHAPE(p.batch, tx ? p.k : p.m, tx ? p.m : p.k);
    trd_shape ys = TRD__SHAPE(p.batch, ty ? p.n : p.k, ty ? p.k : p.n);
    if (p.shared_y) ys = TRD__SHAPE(ty ? p.n : p.k, ty ? p.k : p.n);
    case_random(&c, x, xs, 1.0);
    case_random(&c, x, ys, 1.0);
    if (accumulate) case_random(&c, out, TRD__SHAPE(p.batch, p.m, p.n), 1.0);
    case_output(&c, out, TRD__SHAPE(p.batch, p.m, p.n));
    case_compare(&c, trd__cpu_matmul, native ? "bf16" : "gemm", out == TRD_F32 ? 2e-6 : 4e-3);
    case_free(&c);
}

static void check(product p, bool tx, bool ty, trd_dtype x, trd_dtype out, bool accumulate, uint64_t seed)
{
    check_way(NULL, p, tx, ty, x, out, accumulate, seed);
}

static void every_form(void **state)
{
    (void)state;
    static const product products[] = {{1, 5, 7, 3, false},     {1, 64, 48, 33, false}, {2, 37, 96, 64, true},
                                       {3, 17, 9, 40, false},   {7, 8, 8, 8, false},    {1, 1, 130, 70, true},
                                       {1, 600, 40, 530, true}, {1, 40, 1030, 17, true}};
    static const struct {
        trd_dtype x, out;
    } dtypes[] = {{TRD_F32, TRD_F32}, {TRD_BF16, TRD_BF16}, {TRD_BF16, TRD_F32}};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (int form = 0; form < 8; form++)
            for (size_t d = 0; d < 3; d++)
                check(products[i], form & 1, form & 2, dtypes[d].x, dtypes[d].out, form & 4,
                      i * 8 + (size_t)form);
}

/* The library's own product of bfloat16: blocks of a larger C, parts of it, batches, every transposition. */
static void native_bf16(void **state)
{
    (void)state;
    static const product products[] = {
        {1, 65, 48, 43, false}, {3, 50, 90, 40, false}, {1, 600, 40, 530, true}, {1, 40, 1030, 17, true}};
    trd__bf16_product *native = NULL;
    trd_status status = trd__bf16_product_choose(TRD__BF16_NATIVE, TRD__ISA_BASELINE, NULL, &native);
    if (trd__cpu_detect() < TRD__ISA_AVX512) skip(); /* the library may have none */
    assert_int_equal(status, TRD_OK);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (int form = 0; form < 8; form++)
            for (int wide = 0; wide < 2; wide++)
                check_way(native, products[i], form & 1, form & 2, TRD_BF16, wide ? TRD_F32 : TRD_BF16,
                          form & 4, i * 8 + (size_t)form);
    for (int accumulate = 0; accumulate < 2; accumulate++)
        check_way(native, (product){1, 20, 30, 0, false}, true, true, TRD_BF16, TRD_F32, accumulate, 1);
    trd__bf16_product_free(native);
}

/* Products so large that two workers share them in small parts too, of rows and of columns. */
static void shared_in_small_parts(void **state)
{
    (void)state;
    check((product){1, 1040, 130, 500, true}, false, true, TRD_F32, TRD_F32, false, 1);
    check((product){1, 130, 1040, 500, true}, true, false, TRD_F32, TRD_F32, true, 2);
    check((product){2, 130, 1040, 500, false}, false, true, TRD_BF16, TRD_BF16, true, 3);
}

/* A product over no rows defines its result, and leaves an accumulator as it is. */
static void empty_sum(void **state)
{
    (void)state;
    product p = {1, 20, 30, 0, true};
    for (int d = 0; d < 2; d++) {
        trd_dtype dtype = d ? TRD_BF16 : TRD_F32;
        check(p, false, true, dtype, dtype, false, 1);
        check(p, false, true, dtype, dtype, true, 1);
    }
}

/* Strided operands of a product of every size up to these. */
enum { MOST_M = 9, MOST_N = 40, MOST_K = 33, LD = 48 };

static void check_product(const trd__row_math *math, bool tx, bool ty, int64_t m, int64_t n, int64_t k,
                          const float *x, const float *y, float beta)
{
    float all[MOST_M * LD], alone[LD];
    for (int i = 0; i < MOST_M * LD; i++) all[i] = (float)i;
    math->product(tx, ty, m, n, k, 0.5f, x, LD, y, LD, beta, all, LD);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < LD; j++) alone[j] = (float)(i * LD + j);
        math->product(tx, ty, 1, n, k, 0.5f, x + (tx ? i : i * LD), LD, y, LD, beta, alone, LD);
        assert_memory_equal(alone, all + i * LD, sizeof alone); /* behind the columns too */
        for (int64_t j = 0; j < n; j++) {
            double sum = (double)beta * (double)(i * LD + j), size = 1.0 + sum;
            for (int64_t p = 0; p < k; p++) {
                double term =
                    0.5 * (double)x[tx ? p * LD + i : i * LD + p] * (double)y[ty ? j * LD + p : p * LD + j];
                sum += term;
                size += fabs(term);
            }
            assert_true(fabs(sum - (double)all[i * LD + j]) < 1e-6 * size);
        }
    }
}

/* A row's bits do not depend on the rows beside it, on any instruction set. */
static void small_products(void **state)
{
    (void)state;
    static const int64_t columns[] = {1, 3, 16, 17, MOST_N}, depths[] = {0, 1, 5, 16, MOST_K};
    float x[LD * LD], y[LD * LD];
    for (int i = 0; i < LD * LD; i++) x[i] = (float)test_normal(1, 0, (uint64_t)i);
    for (int i = 0; i < LD * LD; i++) y[i] = (float)test_normal(2, 0, (uint64_t)i);
    for (int isa = TRD__ISA_BASELINE; isa <= (int)trd__cpu_detect(); isa++)
        for (int64_t m = 1; m <= MOST_M; m++)
            for (int n = 0; n < 5; n++)
                for (int k = 0; k < 5; k++)
                    for (int form = 0; form < 6; form++)
                        check_product(trd__row_math_for((trd__isa)isa), form % 3 == 1, form % 3 == 2, m,
                                      columns[n], depths[k], x, y, form < 3 ? 0.0f : 1.0f);
}

/* Small products have a kernel of their own before the others. */
static void small_kernel(void **state)
{
    (void)state;
    product p = {1, 8, 64, 128, true};
    for (int form = 0; form < 3; form++) {
        trd__matmul_attr attr = {.transpose_x = form == 1, .transpose_y = form == 2, .dtype = TRD_F32};
        trd__type x = {.dtype = TRD_F32, .shape = form == 1 ? TRD__SHAPE(p.k, p.m) : TRD__SHAPE(p.m, p.k)};
        trd__type y = {.dtype = TRD_F32, .shape = form == 2 ? TRD__SHAPE(p.n, p.k) : TRD__SHAPE(p.k, p.n)};
        trd_node nodes[2] = {{.results = &x}, {.results = &y}};
        trd_value inputs[2] = {{&nodes[0], 0}, {&nodes[1], 0}};
        trd_node n = {.op = &trd__op_matmul, .attr = &attr, .inputs = inputs, .input_count = 2};
        const trd__cpu_info info = {.workers = 1};
        assert_string_equal(trd__cpu_choose(&n, &info)->name, "small");
        y.dtype = TRD_BF16;
        assert_string_not_equal(trd__cpu_choose(&n, &info)->name, "small");
    }
}

/* The products of a small model's layer over 512 tokens. */
static void large_shapes(void **state)
{
    (void)state;
    static const product products[] = {
        {1, 512, 1536, 576, true}, {1, 512, 576, 1536, true}, {9, 512, 512, 64, false}};
    if (!nightly()) skip();
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (int form = 0; form < 3; form++) /* the forward product and both gradients */
            for (int bf16 = 0; bf16 < 2; bf16++)
                check(products[i], form == 2, form == 0, bf16 ? TRD_BF16 : TRD_F32, TRD_F32, form == 2, i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_form),
                                       cmocka_unit_test(native_bf16),
                                       cmocka_unit_test(shared_in_small_parts),
                                       cmocka_unit_test(empty_sum),
                                       cmocka_unit_test(small_products),
                                       cmocka_unit_test(small_kernel),
                                       cmocka_unit_test(large_shapes)};
    return cmocka_run_group_tests_name("backend/kernels_matmul", tests, NULL, NULL);
}
