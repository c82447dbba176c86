/* JSONL lines: numbers, blank lines, marks and line ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "formats/jsonl.h"
#include "support/scratch.h"

static void lines(void **state)
{
    static const char text[] = "\xef\xbb\xbf{\"a\":1}\r\n\n \t\r\n{\"b\":2}\nlast";
    static const struct {
        const char *text;
        size_t number, offset;
    } expected[] = {{"{\"a\":1}", 1, 3}, {"{\"b\":2}", 4, 17}, {"last", 5, 25}};
    const char *path = scratch_path(*state, "a.jsonl");
    trd__jsonl file;
    trd__jsonl_line line;
    scratch_write(path, text, sizeof text - 1);
    assert_int_equal(trd__jsonl_open(path, &file), TRD_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(trd__jsonl_next(&file, &line));
        assert_int_equal(line.bytes, strlen(expected[i].text));
        assert_memory_equal(line.text, expected[i].text, line.bytes);
        assert_int_equal(line.number, expected[i].number);
        assert_int_equal(line.offset, expected[i].offset);
    }
    assert_false(trd__jsonl_next(&file, &line));
    trd__jsonl_close(&file);
}

static void odd_files(void **state)
{
    trd__jsonl file;
    trd__jsonl_line line;
    const char *path = scratch_path(*state, "b.jsonl");
    scratch_write(path, "", 0);
    assert_int_equal(trd__jsonl_open(path, &file), TRD_OK);
    assert_false(trd__jsonl_next(&file, &line));
    trd__jsonl_close(&file);
    scratch_write(path, "version https://git-lfs.github.com/spec/v1\n", 43);
    assert_int_equal(trd__jsonl_open(path, &file), TRD_CORRUPT);
    expect_message("Git LFS pointer");
    assert_int_equal(trd__jsonl_open(scratch_path(*state, "none"), &file), TRD_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines), cmocka_unit_test(odd_files)};
    return cmocka_run_group_tests_name("formats/jsonl", tests, scratch_create, scratch_remove);
}
