/* The gemm kernel against the plain one: all transpositions, dtypes, accumulators, batches and odd sizes. */
#include "backend/kernels.h"
#include "support/nightly.h"

extern const trd__cpu_op trd__cpu_matmul[];

typedef struct product {
    int64_t batch, m, n, k;
    bool shared_y;
} product;

static void check(product p, bool tx, bool ty, trd_dtype x, trd_dtype out, bool accumulate, uint64_t seed)
{
    trd__matmul_attr attr = {.transpose_x = tx, .transpose_y = ty, .dtype = out};
    kernel_case c = {.op = &trd__op_matmul, .attr = &attr, .seed = seed};
    trd_shape xs = TRD__SHAPE(p.batch, tx ? p.k : p.m, tx ? p.m : p.k);
    trd_shape ys = TRD__SHAPE(p.batch, ty ? p.n : p.k, ty ? p.k : p.n);
    if (p.shared_y) ys = TRD__SHAPE(ty ? p.n : p.k, ty ? p.k : p.n);
    case_random(&c, x, xs, 1.0);
    case_random(&c, x, ys, 1.0);
    if (accumulate) case_random(&c, out, TRD__SHAPE(p.batch, p.m, p.n), 1.0);
    case_output(&c, out, TRD__SHAPE(p.batch, p.m, p.n));
    case_compare(&c, trd__cpu_matmul, "gemm", out == TRD_F32 ? 2e-6 : 4e-3);
    case_free(&c);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_form), cmocka_unit_test(empty_sum),
                                       cmocka_unit_test(large_shapes)};
    return cmocka_run_group_tests_name("backend/kernels_matmul", tests, NULL, NULL);
}
