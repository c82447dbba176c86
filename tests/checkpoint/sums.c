/* Checksums by several threads: each item has its own, few bytes or many, and the task that runs beside does
 * so on the calling thread, whose status and message are those of the call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/status.h>

#include "base/checksum.h"
#include "checkpoint/sums.h"

enum { ITEMS = 40, STRIDE = 1 << 16 };

/* Items of 0, 1, 2, ... units; largest last, which is not the order they are handed out in. */
static void check(size_t unit)
{
    unsigned char *data = malloc((size_t)ITEMS * STRIDE);
    trd__summed items[ITEMS];
    assert_non_null(data);
    for (size_t i = 0; i < (size_t)ITEMS * STRIDE; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t i = 0; i < ITEMS; i++) items[i] = (trd__summed){data + i, i * unit, 0};
    assert_int_equal(trd__sums(items, ITEMS, NULL, NULL), TRD_OK);
    for (size_t i = 0; i < ITEMS; i++) {
        assert_ptr_equal(items[i].data, data + i);
        assert_true(items[i].sum == trd__checksum(data + i, i * unit));
    }
    free(data);
}

static void each_item_has_its_own(void **state)
{
    (void)state;
    check(1);          /* no threads are worth it */
    check(STRIDE - 1); /* threads are */
    assert_int_equal(trd__sums(NULL, 0, NULL, NULL), TRD_OK);
}

static trd_status refuse(void *context)
{
    (*(int *)context)++;
    return trd__fail(TRD_IO, "no room");
}

static void a_failed_task_is_told(void **state)
{
    (void)state;
    size_t bytes = (size_t)1 << 23;
    unsigned char *data = calloc(bytes, 1);
    trd__summed item = {data, bytes, 0};
    int runs = 0;
    assert_non_null(data);
    assert_int_equal(trd__sums(&item, 1, refuse, &runs), TRD_IO);
    assert_int_equal(runs, 1);
    assert_string_equal(trd_error_message(), "no room");
    assert_true(item.sum == trd__checksum(data, bytes));
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_item_has_its_own),
                                       cmocka_unit_test(a_failed_task_is_told)};
    return cmocka_run_group_tests_name("checkpoint/sums", tests, NULL, NULL);
}
