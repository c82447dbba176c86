/* Arenas and checked allocation: zeroed, aligned, stable, and sizes that overflow are refused with a message.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "support/scratch.h"

static void blocks_keep_their_bytes(void **state)
{
    (void)state;
    enum { BLOCKS = 500 };
    trd__arena *arena = trd__arena_create();
    unsigned char *blocks[BLOCKS];
    assert_non_null(arena);
    for (size_t i = 0; i < BLOCKS; i++) { /* sizes that cross chunks, and some larger than any chunk */
        size_t bytes = i % 100 == 99 ? (size_t)3 << 20 : i * 37 % 4096;
        blocks[i] = trd__arena_alloc(arena, bytes, 1);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t k = 0; k < bytes; k++) assert_int_equal(blocks[i][k], 0);
        memset(blocks[i], (int)(i % 251), bytes);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        size_t bytes = i % 100 == 99 ? (size_t)3 << 20 : i * 37 % 4096;
        for (size_t k = 0; k < bytes; k += 61) assert_int_equal(blocks[i][k], i % 251);
    }
    trd__arena_free(arena);
    trd__arena_free(NULL);
}

static void texts(void **state)
{
    (void)state;
    trd__arena *arena = trd__arena_create();
    assert_string_equal(trd__arena_strdup(arena, "text"), "text");
    assert_string_equal(trd__arena_strndup(arena, "text", 2), "te");
    assert_string_equal(trd__arena_format(arena, "%d-%s", 5, "x"), "5-x");
    assert_string_equal(trd__arena_format(arena, "%s", ""), "");
    trd__arena_free(arena);
    char *copy = trd__strdup("copy"), *made = trd__format("%03d", 7);
    assert_string_equal(copy, "copy");
    assert_string_equal(made, "007");
    trd__free(copy);
    trd__free(made);
}

static void sizes_that_overflow(void **state)
{
    (void)state;
    trd__arena *arena = trd__arena_create();
    assert_null(trd__arena_alloc(arena, SIZE_MAX, 2));
    expect_message("overflows");
    assert_null(trd__arena_alloc(arena, SIZE_MAX - 8, 1));
    assert_non_null(trd__arena_alloc(arena, 8, 1)); /* usable afterwards */
    trd__arena_free(arena);
    assert_null(trd__alloc(SIZE_MAX / 2 + 1, 2));
    expect_message("overflows");
    assert_null(trd__calloc(SIZE_MAX, SIZE_MAX));
    assert_null(trd__realloc(NULL, SIZE_MAX, 3));
    assert_null(trd__alloc_aligned(SIZE_MAX));
    expect_message("allocating");
}

static void kinds_of_blocks(void **state)
{
    (void)state;
    void *none = trd__alloc(0, 8); /* a size of 0 is a block, not a failure */
    assert_non_null(none);
    trd__free(none);
    for (size_t bytes = 0; bytes < 300; bytes += 13) {
        void *aligned = trd__alloc_aligned(bytes);
        assert_int_equal((uintptr_t)aligned % TRD__ALIGNMENT, 0);
        trd__free(aligned);
    }
    unsigned char *grown = trd__calloc(4, 1);
    memcpy(grown, "abc", 4);
    grown = trd__realloc(grown, 5000, 1);
    assert_memory_equal(grown, "abc", 4);
    trd__free(grown);
    unsigned char *map = trd__map(1 << 20);
    assert_non_null(map);
    assert_int_equal(map[0] + map[(1 << 20) - 1], 0);
    trd__unmap(map, 1 << 20);
    trd__unmap(NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_keep_their_bytes),
        cmocka_unit_test(texts),
        cmocka_unit_test(sizes_that_overflow),
        cmocka_unit_test(kinds_of_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
