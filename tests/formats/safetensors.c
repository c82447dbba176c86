/* Safetensors: a written file reads back, whatever the dtypes; a writer that stops early leaves no file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/checksum.h"
#include "base/file.h"
#include "base/shape.h"
#include "formats/safetensors.h"
#include "support/scratch.h"

static const float numbers[6] = {1, -2, 0.5f, 3e30f, -0.0f, 7};
static const uint8_t bytes[3] = {1, 0, 255};
static const int64_t whole[1] = {INT64_MIN};

static void round_trip(void **state)
{
    const char *path = scratch_path(*state, "a.safetensors");
    trd_array arrays[] = {{"z.whole", TRD_I64, TRD__SHAPE(1), whole},
                          {"a \"quoted\"", TRD_F32, TRD__SHAPE(2, 3), numbers},
                          {"scalar", TRD_F32, trd__shape_scalar(), numbers + 5},
                          {"empty", TRD_BF16, TRD__SHAPE(0, 4), NULL},
                          {"bytes", TRD_U8, TRD__SHAPE(3), bytes}};
    const size_t sizes[] = {8, 24, 4, 0, 3};
    trd__pair metadata = {"format", "pt"};
    trd__safetensors_writer *writer;
    assert_int_equal(trd__safetensors_writer_open(path, arrays, 5, &metadata, 1, false, &writer), TRD_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(trd__safetensors_write(writer, arrays[i].data, sizes[i]), TRD_OK);
    uint64_t sum = trd__safetensors_writer_header_checksum(writer);
    assert_int_equal(trd__safetensors_commit(writer), TRD_OK);

    trd__safetensors *file;
    if (trd__safetensors_open(path, &file)) fail_msg("%s", trd_error_message());
    assert_int_equal(trd__safetensors_count(file), 5);
    for (int i = 0; i < 5; i++) {
        const trd__safetensor *tensor = trd__safetensors_find(file, arrays[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, arrays[i].dtype);
        assert_true(trd__shape_equal(&tensor->shape, &arrays[i].shape));
        assert_int_equal(tensor->bytes, sizes[i]);
        if (sizes[i]) assert_memory_equal(tensor->data, arrays[i].data, sizes[i]);
    }
    assert_null(trd__safetensors_find(file, "b"));
    assert_string_equal(trd__safetensors_at(file, 0)->name, "z.whole");
    assert_int_equal((uintptr_t)trd__safetensors_at(file, 0)->data % 64, 0);
    const trd__pair *pairs;
    assert_int_equal(trd__safetensors_metadata(file, &pairs), 1);
    assert_string_equal(pairs[0].value, "pt");
    size_t header_bytes;
    const void *header = trd__safetensors_header(file, &header_bytes);
    assert_int_equal(header_bytes % 64, 0);
    assert_true(trd__checksum(header, header_bytes) == sum);
    trd__safetensors_close(file);
}

static void early_stop_leaves_nothing(void **state)
{
    const char *path = scratch_path(*state, "short.safetensors");
    trd_array array = {"x", TRD_F32, TRD__SHAPE(6), numbers};
    trd__safetensors_writer *writer;
    assert_int_equal(trd__safetensors_writer_open(path, &array, 1, NULL, 0, false, &writer), TRD_OK);
    assert_int_equal(trd__safetensors_write(writer, numbers, 20), TRD_OK);
    assert_int_equal(trd__safetensors_write(writer, numbers, 8), TRD_INTERNAL);
    assert_int_equal(trd__safetensors_commit(writer), TRD_INTERNAL);
    expect_message("expected 24 bytes of data, got 20");
    assert_false(trd__file_exists(path));
    trd_array bad = {"y", TRD_F32, TRD__SHAPE(INT64_MAX, 2), NULL};
    assert_int_equal(trd__safetensors_writer_open(path, &bad, 1, NULL, 0, false, &writer),
                     TRD_INVALID_ARGUMENT);
    assert_null(writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip),
                                       cmocka_unit_test(early_stop_leaves_nothing)};
    return cmocka_run_group_tests_name("formats/safetensors", tests, scratch_create, scratch_remove);
}
