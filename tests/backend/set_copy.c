/* Large arrays are copied in and out of a set by several threads: every byte arrives, whole and in part. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "support/program.h"

enum { BYTES = (1 << 23) + 4321, OFFSET = 77 };

static void every_byte_arrives(void **state)
{
    (void)state;
    uint8_t *written = trd__alloc(BYTES, 1), *found = trd__alloc(BYTES, 1);
    assert_true(written && found);
    for (int i = 0; i < BYTES; i++) written[i] = (uint8_t)((uint32_t)i * 2654435761U >> 13);
    for (int threads = 1; threads <= 5; threads++) {
        trd__backend *backend = test_backend(threads);
        const trd__entry entries[] = {test_entry("small", TRD_U8, TRD__SHAPE(3)),
                                      test_entry("large", TRD_U8, TRD__SHAPE(BYTES)),
                                      test_entry("behind", TRD_U8, TRD__SHAPE(3))};
        trd__set *set;
        assert_int_equal(backend->table->set_create(backend, "state", entries, 3, &set), TRD_OK);
        assert_int_equal(backend->table->set_write(backend, set, 2, "abc"), TRD_OK);
        assert_int_equal(backend->table->set_write(backend, set, 1, written), TRD_OK);
        memset(found, 0, BYTES);
        assert_int_equal(backend->table->set_read(backend, set, 1, found), TRD_OK);
        assert_memory_equal(found, written, BYTES);
        memset(found, 0, BYTES);
        assert_int_equal(backend->table->set_read_part(backend, set, 1, OFFSET, BYTES - 2 * OFFSET, found),
                         TRD_OK);
        assert_memory_equal(found, written + OFFSET, BYTES - 2 * OFFSET);
        assert_int_equal(found[BYTES - 2 * OFFSET], 0);
        assert_int_equal(backend->table->set_read(backend, set, 2, found), TRD_OK);
        assert_memory_equal(found, "abc", 3);
        backend->table->set_free(backend, set);
        trd__backend_free(backend);
    }
    trd__free(found);
    trd__free(written);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte_arrives)};
    return cmocka_run_group_tests_name("backend/set_copy", tests, NULL, NULL);
}
