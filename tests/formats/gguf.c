/* GGUF: a file written by the Python package gguf (data/make_blocks.py) reads back, and every tensor type
 * dequantizes to the bits that package gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/shape.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "support/scratch.h"

static trd__gguf *open_blocks(void)
{
    trd__gguf *file;
    if (trd__gguf_open("formats/data/blocks.gguf", &file)) fail_msg("%s", trd_error_message());
    return file;
}

static void metadata(void **state)
{
    (void)state;
    trd__gguf *file = open_blocks();
    int64_t number = 0;
    double real = 0;
    bool flag = false;
    trd__gguf_string text;
    const trd__gguf_string *strings;
    size_t count;
    assert_int_equal(trd__gguf_get_i64(file, "test.u32", &number), TRD_OK);
    assert_true(number == 4000000000);
    assert_int_equal(trd__gguf_get_i64(file, "test.i32", &number), TRD_OK);
    assert_true(number == -7);
    assert_int_equal(trd__gguf_get_i64(file, "test.u64", &number), TRD_CORRUPT);
    expect_message("test.u64: expected an integer below 2^63");
    assert_int_equal(trd__gguf_opt_f64(file, "test.f32", &real), TRD_OK);
    assert_true(real == 0.5);
    assert_int_equal(trd__gguf_opt_f64(file, "test.i32", &real), TRD_OK);
    assert_true(real == -7);
    assert_int_equal(trd__gguf_opt_bool(file, "test.bool", &flag), TRD_OK);
    assert_true(flag);
    assert_int_equal(trd__gguf_get_string(file, "test.string", &text), TRD_OK);
    assert_int_equal(text.bytes, 7);
    assert_memory_equal(text.text,
                        "gr\xc3\xb6\xc3\x9f"
                        "e",
                        7);
    assert_int_equal(trd__gguf_get_strings(file, "test.strings", &strings, &count), TRD_OK);
    assert_int_equal(count, 3);
    assert_int_equal(strings[1].bytes, 0);
    assert_memory_equal(strings[2].text, "\xe4\xb8\x96", 3);
    const trd__gguf_value *numbers = trd__gguf_find(file, "test.numbers");
    assert_non_null(numbers);
    assert_int_equal(numbers->count, 3);
    assert_true(trd__gguf_number(numbers, 1) == -1);

    assert_int_equal(trd__gguf_opt_i64(file, "none", &number), TRD_OK);
    assert_true(number == -7);
    assert_int_equal(trd__gguf_get_i64(file, "none", &number), TRD_CORRUPT);
    expect_message("metadata none: expected an integer, found no such key");
    assert_int_equal(trd__gguf_opt_i64(file, "test.string", &number), TRD_CORRUPT);
    expect_message("found a string");
    trd__gguf_close(file);
}

static void every_type_dequantizes(void **state)
{
    (void)state;
    trd__gguf *file = open_blocks();
    trd__safetensors *expected;
    if (trd__safetensors_open("formats/data/blocks.safetensors", &expected))
        fail_msg("%s", trd_error_message());
    assert_int_equal(trd__gguf_tensor_count(file), TRD__GGUF_TYPE_COUNT);
    assert_int_equal(trd__safetensors_count(expected), TRD__GGUF_TYPE_COUNT);
    for (size_t i = 0; i < trd__gguf_tensor_count(file); i++) {
        const trd__gguf_tensor *tensor = trd__gguf_tensor_at(file, i);
        const trd__safetensor *wanted = trd__safetensors_find(expected, tensor->name);
        assert_non_null(wanted);
        assert_string_equal(trd__gguf_type_name(tensor->type), tensor->name);
        assert_true(trd__shape_equal(&tensor->shape, &wanted->shape));
        float *values = malloc(wanted->bytes);
        assert_non_null(values);
        trd__gguf_dequantize(tensor->type, tensor->data, values,
                             tensor->bytes / trd__gguf_block_bytes(tensor->type));
        if (memcmp(values, wanted->data, wanted->bytes) != 0) fail_msg("%s differs", tensor->name);
        free(values);
    }
    assert_non_null(trd__gguf_find_tensor(file, "Q4_K"));
    assert_null(trd__gguf_find_tensor(file, "Q4_"));
    trd__safetensors_close(expected);
    trd__gguf_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(metadata), cmocka_unit_test(every_type_dequantizes)};
    return cmocka_run_group_tests_name("formats/gguf", tests, NULL, NULL);
}
