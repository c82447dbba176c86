/* The packer: every sample once per epoch, rows never too long, best fit, exact seek, and epochs kept apart.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "data/packer.h"

enum { SAMPLES = 500, ROW = 100 };

static void random_lengths(uint32_t *lengths, uint64_t seed)
{
    for (uint64_t i = 0; i < SAMPLES; i++) lengths[i] = 1 + (uint32_t)trd__rng_below(seed, 0, i, ROW);
}

static trd__packer_options options_of(const uint32_t *lengths, size_t count)
{
    return (trd__packer_options){.lengths = lengths,
                                 .count = count,
                                 .row_length = ROW,
                                 .packing = true,
                                 .window = 64,
                                 .shuffle = true,
                                 .seed = 7,
                                 .epochs = 1};
}

static trd__packer *packer_of(const trd__packer_options *options)
{
    trd__packer *packer;
    assert_int_equal(trd__packer_create(options, &packer), TRD_OK);
    return packer;
}

static void each_sample_once_per_epoch(void **state)
{
    (void)state;
    uint32_t lengths[SAMPLES];
    random_lengths(lengths, 1);
    static const uint32_t windows[] = {1, 2, 64, 100000};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        trd__packer_options options = options_of(lengths, SAMPLES);
        options.window = windows[w];
        options.epochs = 3;
        trd__packer *packer = packer_of(&options);
        int seen[SAMPLES] = {0};
        const uint64_t *row;
        size_t count;
        while (trd__packer_next(packer, &row, &count) == TRD_OK) {
            uint32_t tokens = 0;
            assert_true(count > 0);
            for (size_t i = 0; i < count; i++) {
                tokens += lengths[row[i]];
                seen[row[i]]++;
            }
            assert_true(tokens <= ROW);
        }
        for (int i = 0; i < SAMPLES; i++) assert_int_equal(seen[i], 3);
        trd__packer_free(packer);
    }
}

/* Only the row that ends an epoch holds samples of the next, so between rows counts differ by at most one. */
static void epochs_stay_apart(void **state)
{
    (void)state;
    uint32_t lengths[SAMPLES];
    random_lengths(lengths, 2);
    trd__packer_options options = options_of(lengths, SAMPLES);
    options.window = 100000;
    options.epochs = 0;
    trd__packer *packer = packer_of(&options);
    int seen[SAMPLES] = {0};
    const uint64_t *row;
    size_t count, total = 0;
    int mixed = 0;
    for (int r = 0; r < 1500; r++) {
        assert_int_equal(trd__packer_next(packer, &row, &count), TRD_OK);
        size_t epochs_before = total / SAMPLES;
        for (size_t i = 0; i < count; i++) seen[row[i]]++;
        total += count;
        size_t done = total / SAMPLES; /* whole epochs */
        for (int i = 0; i < SAMPLES; i++) assert_in_range(seen[i], done, done + 1);
        mixed += done > epochs_before && total % SAMPLES != 0;
    }
    assert_true(mixed > 0);
    trd__packer_free(packer);
}

static void takes_the_longest_that_fits(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {60, 30, 40, 35, 5, 100, 40};
    trd__packer_options options = options_of(lengths, 7);
    options.shuffle = false;
    trd__packer *packer = packer_of(&options);
    static const uint64_t expected[][4] = {{0, 2}, {1, 6, 4}, {3}, {5}};
    static const size_t counts[] = {2, 3, 1, 1};
    const uint64_t *row;
    size_t count;
    for (size_t r = 0; r < 4; r++) {
        assert_int_equal(trd__packer_next(packer, &row, &count), TRD_OK);
        assert_int_equal(count, counts[r]);
        assert_true(memcmp(row, expected[r], count * sizeof *row) == 0);
    }
    assert_int_equal(trd__packer_next(packer, &row, &count), TRD_END);
    assert_int_equal(trd__packer_next(packer, &row, &count), TRD_END);
    trd__packer_free(packer);
}

static void seek_is_exact(void **state)
{
    (void)state;
    uint32_t lengths[SAMPLES];
    random_lengths(lengths, 3);
    trd__packer_options options = options_of(lengths, SAMPLES);
    options.epochs = 0;
    trd__packer *straight = packer_of(&options), *seeking = packer_of(&options);
    const uint64_t *a, *b;
    size_t a_count, b_count;
    for (uint64_t r = 0; r < 900; r++) {
        assert_int_equal(trd__packer_next(straight, &a, &a_count), TRD_OK);
        if (r % 37 == 0) assert_int_equal(trd__packer_seek(seeking, r), TRD_OK);
        assert_int_equal(trd__packer_next(seeking, &b, &b_count), TRD_OK);
        assert_int_equal(a_count, b_count);
        assert_true(memcmp(a, b, a_count * sizeof *a) == 0);
    }
    trd__packer_free(seeking);
    trd__packer_free(straight);
}

static void seek_beyond_the_end(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {ROW, ROW, ROW};
    trd__packer_options options = options_of(lengths, 3);
    trd__packer *packer = packer_of(&options);
    const uint64_t *row;
    size_t count;
    assert_int_equal(trd__packer_seek(packer, 3), TRD_OK);
    assert_int_equal(trd__packer_next(packer, &row, &count), TRD_END);
    assert_int_equal(trd__packer_seek(packer, 4), TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "at most 3 rows, found 4"));
    trd__packer_free(packer);
}

static void order_depends_on_seed_and_epoch(void **state)
{
    (void)state;
    static uint32_t lengths[64];
    for (int i = 0; i < 64; i++) lengths[i] = ROW; /* one sample a row: the rows show the order itself */
    trd__packer_options options = options_of(lengths, 64);
    options.epochs = 2;
    uint64_t order[2][128];
    for (uint64_t seed = 0; seed < 2; seed++) {
        options.seed = seed;
        trd__packer *packer = packer_of(&options);
        const uint64_t *row;
        size_t count;
        for (int r = 0; r < 128; r++) {
            assert_int_equal(trd__packer_next(packer, &row, &count), TRD_OK);
            order[seed][r] = row[0];
        }
        trd__packer_free(packer);
    }
    assert_memory_not_equal(order[0], order[1], 64 * sizeof(uint64_t));
    assert_memory_not_equal(order[0], order[0] + 64, 64 * sizeof(uint64_t));
}

static void without_packing_one_sample_a_row(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 3};
    trd__packer_options options = options_of(lengths, 3);
    options.packing = options.shuffle = false;
    trd__packer *packer = packer_of(&options);
    const uint64_t *row;
    size_t count;
    for (uint64_t r = 0; r < 3; r++) {
        assert_int_equal(trd__packer_next(packer, &row, &count), TRD_OK);
        assert_int_equal(count, 1);
        assert_int_equal(row[0], r);
    }
    assert_int_equal(trd__packer_next(packer, &row, &count), TRD_END);
    trd__packer_free(packer);
}

static void rows_per_epoch_and_fill(void **state)
{
    (void)state;
    uint32_t lengths[SAMPLES];
    random_lengths(lengths, 4);
    uint64_t tokens = 0, rows;
    for (int i = 0; i < SAMPLES; i++) tokens += lengths[i];
    trd__packer_options options = options_of(lengths, SAMPLES);
    options.epochs = 0;
    assert_int_equal(trd__packer_rows_per_epoch(&options, &rows), TRD_OK);
    assert_true(rows >= (tokens + ROW - 1) / ROW);
    assert_true((double)tokens > 0.9 * (double)(rows * ROW)); /* uniform lengths pack to well over 90% */
}

static void bad_options(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, ROW + 1};
    trd__packer_options options = options_of(lengths, 2);
    trd__packer *packer;
    assert_int_equal(trd__packer_create(&options, &packer), TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "sample 1 with 101"));
    options.count = 0;
    assert_int_equal(trd__packer_create(&options, &packer), TRD_INVALID_ARGUMENT);
    options = options_of(lengths, 1);
    options.window = 0;
    assert_int_equal(trd__packer_create(&options, &packer), TRD_INVALID_ARGUMENT);
    assert_null(packer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sample_once_per_epoch),
        cmocka_unit_test(epochs_stay_apart),
        cmocka_unit_test(takes_the_longest_that_fits),
        cmocka_unit_test(seek_is_exact),
        cmocka_unit_test(seek_beyond_the_end),
        cmocka_unit_test(order_depends_on_seed_and_epoch),
        cmocka_unit_test(without_packing_one_sample_a_row),
        cmocka_unit_test(rows_per_epoch_and_fill),
        cmocka_unit_test(bad_options),
    };
    return cmocka_run_group_tests_name("data/packer", tests, NULL, NULL);
}
