/* The pool runs every worker once per run and partitions cover everything once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/pool.h"

static void count(void *context, int worker, int workers)
{
    int64_t begin, end;
    trd__partition(worker, workers, 1003, 16, &begin, &end);
    for (int64_t i = begin; i < end; i++) ((int *)context)[i]++;
}

static void every_item_once(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 4; workers++) {
        trd__pool *pool;
        int items[1003] = {0};
        assert_int_equal(trd__pool_create(workers, &pool), TRD_OK);
        for (int run = 0; run < 200; run++) trd__pool_run(pool, count, items);
        for (int i = 0; i < 1003; i++) assert_int_equal(items[i], 200);
        trd__pool_free(pool);
    }
}

static void bad_count(void **state)
{
    (void)state;
    trd__pool *pool;
    assert_int_equal(trd__pool_create(0, &pool), TRD_INVALID_ARGUMENT);
    assert_null(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_item_once), cmocka_unit_test(bad_count)};
    return cmocka_run_group_tests_name("base/pool", tests, NULL, NULL);
}
