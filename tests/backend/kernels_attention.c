/* The blocked attention kernels, and that of few tokens, against the plain ones: grouped heads, packed
 * segments, padding on either side with anything in it, rows of padding only, more rows and keys than a
 * block, and a cache. */
#include "backend/kernels.h"
#include "support/nightly.h"

extern const trd__cpu_op trd__cpu_attention[];

typedef struct shape {
    int64_t batch, queries, heads, groups, size, keys; /* keys: of the cache, 0 = none */
} shape;

/* Row 0: segments packed without padding. Row 1: left padding, one segment, right padding. Row 2: padding. */
static void fill_segments(tensor *segments, const shape *s)
{
    int32_t *ids = segments->data;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t t = 0; t < s->queries; t++) {
            int64_t fifth = 5 * t / s->queries;
            int32_t id = (int32_t)(fifth < 3 ? 1 : fifth);
            if (b % 3 == 1) id = fifth == 0 || fifth == 4 ? 0 : 1;
            if (b % 3 == 2) id = 0;
            ids[b * s->queries + t] = id;
        }
}

static void make_operands(kernel_case *c, const shape *s, trd_dtype dtype)
{
    int64_t keys = s->keys ? s->keys : s->queries;
    case_random(c, dtype, TRD__SHAPE(s->batch, s->queries, s->heads, s->size), 2.0);
    case_random(c, dtype, TRD__SHAPE(s->batch, keys, s->groups, s->size), 2.0);
    case_random(c, dtype, TRD__SHAPE(s->batch, keys, s->groups, s->size), 1.0);
    fill_segments(case_input(c, TRD_I32, TRD__SHAPE(s->batch, s->queries)), s);
}

/* What padding holds must not matter: a NaN in every element of it, of an operand (B, T, heads, D). */
static void poison(const kernel_case *c, const shape *s, int input)
{
    const int32_t *ids = c->inputs[3].data;
    const tensor *t = &c->inputs[input];
    size_t row = tensor_count(t) / (size_t)(s->batch * s->queries);
    for (size_t i = 0; i < tensor_count(t); i++)
        if (ids[i / row] == 0) trd__store(t->type.dtype, t->data, i, NAN);
}

/* Against every variant that takes the shape. */
static void compare_variants(kernel_case *c, const shape *s, trd_dtype dtype, double tolerance)
{
    case_compare(c, trd__cpu_attention, "blocked", tolerance);
    bool few = dtype == TRD_F32 && s->keys == 0 && s->queries <= 16;
    if (few) case_compare(c, trd__cpu_attention, "few", tolerance);
}

static void check_forward(const shape *s, trd_dtype dtype, uint64_t seed)
{
    trd__attention_attr attr = {.scale = 1.0 / sqrt((double)s->size), .cached = s->keys != 0};
    kernel_case c = {.op = &trd__op_attention, .attr = &attr, .seed = seed};
    make_operands(&c, s, dtype);
    if (s->keys) {
        int32_t *positions = case_input(&c, TRD_I32, TRD__SHAPE(s->batch, s->queries))->data;
        for (int64_t i = 0; i < s->batch * s->queries; i++)
            positions[i] = (int32_t)(s->keys / 2 + 3 * (i / s->queries) + i % s->queries);
    }
    case_output(&c, dtype, TRD__SHAPE(s->batch, s->queries, s->heads, s->size));
    case_output(&c, TRD_F32, TRD__SHAPE(s->batch, s->heads, s->queries));
    for (int input = 0; s->keys == 0 && input < 3; input++) poison(&c, s, input);
    compare_variants(&c, s, dtype, dtype == TRD_F32 ? 2e-6 : 5e-3);
    case_free(&c);
}

static void check_gradient(const shape *s, trd_dtype dtype, uint64_t seed)
{
    trd__attention_attr attr = {.scale = 1.0 / sqrt((double)s->size)};
    kernel_case c = {.op = &trd__op_attention, .attr = &attr, .seed = seed};
    trd_shape queries = TRD__SHAPE(s->batch, s->queries, s->heads, s->size);
    make_operands(&c, s, dtype);
    case_output(&c, dtype, queries);
    case_output(&c, TRD_F32, TRD__SHAPE(s->batch, s->heads, s->queries));
    case_run(&c, kernel_named(trd__cpu_attention, c.op, NULL), TRD__ISA_BASELINE, 1, c.outputs);
    c.inputs[c.input_count++] = c.outputs[0];
    c.inputs[c.input_count++] = c.outputs[1];
    c.output_count = 0;
    c.op = &trd__op_attention_grad;
    case_random(&c, dtype, queries, 1.0);
    case_output(&c, dtype, queries);
    case_output(&c, dtype, c.inputs[1].type.shape);
    case_output(&c, dtype, c.inputs[2].type.shape);
    for (int input = 0; input < 3; input++) poison(&c, s, input);
    poison(&c, s, 6);
    compare_variants(&c, s, dtype, dtype == TRD_F32 ? 2e-5 : 8e-3);
    case_free(&c);
}

static void packed_rows(void **state)
{
    (void)state;
    static const shape shapes[] = {{1, 2, 2, 1, 8, 0},    {3, 7, 4, 2, 16, 0},  {3, 16, 2, 2, 20, 0},
                                   {2, 70, 3, 3, 24, 0},  {3, 37, 6, 2, 64, 0}, {1, 1100, 2, 1, 8, 0},
                                   {1, 130, 9, 3, 64, 0}, {2, 90, 16, 1, 8, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            check_forward(&shapes[i], bf16 ? TRD_BF16 : TRD_F32, i);
            check_gradient(&shapes[i], bf16 ? TRD_BF16 : TRD_F32, i);
        }
}

static void cached_keys(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {1, 1, 6, 2, 16, 40}, {3, 1, 4, 4, 64, 700}, {2, 9, 4, 1, 32, 50}, {1, 80, 2, 2, 16, 170}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) check_forward(&shapes[i], bf16 ? TRD_BF16 : TRD_F32, i);
}

static void large_shapes(void **state)
{
    (void)state;
    static const shape shapes[] = {{1, 1024, 4, 2, 128, 0}, {3, 512, 6, 2, 64, 0}};
    if (!nightly()) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            check_forward(&shapes[i], bf16 ? TRD_BF16 : TRD_F32, i);
            check_gradient(&shapes[i], bf16 ? TRD_BF16 : TRD_F32, i);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_rows), cmocka_unit_test(cached_keys),
                                       cmocka_unit_test(large_shapes)};
    return cmocka_run_group_tests_name("backend/kernels_attention", tests, NULL, NULL);
}
