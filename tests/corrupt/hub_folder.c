/* Folders that are not the model they should be: each mistake has its own message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "checkpoint/weights.h"
#include "support/scratch.h"

static const char *folder;

static void fresh(void **state)
{
    folder = scratch_path(*state, "hub");
    assert_int_equal(trd__remove_tree(folder), TRD_OK);
    assert_int_equal(trd__make_directories(folder), TRD_OK);
}

static void put(const char *name, const char *text)
{
    scratch_write(scratch_path(folder, name), text, strlen(text));
}

/* A safetensors file of the named scalars, separated by spaces. */
static void put_tensor(const char *file, const char *tensors)
{
    char text[512] = {0}, *header = text + 8;
    int used = sprintf(header, "{"), offset = 0;
    for (const char *name = tensors; *name; offset += 4) {
        int length = (int)strcspn(name, " ");
        used += sprintf(header + used, "%s\"%.*s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[%d,%d]}",
                        offset ? "," : "", length, name, offset, offset + 4);
        name += length + (name[length] == ' ');
    }
    used += sprintf(header + used, "}");
    uint64_t header_bytes = (uint64_t)used;
    memcpy(text, &header_bytes, 8);
    memset(header + used, 0, (size_t)offset);
    scratch_write(scratch_path(folder, file), text, 8 + (size_t)(used + offset));
}

static void expect_refused(trd_status status, const char *message)
{
    trd__weights *w;
    trd_status found = trd__weights_open(folder, &w);
    assert_null(w);
    if (found != status)
        fail_msg("expected status %d, found %d: %s", (int)status, (int)found, trd_error_message());
    expect_message(message);
}

static void nothing_to_read(void **state)
{
    fresh(state);
    expect_refused(TRD_NOT_FOUND, "found neither");
    put("model.gguf", "GGUF");
    expect_refused(TRD_NOT_FOUND, "a GGUF file; give the path of the file itself");
    put("pytorch_model.bin", "PK");
    expect_refused(TRD_NOT_FOUND, "can run code");
    put("adapter_model.safetensors", "");
    expect_refused(TRD_NOT_FOUND, "an adapter (LoRA)");
    put("model-00001-of-00002.safetensors", "");
    expect_refused(TRD_NOT_FOUND, "shards, but not model.safetensors.index.json");
    folder = scratch_path(*state, "not-there");
    expect_refused(TRD_NOT_FOUND, "not-there");
}

static void index_and_shards(void **state)
{
    trd__weights *w;
    fresh(state);
    put_tensor("model-00001-of-00002.safetensors", "a");
    put("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", "
                                        "\"b\": \"model-00002-of-00002.safetensors\"}}");
    expect_refused(TRD_NOT_FOUND, "shard model-00002-of-00002.safetensors is listed");
    put_tensor("model-00002-of-00002.safetensors", "c");
    expect_refused(TRD_CORRUPT, "b is in");
    put_tensor("model-00002-of-00002.safetensors", "b");
    if (trd__weights_open(folder, &w)) fail_msg("%s", trd_error_message());
    assert_int_equal(trd__weights_count(w), 2);
    trd__weights_close(w);
    put_tensor("model-00003-of-00003.safetensors", "d");
    expect_refused(TRD_CORRUPT, "shard model-00003-of-00003.safetensors is missing from");
    put("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../other/model.safetensors\"}}");
    expect_refused(TRD_CORRUPT, "expected the name of a file in the same folder");
    put("model.safetensors.index.json", "{\"weight_map\": {}}");
    expect_refused(TRD_CORRUPT, "found none");
    put("model.safetensors.index.json", "version https://git-lfs.github.com/spec/v1\n");
    expect_refused(TRD_CORRUPT, "Git LFS pointer");
}

static void same_tensor_in_two_shards(void **state)
{
    fresh(state);
    put_tensor("one.safetensors", "a");
    put_tensor("two.safetensors", "b");
    put("model.safetensors.index.json",
        "{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}}");
    put_tensor("two.safetensors", "a b");
    expect_refused(TRD_CORRUPT, "tensor a is there twice");
    put("two.safetensors", "");
    expect_refused(TRD_CORRUPT, "two.safetensors: the file is empty");
}

static void broken_config(void **state)
{
    fresh(state);
    put_tensor("model.safetensors", "a");
    put("config.json", "{\"model_type\": }");
    expect_refused(TRD_CORRUPT, "config.json");
    put("config.json", "<html>");
    expect_refused(TRD_CORRUPT, "HTML page");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_to_read), cmocka_unit_test(index_and_shards),
                                       cmocka_unit_test(same_tensor_in_two_shards),
                                       cmocka_unit_test(broken_config)};
    return cmocka_run_group_tests_name("corrupt/hub_folder", tests, scratch_create, scratch_remove);
}
