/* Hand-broken safetensors files: each gets its own message, and none is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "formats/safetensors.h"
#include "support/scratch.h"

#define F32_2(name, begin, end)                                                                              \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" #begin "," #end "]}"

/* Header text and the number of data bytes behind it. */
static const struct {
    const char *header;
    size_t data_bytes;
    trd_status status;
    const char *message;
} headers[] = {
    {"{" F32_2("a", 0, 8) "}", 7, TRD_CORRUPT,
     "tensor a ends at byte 8 of the data, but the file holds only 7"},
    {"{" F32_2("a", 0, 8) "}", 9, TRD_CORRUPT, "1 trailing bytes"},
    {"{" F32_2("a", 0, 8) "," F32_2("b", 4, 12) "}", 12, TRD_CORRUPT, "tensors a and b overlap"},
    {"{" F32_2("a", 0, 8) "," F32_2("b", 0, 8) "}", 8, TRD_CORRUPT, "overlap"},
    {"{" F32_2("a", 0, 8) "," F32_2("b", 12, 20) "}", 20, TRD_CORRUPT, "4 bytes before tensor b"},
    {"{" F32_2("a", 4, 12) "}", 12, TRD_CORRUPT, "4 bytes before tensor a"},
    {"{" F32_2("a", 0, 4) "}", 4, TRD_CORRUPT, "shape (2) of F32 needs 8 bytes, data_offsets give 4"},
    {"{" F32_2("a", 8, 0) "}", 8, TRD_CORRUPT, "begin <= end"},
    {"{" F32_2("a", -8, 0) "}", 8, TRD_CORRUPT, "begin <= end"},
    {"{" F32_2("a", 0, 1e300) "}", 8, TRD_CORRUPT, "whole number within 2^53"},
    {"{" F32_2("a", 0, 8) "," F32_2("a", 0, 8) "}", 8, TRD_CORRUPT, "expected each key once"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8, TRD_CORRUPT,
     "overflows"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, TRD_CORRUPT,
     "a.shape[0]: expected a size"},
    {"{\"a\":{\"dtype\":\"Q9\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, TRD_UNSUPPORTED, "dtype \"Q9\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,8],\"data_offsets\":[0,8]}}", 8, TRD_UNSUPPORTED,
     "at most 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, TRD_CORRUPT, "under the key \"shape\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, TRD_CORRUPT, "found 1 values"},
    {"{\"a\":7}", 0, TRD_CORRUPT, "a: expected an object, found a number"},
    {"{\"__metadata__\":{\"x\":1}}", 0, TRD_CORRUPT, "__metadata__.x: expected a string"},
    {"{\"a\":", 0, TRD_CORRUPT, "truncated?"},
    {"[1]", 0, TRD_CORRUPT, "expected a JSON object as header"},
};

static void broken_headers(void **state)
{
    char data[1024];
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        uint64_t length = strlen(headers[i].header);
        memset(data, 0, sizeof data);
        memcpy(data, &length, 8);
        memcpy(data + 8, headers[i].header, length);
        const char *path = scratch_path(*state, "broken.safetensors");
        scratch_write(path, data, 8 + length + headers[i].data_bytes);
        trd__safetensors *file;
        trd_status status = trd__safetensors_open(path, &file);
        if (status != headers[i].status)
            fail_msg("case %zu: status %d, %s", i, (int)status, trd_error_message());
        assert_null(file);
        expect_message("broken.safetensors");
        expect_message(headers[i].message);
    }
}

static void mistaken_files(void **state)
{
    static const struct {
        const char *data;
        size_t bytes;
        const char *message;
    } cases[] = {
        {"", 0, "the file is empty"},
        {"abc", 3, "a file of 3 bytes"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", 64, "Git LFS pointer"},
        {"<!DOCTYPE html><html><body>404</body></html>", 44, "HTML page"},
        {"\n\n  <HTML lang=en>", 18, "HTML page"},
        {"PK\x03\x04\0\0\x08\x08\0\0\0\0archive/data.pkl", 28, "can run code"},
        {"\x80\x02\x8a\nl\xfc\x9c\x46\xf9\x20\x6a\xa8", 12, "Python pickle"},
        {"GGUF\x03\0\0\0\0\0\0\0", 12, "GGUF file"},
        {"\x1f\x8b\x08\0\0\0\0\0\0\0", 10, "gzip"},
        {"\x01\xe1\xf5\x05\0\0\0\0{}", 10, "more than the 100 MB"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "more than the 100 MB"},
        {"\x40\0\0\0\0\0\0\0{\"a\":", 13, "longer than the file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = scratch_path(*state, "mistake.safetensors");
        scratch_write(path, cases[i].data, cases[i].bytes);
        trd__safetensors *file;
        assert_int_equal(trd__safetensors_open(path, &file), TRD_CORRUPT);
        expect_message(cases[i].message);
    }
    trd__safetensors *file;
    assert_int_equal(trd__safetensors_open(scratch_path(*state, "none"), &file), TRD_NOT_FOUND);
    assert_int_equal(trd__safetensors_open(*state, &file), TRD_IO);
}

/* A header whose length begins like a pickle's first bytes is still a header. */
static void lengths_that_look_like_a_mistake(void **state)
{
    static const uint64_t lengths[] = {0x0280, 0x8b1f};
    static char data[8 + 0x8b1f];
    for (int i = 0; i < 2; i++) {
        memset(data, ' ', sizeof data);
        memcpy(data, &lengths[i], 8);
        memcpy(data + 8, "{}", 2);
        const char *path = scratch_path(*state, "odd.safetensors");
        scratch_write(path, data, 8 + lengths[i]);
        trd__safetensors *file;
        if (trd__safetensors_open(path, &file)) fail_msg("%s", trd_error_message());
        trd__safetensors_close(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(broken_headers), cmocka_unit_test(mistaken_files),
                                       cmocka_unit_test(lengths_that_look_like_a_mistake)};
    return cmocka_run_group_tests_name("corrupt/safetensors", tests, scratch_create, scratch_remove);
}
