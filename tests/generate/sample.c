/* Choosing a token: greedy ties, the limits of top-k and top-p, distributions, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "generate/sample.h"
#include "support/scratch.h"

enum { VOCAB = 12, DRAWS = 20000 };

static const float logits[VOCAB] = {0, 1, 2, 3, -1, 3, 2.5f, -30, 1.5f, 0.5f, -2, 2};

static int32_t sample(const trd_sampling *s, const float *row, uint64_t at)
{
    _Alignas(16) unsigned char scratch[VOCAB * TRD__CANDIDATE_BYTES];
    int32_t token = -1;
    assert_int_equal(trd__sample(s, row, VOCAB, 3, at, scratch, &token), TRD_OK);
    assert_in_range(token, 0, VOCAB - 1);
    return token;
}

/* Shares of the tokens over many draws. */
static void count(const trd_sampling *s, double *shares)
{
    for (int i = 0; i < VOCAB; i++) shares[i] = 0;
    for (uint64_t t = 0; t < DRAWS; t++) shares[sample(s, logits, t)] += 1.0 / DRAWS;
}

/* Shares must be softmax(logits / temperature) over `allowed` tokens, to five standard deviations. */
static void expect_softmax(const trd_sampling *s, const bool *allowed)
{
    double shares[VOCAB], total = 0;
    count(s, shares);
    for (int i = 0; i < VOCAB; i++) total += allowed[i] ? exp((double)logits[i] / s->temperature) : 0;
    for (int i = 0; i < VOCAB; i++) {
        double p = allowed[i] ? exp((double)logits[i] / s->temperature) / total : 0;
        if (fabs(shares[i] - p) > 5 * sqrt(p * (1 - p) / DRAWS) + 1e-9)
            fail_msg("token %d: expected a share of %g, found %g", i, p, shares[i]);
    }
}

static void greedy(void **state)
{
    (void)state;
    trd_sampling s = {.top_p = 1};
    assert_int_equal(sample(&s, logits, 0), 3); /* 5 is as likely: the lower id */
    s = (trd_sampling){.temperature = 2, .top_k = 1, .top_p = 1};
    for (uint64_t t = 0; t < 50; t++) assert_int_equal(sample(&s, logits, t), 3);
    s = (trd_sampling){.temperature = 2, .top_p = 1e-9};
    for (uint64_t t = 0; t < 50; t++) assert_int_equal(sample(&s, logits, t), 3);
}

static void whole_distribution(void **state)
{
    (void)state;
    bool all[VOCAB];
    memset(all, true, sizeof all);
    expect_softmax(&(trd_sampling){.temperature = 1, .top_p = 1, .seed = 1}, all);
    expect_softmax(&(trd_sampling){.temperature = 0.5, .top_p = 1, .seed = 2}, all);
    expect_softmax(&(trd_sampling){.temperature = 3, .top_k = VOCAB, .top_p = 1, .seed = 3}, all);
    expect_softmax(&(trd_sampling){.temperature = 3, .top_k = 1000, .top_p = 1, .seed = 4}, all);
}

static void top_k(void **state)
{
    (void)state;
    /* By likelihood: 3 5 6 2 11 8 ...; 2 and 11 are equal, so the fourth place is 2's. */
    bool allowed[VOCAB] = {[3] = true, [5] = true, [6] = true, [2] = true};
    expect_softmax(&(trd_sampling){.temperature = 1, .top_k = 4, .top_p = 1, .seed = 5}, allowed);
    allowed[11] = true;
    expect_softmax(&(trd_sampling){.temperature = 2, .top_k = 5, .top_p = 1, .seed = 6}, allowed);
}

static void top_p(void **state)
{
    (void)state;
    double total = 0;
    for (int i = 0; i < VOCAB; i++) total += exp((double)logits[i]);
    double two = 2 * exp(3) / total, three = two + exp(2.5) / total;
    bool allowed[VOCAB] = {[3] = true, [5] = true};
    expect_softmax(&(trd_sampling){.temperature = 1, .top_p = two - 0.01, .seed = 7}, allowed);
    allowed[6] = true; /* just more than two reach: the third is needed */
    expect_softmax(&(trd_sampling){.temperature = 1, .top_p = two + 0.01, .seed = 8}, allowed);
    expect_softmax(&(trd_sampling){.temperature = 1, .top_p = three - 0.01, .seed = 9}, allowed);
    /* After top-k: shares are those among the k. */
    expect_softmax(&(trd_sampling){.temperature = 1, .top_k = 3, .top_p = 0.999, .seed = 10}, allowed);
}

/* A draw depends on seed, prompt and place. */
static void reproducible(void **state)
{
    (void)state;
    _Alignas(16) unsigned char scratch[VOCAB * TRD__CANDIDATE_BYTES];
    trd_sampling s = {.temperature = 2, .top_p = 1, .seed = 1}, other = s;
    int same_seed = 0, same_stream = 0;
    other.seed = 2;
    for (uint64_t t = 0; t < 1000; t++) {
        int32_t token, again, elsewhere, next;
        assert_int_equal(trd__sample(&s, logits, VOCAB, 0, t, scratch, &token), TRD_OK);
        assert_int_equal(trd__sample(&s, logits, VOCAB, 0, t, scratch, &again), TRD_OK);
        assert_int_equal(trd__sample(&other, logits, VOCAB, 0, t, scratch, &elsewhere), TRD_OK);
        assert_int_equal(trd__sample(&s, logits, VOCAB, 1, t, scratch, &next), TRD_OK);
        assert_int_equal(token, again);
        same_seed += token == elsewhere;
        same_stream += token == next;
    }
    assert_in_range(same_seed, 50, 500);
    assert_in_range(same_stream, 50, 500);
}

static void extreme_logits(void **state)
{
    (void)state;
    float row[VOCAB];
    for (int i = 0; i < VOCAB; i++) row[i] = -INFINITY;
    row[8] = -3e38f;
    const trd_sampling s = {.temperature = 0.7, .top_k = 5, .top_p = 0.9, .seed = 4};
    const trd_sampling hot = {.temperature = 1e-6, .top_p = 1, .seed = 4};
    for (uint64_t t = 0; t < 100; t++) {
        assert_int_equal(sample(&s, row, t), 8);
        int32_t token = sample(&hot, logits, t);
        assert_true(token == 3 || token == 5);
    }
}

static void refusals(void **state)
{
    (void)state;
    _Alignas(16) unsigned char scratch[VOCAB * TRD__CANDIDATE_BYTES];
    const trd_sampling bad[] = {{.temperature = -1, .top_p = 1},
                                {.temperature = (double)NAN, .top_p = 1},
                                {.top_k = -1, .top_p = 1},
                                {.top_p = 0},
                                {.top_p = 1.5},
                                {.top_p = (double)NAN}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(trd__sampling_check(&bad[i]), TRD_INVALID_ARGUMENT);
    expect_message("top_p");
    const float values[] = {NAN, INFINITY};
    for (size_t i = 0; i < 2; i++) {
        float row[VOCAB];
        int32_t token;
        memcpy(row, logits, sizeof row);
        row[i * 4] = values[i];
        const trd_sampling s = {.top_p = 1};
        assert_int_equal(trd__sample(&s, row, VOCAB, 0, 0, scratch, &token), TRD_INTERNAL);
        expect_message(i ? "an infinity" : "NaN");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy),       cmocka_unit_test(whole_distribution),
                                       cmocka_unit_test(top_k),        cmocka_unit_test(top_p),
                                       cmocka_unit_test(reproducible), cmocka_unit_test(extreme_logits),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests_name("generate/sample", tests, NULL, NULL);
}
