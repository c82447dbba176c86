/* Export: the folder reads back to the byte, in one file or in shards, and the config has both spellings of
 * the rotary settings whichever it came with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"
#include "checkpoint/hub_export.h"
#include "checkpoint/weights.h"
#include "formats/json.h"
#include "support/scratch.h"

static float values[3][40];
static const trd_array arrays[] = {{"b", TRD_F32, {2, {4, 10}}, values[0]},
                                   {"a", TRD_F32, {1, {40}}, values[1]},
                                   {"c", TRD_F32, {1, {40}}, values[2]}};
static const char config[] = "{\"model_type\": \"llama\", \"eos_token_id\": [2, 7], \"bos_token_id\": 1, "
                             "\"pad_token_id\": null, \"rope_theta\": 10000.0, \"rope_scaling\": null}";

static void fill(void)
{
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 40; j++) values[i][j] = (float)(i * 40 + j) / 7;
}

static void export_to(const char *folder, trd_dtype dtype, uint64_t shard_bytes)
{
    trd__hub_export_options options = {config, dtype, shard_bytes, NULL};
    if (trd__hub_export(folder, arrays, 3, &options)) fail_msg("%s", trd_error_message());
}

static void expect_values(const char *folder, trd_dtype dtype)
{
    trd__weights *w;
    if (trd__weights_open(folder, &w)) fail_msg("%s", trd_error_message());
    assert_int_equal(trd__weights_count(w), 3);
    assert_non_null(strstr(trd__weights_config(w), "\"model_type\": \"llama\""));
    for (int i = 0; i < 3; i++) {
        uint32_t found[40], expected[40];
        const trd__weight *weight = trd__weights_find(w, arrays[i].name);
        assert_non_null(weight);
        assert_int_equal(weight->dtype, dtype);
        assert_true(trd__shape_equal(&weight->shape, &arrays[i].shape));
        assert_int_equal(trd__weights_read(w, arrays[i].name, dtype, found), TRD_OK);
        trd__convert(TRD_F32, values[i], dtype, expected, 40);
        assert_memory_equal(found, expected, 40 * trd_dtype_bytes(dtype));
    }
    trd__weights_close(w);
}

static void layouts(void **state)
{
    fill();
    const char *folder = scratch_path(*state, "model");
    export_to(folder, TRD_F32, 0);
    expect_values(folder, TRD_F32);
    assert_true(trd__file_exists(scratch_path(folder, "model.safetensors")));
    /* The same folder again, in shards of two tensors of bf16, of one, and back. */
    export_to(folder, TRD_BF16, 160);
    expect_values(folder, TRD_BF16);
    assert_true(trd__file_exists(scratch_path(folder, "model-00002-of-00002.safetensors")));
    assert_false(trd__file_exists(scratch_path(folder, "model.safetensors")));
    export_to(folder, TRD_F16, 1);
    expect_values(folder, TRD_F16);
    assert_true(trd__file_exists(scratch_path(folder, "model-00003-of-00003.safetensors")));
    assert_false(trd__file_exists(scratch_path(folder, "model-00002-of-00002.safetensors")));
    export_to(folder, TRD_F32, 0);
    expect_values(folder, TRD_F32);
    assert_false(trd__file_exists(scratch_path(folder, "model.safetensors.index.json")));
}

static void generation_config(void **state)
{
    trd__json_doc *doc;
    int64_t id = 0;
    fill();
    const char *folder = scratch_path(*state, "generation");
    export_to(folder, TRD_F32, 0);
    const char *path = scratch_path(folder, "generation_config.json");
    assert_int_equal(trd__json_parse_file(path, &doc), TRD_OK);
    trd__json root = trd__json_root(doc);
    assert_int_equal(trd__json_get_i64(root, "bos_token_id", &id), TRD_OK);
    assert_int_equal(id, 1);
    assert_int_equal(trd__json_count(trd__json_find(root, "eos_token_id")), 2);
    assert_false(trd__json_exists(trd__json_find(root, "pad_token_id")));
    trd__json_free(doc);
    scratch_write(path, "{\"temperature\": 0.5}", 20);
    trd__hub_export_options options = {config, TRD_F32, 0, folder};
    const char *copy = scratch_path(*state, "copy");
    assert_int_equal(trd__hub_export(copy, arrays, 3, &options), TRD_OK);
    assert_int_equal(trd__json_parse_file(scratch_path(copy, "generation_config.json"), &doc), TRD_OK);
    assert_true(trd__json_exists(trd__json_find(trd__json_root(doc), "temperature")));
    trd__json_free(doc);
}

static void refuses(void **state)
{
    static const int32_t whole[1] = {1};
    trd_array array = {"ids", TRD_I32, {1, {1}}, whole};
    trd__hub_export_options options = {config, TRD_I32, 0, NULL};
    assert_int_equal(trd__hub_export(*state, arrays, 3, &options), TRD_INVALID_ARGUMENT);
    expect_message("expected float32, bfloat16 or float16, found int32");
    options.dtype = TRD_F32;
    assert_int_equal(trd__hub_export(*state, &array, 1, &options), TRD_INVALID_ARGUMENT);
    expect_message("ids");
    options.config = "[]";
    assert_int_equal(trd__hub_export(*state, arrays, 3, &options), TRD_CORRUPT);
}

/* Each form the rotary settings come in, and what both spellings must then say. */
static const struct {
    const char *config, *type;
    double theta, factor; /* 0: none */
} ropes[] = {
    {"{}", "default", 10000, 0},
    {"{\"rope_theta\": 5e5, \"rope_scaling\": null}", "default", 5e5, 0},
    {"{\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}}", "llama3", 5e5,
     8},
    {"{\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}", "linear", 5e5, 2},
    {"{\"rope_parameters\": {\"rope_theta\": 1e6, \"rope_type\": \"default\"}}", "default", 1e6, 0},
    {"{\"rope_parameters\": {\"rope_theta\": 1e6, \"rope_type\": \"yarn\", \"factor\": 4.0}}", "yarn", 1e6,
     4},
};

static void check_settings(trd__json object, size_t i)
{
    const char *type = "";
    double factor = 0;
    assert_int_equal(trd__json_get_string(object, "rope_type", &type), TRD_OK);
    assert_string_equal(type, ropes[i].type);
    assert_int_equal(trd__json_opt_f64(object, "factor", &factor), TRD_OK);
    assert_true(factor == ropes[i].factor);
}

static void both_spellings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++) {
        char *text, *again;
        double theta = 0;
        const char *dtype = "";
        trd__json_doc *doc;
        assert_int_equal(trd__hub_config(ropes[i].config, TRD_BF16, &text), TRD_OK);
        assert_int_equal(trd__json_parse(text, strlen(text), "c", &doc), TRD_OK);
        trd__json root = trd__json_root(doc), parameters = trd__json_find(root, "rope_parameters");
        assert_int_equal(trd__json_get_f64(root, "rope_theta", &theta), TRD_OK);
        assert_true(theta == ropes[i].theta);
        assert_int_equal(trd__json_get_f64(parameters, "rope_theta", &theta), TRD_OK);
        assert_true(theta == ropes[i].theta);
        check_settings(parameters, i);
        trd__json scaling = trd__json_find(root, "rope_scaling");
        assert_int_equal(trd__json_kind_of(scaling), ropes[i].factor > 0 ? TRD__JSON_OBJECT : TRD__JSON_NULL);
        if (ropes[i].factor > 0) check_settings(scaling, i);
        assert_int_equal(trd__json_get_string(root, "dtype", &dtype), TRD_OK);
        assert_string_equal(dtype, "bfloat16");
        assert_int_equal(trd__hub_config(text, TRD_BF16, &again), TRD_OK); /* a fixed point */
        assert_string_equal(text, again);
        trd__json_free(doc);
        trd__free(again);
        trd__free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layouts), cmocka_unit_test(generation_config),
                                       cmocka_unit_test(refuses), cmocka_unit_test(both_spellings)};
    return cmocka_run_group_tests_name("checkpoint/hub_export", tests, scratch_create, scratch_remove);
}
