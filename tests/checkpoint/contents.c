/* What a path holds, through the public header: weights files, folders, one checkpoint, a folder of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <treadle/checkpoint.h>

#include "base/file.h"
#include "checkpoint/store.h"
#include "support/scratch.h"

static void weights_file(void **state)
{
    (void)state;
    trd_contents *contents;
    const char *key, *value;
    if (trd_contents_open("checkpoint/data/llama.gguf", &contents)) fail_msg("%s", trd_error_message());
    assert_string_equal(trd_contents_kind(contents), "gguf");
    assert_int_equal(trd_contents_tensor_count(contents), 11);
    trd_contents_tensor tensor = trd_contents_tensor_at(contents, 8);
    assert_string_equal(tensor.name, "model.layers.0.self_attn.q_proj.weight");
    assert_string_equal(tensor.type, "Q8_0");
    assert_int_equal(tensor.bytes, 32 * 34);
    assert_int_equal(tensor.shape.dim[1], 32);
    trd_contents_metadata_at(contents, 0, &key, &value);
    assert_string_equal(key, "general.architecture");
    trd_contents_close(contents);
}

static void checkpoints(void **state)
{
    static const float values[6] = {0};
    static const char json[] = "{\"step\": 2, \"metadata\": \"mine\", \"history\": [1, 2, 3]}";
    trd_array array = {"w", TRD_F32, {2, {2, 3}}, values};
    const char *run = scratch_path(*state, "run"), *folder = scratch_path(run, "checkpoints"), *key, *value;
    trd__store *store;
    trd_contents *contents;
    assert_int_equal(trd__store_open(folder, NULL, &store), TRD_OK);
    for (int64_t step = 1; step <= 2; step++)
        assert_int_equal(
            trd__store_save(store, (trd__store_name){step, 0}, &array, 1, json, sizeof json - 1, NULL),
            TRD_OK);
    trd__store_close(store);
    if (trd_contents_open(folder, &contents)) fail_msg("%s", trd_error_message());
    assert_string_equal(trd_contents_kind(contents), "checkpoint");
    assert_non_null(strstr(trd_contents_path(contents), "step-2"));
    assert_int_equal(trd_contents_tensor_count(contents), 1);
    assert_int_equal(trd_contents_tensor_at(contents, 0).bytes, 24);
    assert_string_equal(trd_contents_tensor_at(contents, 0).type, "float32");
    assert_int_equal(trd_contents_metadata_count(contents), 3);
    trd_contents_metadata_at(contents, 0, &key, &value);
    assert_string_equal(key, "step");
    assert_string_equal(value, "2");
    trd_contents_metadata_at(contents, 1, &key, &value);
    assert_string_equal(value, "mine");
    trd_contents_metadata_at(contents, 2, &key, &value);
    assert_string_equal(value, "3 entries");
    trd_contents_close(contents);
    if (trd_contents_open(run, &contents)) fail_msg("%s", trd_error_message()); /* the run's newest */
    assert_non_null(strstr(trd_contents_path(contents), "step-2"));
    trd_contents_close(contents);
    if (trd_contents_open(scratch_path(folder, "step-1"), &contents)) fail_msg("%s", trd_error_message());
    trd_contents_close(contents);
    assert_int_equal(trd_contents_open(scratch_path(folder, "step-3"), &contents), TRD_NOT_FOUND);
    assert_null(contents);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_file), cmocka_unit_test(checkpoints)};
    return cmocka_run_group_tests_name("checkpoint/contents", tests, scratch_create, scratch_remove);
}
