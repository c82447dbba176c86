/* Hand-broken GGUF files: each gets its own message, and none is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "formats/gguf.h"
#include "support/scratch.h"

typedef struct image {
    unsigned char data[4096];
    size_t bytes;
} image;

static void put(image *f, const void *data, size_t bytes)
{
    memcpy(f->data + f->bytes, data, bytes);
    f->bytes += bytes;
}

static void put_u32(image *f, uint32_t value)
{
    put(f, &value, 4);
}
static void put_u64(image *f, uint64_t value)
{
    put(f, &value, 8);
}

static void put_string(image *f, const char *text)
{
    put_u64(f, strlen(text));
    put(f, text, strlen(text));
}

static void head(image *f, uint32_t version, uint64_t tensors, uint64_t values)
{
    f->bytes = 0;
    put(f, "GGUF", 4);
    put_u32(f, version);
    put_u64(f, tensors);
    put_u64(f, values);
}

static void describe(image *f, const char *name, uint64_t columns, uint64_t rows, uint32_t type,
                     uint64_t offset)
{
    put_string(f, name);
    put_u32(f, 2);
    put_u64(f, columns);
    put_u64(f, rows);
    put_u32(f, type);
    put_u64(f, offset);
}

static void pad(image *f, size_t data)
{
    while (f->bytes % 32) put(f, "", 1);
    memset(f->data + f->bytes, 0, data);
    f->bytes += data;
}

static const char *folder;

static void expect_refused(const image *f, trd_status status, const char *message)
{
    trd__gguf *file;
    const char *path = scratch_path(folder, "broken.gguf");
    scratch_write(path, f->data, f->bytes);
    trd_status found = trd__gguf_open(path, &file);
    assert_null(file);
    if (found != status)
        fail_msg("expected status %d, found %d: %s", (int)status, (int)found, trd_error_message());
    expect_message("broken.gguf");
    expect_message(message);
}

static void two_tensors(image *f, uint64_t second_offset, size_t data)
{
    head(f, 3, 2, 0);
    describe(f, "a", 4, 4, 0, 0);
    describe(f, "b", 32, 2, 2, second_offset);
    pad(f, data);
}

static void tensors(void **state)
{
    folder = *state;
    image f;
    trd__gguf *file;
    two_tensors(&f, 64, 64 + 36);
    scratch_write(scratch_path(folder, "good.gguf"), f.data, f.bytes);
    if (trd__gguf_open(scratch_path(folder, "good.gguf"), &file)) fail_msg("%s", trd_error_message());
    assert_int_equal(trd__gguf_find_tensor(file, "b")->bytes, 36);
    trd__gguf_close(file);

    f.bytes--;
    expect_refused(&f, TRD_CORRUPT, "tensor b ends beyond");
    two_tensors(&f, 64, 64 + 36 + 40);
    expect_refused(&f, TRD_CORRUPT, "40 trailing bytes");
    two_tensors(&f, 32, 64 + 36);
    expect_refused(&f, TRD_CORRUPT, "tensors a and b overlap");
    two_tensors(&f, 65, 64 + 64);
    expect_refused(&f, TRD_CORRUPT, "not aligned to 32");
    two_tensors(&f, UINT64_MAX - 31, 64 + 64);
    expect_refused(&f, TRD_CORRUPT, "ends beyond");

    head(&f, 3, 1, 0);
    describe(&f, "a", 31, 1, 2, 0);
    pad(&f, 64);
    expect_refused(&f, TRD_CORRUPT, "does not divide into blocks of Q4_0");
    head(&f, 3, 1, 0);
    describe(&f, "a", UINT64_C(1) << 33, UINT64_C(1) << 33, 0, 0);
    pad(&f, 64);
    expect_refused(&f, TRD_CORRUPT, "does not divide");
    head(&f, 3, 1, 0);
    describe(&f, "a", UINT64_MAX, 1, 0, 0);
    pad(&f, 64);
    expect_refused(&f, TRD_CORRUPT, "longer than 2^63");
    head(&f, 3, 1, 0);
    describe(&f, "a", 256, 1, 13, 0);
    pad(&f, 256);
    expect_refused(&f, TRD_UNSUPPORTED, "tensor a has type Q5_K (13), supported are F32 F16 Q4_0");
    head(&f, 3, 1, 0);
    describe(&f, "a", 256, 1, 4000, 0);
    pad(&f, 256);
    expect_refused(&f, TRD_UNSUPPORTED, "unknown (4000)");
    head(&f, 3, 2, 0);
    describe(&f, "a", 4, 4, 0, 0);
    describe(&f, "a", 4, 4, 0, 64);
    pad(&f, 128);
    expect_refused(&f, TRD_CORRUPT, "tensor a appears twice");
    head(&f, 3, 1, 0);
    put_string(&f, "a");
    put_u32(&f, 9);
    pad(&f, 128);
    expect_refused(&f, TRD_CORRUPT, "at most 8 axes, found 9");
}

static void one_value(image *f, const char *key, uint32_t kind)
{
    head(f, 3, 0, 1);
    put_string(f, key);
    put_u32(f, kind);
}

static void values(void **state)
{
    folder = *state;
    image f;
    one_value(&f, "k", 77);
    pad(&f, 16);
    expect_refused(&f, TRD_CORRUPT,
                   "metadata k: expected numbers, strings or an array of them, found type 77");
    one_value(&f, "k", TRD__GGUF_ARRAY);
    put_u32(&f, TRD__GGUF_ARRAY);
    put_u64(&f, 1);
    expect_refused(&f, TRD_UNSUPPORTED, "metadata k");
    one_value(&f, "k", TRD__GGUF_ARRAY);
    put_u32(&f, TRD__GGUF_F64);
    put_u64(&f, UINT64_MAX / 8 + 2); /* wraps when multiplied without a check */
    pad(&f, 64);
    expect_refused(&f, TRD_CORRUPT, "ends inside its header");
    one_value(&f, "k", TRD__GGUF_ARRAY);
    put_u32(&f, TRD__GGUF_STRING);
    put_u64(&f, UINT64_C(1) << 60);
    pad(&f, 64);
    expect_refused(&f, TRD_CORRUPT, "ends inside its header");
    one_value(&f, "k", TRD__GGUF_STRING);
    put_u64(&f, UINT64_MAX);
    expect_refused(&f, TRD_CORRUPT, "ends inside its header");
    one_value(&f, "", TRD__GGUF_U32);
    put_u32(&f, 1);
    expect_refused(&f, TRD_CORRUPT, "name of 1 to 65535 bytes");
    one_value(&f, "general.alignment", TRD__GGUF_U32);
    put_u32(&f, 24);
    expect_refused(&f, TRD_CORRUPT, "power of two");
    head(&f, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put_string(&f, "k");
        put_u32(&f, TRD__GGUF_U32);
        put_u32(&f, 1);
    }
    expect_refused(&f, TRD_CORRUPT, "metadata k appears twice");
}

static void heads(void **state)
{
    folder = *state;
    image f = {.bytes = 0};
    expect_refused(&f, TRD_CORRUPT, "the file is empty");
    put(&f, "GGU", 3);
    expect_refused(&f, TRD_CORRUPT, "expected the letters GGUF");
    put(&f, "F", 1);
    expect_refused(&f, TRD_CORRUPT, "ends inside its header");
    head(&f, 1, 0, 0);
    expect_refused(&f, TRD_UNSUPPORTED, "expected GGUF version 2 or 3, found 1");
    head(&f, 0x03000000, 0, 0);
    expect_refused(&f, TRD_UNSUPPORTED, "big-endian");
    head(&f, 3, UINT64_MAX, 0);
    expect_refused(&f, TRD_CORRUPT, "cannot fit into a file of 24 bytes");
    head(&f, 3, 0, 2);
    pad(&f, 0);
    expect_refused(&f, TRD_CORRUPT, "cannot fit");
    f.bytes = 0;
    put(&f, "version https://git-lfs.github.com/spec/v1\n", 43);
    expect_refused(&f, TRD_CORRUPT, "Git LFS pointer");
    f.bytes = 0;
    put(&f, "<!DOCTYPE html>", 15);
    expect_refused(&f, TRD_CORRUPT, "HTML page");
}

/* A real file cut anywhere is refused (but for the padding after the last tensor). */
static void every_truncation(void **state)
{
    folder = *state;
    size_t bytes;
    unsigned char *whole = scratch_read("formats/data/blocks.gguf", &bytes);
    const char *path = scratch_path(folder, "cut.gguf");
    for (size_t cut = 0; cut + 32 < bytes; cut += cut < 1200 ? 11 : 397) {
        trd__gguf *file;
        scratch_write(path, whole, cut);
        if (trd__gguf_open(path, &file) != TRD_CORRUPT) fail_msg("opened when cut to %zu bytes", cut);
    }
    free(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tensors), cmocka_unit_test(values),
                                       cmocka_unit_test(heads), cmocka_unit_test(every_truncation)};
    return cmocka_run_group_tests_name("corrupt/gguf", tests, scratch_create, scratch_remove);
}
