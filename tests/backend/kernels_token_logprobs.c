/* The blocked log-probability kernels against the plain ones: masks, several blocks of rows and tiles of the
 * vocabulary, accumulators, temperature; and the promise that a row's bits depend neither on the kernel nor
 * on which other rows are on. */
#include "backend/kernels.h"
#include "support/nightly.h"

extern const trd__cpu_op trd__cpu_token_logprobs[];

typedef enum mask { MASK_NULL, MASK_SOME, MASK_NONE } mask;

typedef struct sizes {
    int64_t batch, length, channels, vocabulary;
} sizes;

static void make_operands(kernel_case *c, const sizes *s, trd_dtype dtype, mask kind)
{
    case_random(c, dtype, TRD__SHAPE(s->batch, s->length, s->channels), 1.0);
    case_random(c, dtype, TRD__SHAPE(s->vocabulary, s->channels), 0.5);
    int32_t *targets = case_input(c, TRD_I32, TRD__SHAPE(s->batch, s->length))->data;
    for (int64_t i = 0; i < s->batch * s->length; i++)
        targets[i] = (int32_t)trd__rng_below(c->seed, 99, (uint64_t)i, (uint64_t)s->vocabulary);
    if (kind == MASK_NULL) {
        case_null(c);
        return;
    }
    uint8_t *on = case_input(c, TRD_BOOL, TRD__SHAPE(s->batch, s->length))->data;
    for (int64_t i = 0; i < s->batch * s->length; i++) on[i] = kind == MASK_SOME && i % 5 != 1;
}

/* d_log_sums, for every second seed. */
static void case_log_sum_gradient(kernel_case *c, trd_shape rows, uint64_t seed)
{
    if (seed % 2)
        case_random(c, TRD_F32, rows, 1.0);
    else
        case_null(c);
}

static void check(const sizes *s, trd_dtype dtype, mask kind, int form, uint64_t seed)
{
    trd_dtype out = form == 3 ? TRD_F32 : dtype;
    trd__token_logprobs_attr attr = {.temperature = seed % 2 ? 1.0 : 0.7, .weight_grad_dtype = out};
    kernel_case c = {
        .op = form ? &trd__op_token_logprobs_grad : &trd__op_token_logprobs, .attr = &attr, .seed = seed};
    make_operands(&c, s, dtype, kind);
    trd_shape rows = TRD__SHAPE(s->batch, s->length);
    if (form) case_random(&c, TRD_F32, rows, 1.0);
    if (form == 1) case_null(&c);
    if (form > 1) case_random(&c, out, TRD__SHAPE(s->vocabulary, s->channels), 1.0);
    if (form) case_log_sum_gradient(&c, rows, seed);
    case_output(&c, TRD_F32, rows);
    if (form) case_output(&c, dtype, TRD__SHAPE(s->batch, s->length, s->channels));
    if (form) case_output(&c, out, TRD__SHAPE(s->vocabulary, s->channels));
    case_output(&c, TRD_F32, rows); /* log-sum-exps */
    case_compare(&c, trd__cpu_token_logprobs, "blocks", dtype == TRD_F32 ? 5e-6 : 6e-3);
    case_free(&c);
}

static void every_form(void **state)
{
    (void)state;
    static const sizes all[] = {{1, 3, 8, 11},     {2, 37, 32, 96},   {1, 300, 16, 130},
                                {1, 20, 48, 2500}, {1, 12, 16, 9000}, {1, 300, 64, 8000}};
    size_t count = sizeof all / sizeof *all - (nightly() ? 0 : 1); /* the last one is large */
    for (size_t i = 0; i < count; i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (int kind = MASK_NULL; kind <= MASK_NONE; kind++)
                for (int form = 0; form < 4;
                     form++) /* forward; gradient alone, with accumulator, with f32 one */
                    check(&all[i], bf16 ? TRD_BF16 : TRD_F32, (mask)kind, form, i);
}

/* Log-probabilities of rows with the given mask, by op. */
static void logprobs(const trd_op *op, const sizes *s, mask kind, float *values)
{
    trd__token_logprobs_attr attr = {.temperature = 1.0};
    kernel_case c = {.op = op, .attr = &attr, .seed = 5};
    make_operands(&c, s, TRD_F32, kind);
    case_output(&c, TRD_F32, TRD__SHAPE(s->batch, s->length));
    if (op == &trd__op_token_logprobs_grad) {
        case_random(&c, TRD_F32, TRD__SHAPE(s->batch, s->length), 1.0);
        case_null(&c);
        case_null(&c);
        case_output(&c, TRD_F32, TRD__SHAPE(s->batch, s->length, s->channels));
        case_output(&c, TRD_F32, TRD__SHAPE(s->vocabulary, s->channels));
    }
    case_output(&c, TRD_F32, TRD__SHAPE(s->batch, s->length)); /* log-sum-exps */
    case_run(&c, kernel_named(trd__cpu_token_logprobs, op, "blocks"), trd__cpu_detect(), 2, c.outputs);
    memcpy(values, c.outputs[0].data, tensor_bytes(&c.outputs[0]));
    case_free(&c);
}

static void same_bits(void **state)
{
    (void)state;
    static const sizes all[] = {{1, 40, 32, 96}, {1, 9, 24, 50}, {1, 290, 64, 1500}, {2, 7, 8, 8}};
    float all_on[290], some_on[290], merged[290];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        logprobs(&trd__op_token_logprobs, &all[i], MASK_NULL, all_on);
        logprobs(&trd__op_token_logprobs, &all[i], MASK_SOME, some_on);
        logprobs(&trd__op_token_logprobs_grad, &all[i], MASK_SOME, merged);
        for (int64_t r = 0; r < all[i].batch * all[i].length; r++) {
            assert_memory_equal(&some_on[r], &merged[r], sizeof(float));
            if (r % 5 != 1) assert_memory_equal(&some_on[r], &all_on[r], sizeof(float));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_form), cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests_name("backend/kernels_token_logprobs", tests, NULL, NULL);
}
