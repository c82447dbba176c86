/* The parts of a range cover it once, whoever takes the small ones, and begin at multiples of the grain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/deal.h"

enum { MOST = 3000 };

static void parts_cover_the_range(void **state)
{
    (void)state;
    static const int64_t totals[] = {0, 1, 15, 16, 17, 479, 1024, MOST};
    static const int64_t grains[] = {1, 16, 48};
    for (size_t t = 0; t < sizeof totals / sizeof *totals; t++)
        for (size_t g = 0; g < sizeof grains / sizeof *grains; g++)
            for (int workers = 1; workers <= 64; workers += workers < 4 ? 1 : 20)
                for (int small = 0; small <= 8; small += 4) {
                    trd__deal deal = trd__deal_of(totals[t], grains[g], workers, small);
                    int covered[MOST] = {0};
                    for (int part = 0; part < trd__deal_parts(&deal); part++) {
                        int64_t begin, end;
                        trd__deal_part(&deal, part, &begin, &end);
                        assert_true(begin <= end && end <= totals[t]);
                        assert_true(begin == end || begin % grains[g] == 0);
                        for (int64_t i = begin; i < end; i++) covered[i]++;
                    }
                    for (int64_t i = 0; i < totals[t]; i++) assert_int_equal(covered[i], 1);
                }
}

/* Own parts are equal and nearly all; a lone worker has everything. */
static void most_is_a_workers_own(void **state)
{
    (void)state;
    int64_t begin, end;
    trd__deal deal = trd__deal_of(1600, 10, 2, 4);
    for (int part = 0; part < 2; part++) {
        trd__deal_part(&deal, part, &begin, &end);
        assert_int_equal(end - begin, 750);
    }
    deal = trd__deal_of(1600, 10, 1, 4);
    assert_int_equal(trd__deal_parts(&deal), 1);
    trd__deal_part(&deal, 0, &begin, &end);
    assert_int_equal(end - begin, 1600);
}

/* Few units for each of many workers would leave most of the range to the small parts. */
static void few_units_are_equal_parts(void **state)
{
    (void)state;
    trd__deal deal = trd__deal_of(128, 1, 64, 8);
    assert_int_equal(trd__deal_parts(&deal), 64);
    int64_t begin, end;
    trd__deal_part(&deal, 63, &begin, &end);
    assert_int_equal(end - begin, 2);
}

/* After its own part a worker gets each small one that is left, then none. */
static void small_parts_are_given_once(void **state)
{
    (void)state;
    trd__deal deal = trd__deal_of(1600, 10, 2, 4);
    _Atomic int64_t taken = 0;
    trd__cpu_call call = {.workers = 2, .taken = &taken};
    for (int part = 2; part < 6; part++) assert_int_equal(trd__deal_next(&deal, &call), part);
    for (int i = 0; i < 3; i++) assert_int_equal(trd__deal_next(&deal, &call), trd__deal_parts(&deal));
    deal = trd__deal_of(1600, 10, 2, 0);
    taken = 0;
    assert_int_equal(trd__deal_next(&deal, &call), trd__deal_parts(&deal));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_cover_the_range), cmocka_unit_test(most_is_a_workers_own),
        cmocka_unit_test(few_units_are_equal_parts), cmocka_unit_test(small_parts_are_given_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
