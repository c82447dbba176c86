/* Weights under hub names: GGUF files made as llama.cpp's converter makes them (data/make_tiny.py) give the
 * hub tensors to the bit, with the rotary row order undone for Llama and left alone for Qwen3. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/shape.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/weights.h"
#include "formats/json.h"
#include "support/scratch.h"

static trd__weights *open_weights(const char *path)
{
    trd__weights *w;
    if (trd__weights_open(path, &w)) fail_msg("%s", trd_error_message());
    return w;
}

/* Every tensor of expected, in every dtype, equals that of found. */
static void expect_same(const trd__weights *found, const trd__weights *expected)
{
    static const trd_dtype dtypes[] = {TRD_F32, TRD_BF16, TRD_F16, TRD_F64};
    assert_int_equal(trd__weights_count(found), trd__weights_count(expected));
    for (size_t i = 0; i < trd__weights_count(expected); i++) {
        const trd__weight *wanted = trd__weights_at(expected, i),
                          *tensor = trd__weights_find(found, wanted->name);
        if (!tensor) fail_msg("%s is missing", wanted->name);
        assert_true(trd__shape_equal(&tensor->shape, &wanted->shape));
        size_t count = (size_t)trd__shape_count(&wanted->shape);
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            size_t bytes = count * trd_dtype_bytes(dtypes[d]);
            void *a = malloc(bytes), *b = malloc(bytes);
            assert_true(a && b);
            assert_int_equal(trd__weights_read(expected, wanted->name, dtypes[d], a), TRD_OK);
            assert_int_equal(trd__weights_read(found, wanted->name, dtypes[d], b), TRD_OK);
            if (memcmp(a, b, bytes) != 0)
                fail_msg("%s differs as %s", wanted->name, trd_dtype_name(dtypes[d]));
            free(a);
            free(b);
        }
    }
}

static void gguf_gives_hub_tensors(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"checkpoint/data/llama.gguf", "checkpoint/data/llama.safetensors"},
        {"checkpoint/data/qwen3.gguf", "checkpoint/data/qwen3.safetensors"}};
    for (int i = 0; i < 2; i++) {
        trd__weights *gguf = open_weights(names[i][0]), *hub = open_weights(names[i][1]);
        assert_string_equal(trd__weights_format(gguf), "gguf");
        assert_string_equal(trd__weights_format(hub), "safetensors");
        expect_same(gguf, hub);
        assert_null(trd__weights_config(hub));
        trd__weights_close(hub);
        trd__weights_close(gguf);
    }
}

static double number_of(trd__json object, const char *key)
{
    double number = 0;
    if (trd__json_get_f64(object, key, &number)) fail_msg("%s", trd_error_message());
    return number;
}

static void gguf_config(void **state)
{
    (void)state;
    trd__weights *w = open_weights("checkpoint/data/llama.gguf");
    trd__json_doc *doc;
    trd__json rope;
    bool tied = false;
    const char *type = "";
    assert_non_null(strstr(trd__weights_config(w), "LlamaForCausalLM"));
    assert_int_equal(trd__json_parse(trd__weights_config(w), strlen(trd__weights_config(w)), "c", &doc),
                     TRD_OK);
    trd__json root = trd__json_root(doc);
    assert_true(number_of(root, "hidden_size") == 32 && number_of(root, "num_hidden_layers") == 1);
    assert_true(number_of(root, "num_attention_heads") == 2 && number_of(root, "num_key_value_heads") == 1);
    assert_true(number_of(root, "head_dim") == 16 && number_of(root, "vocab_size") == 8);
    assert_true(number_of(root, "rms_norm_eps") == 1e-5); /* not float32's 9.99999975e-06 */
    assert_true(number_of(root, "eos_token_id") == 2);
    assert_int_equal(trd__json_kind_of(trd__json_find(root, "pad_token_id")), TRD__JSON_NULL);
    assert_int_equal(trd__json_get_bool(root, "tie_word_embeddings", &tied), TRD_OK);
    assert_true(tied);
    assert_int_equal(trd__json_get_object(root, "rope_parameters", &rope), TRD_OK);
    assert_int_equal(trd__json_get_string(rope, "rope_type", &type), TRD_OK);
    assert_string_equal(type, "llama3");
    assert_true(number_of(rope, "factor") == 8 && number_of(rope, "rope_theta") == 500000);
    assert_true(number_of(rope, "original_max_position_embeddings") == 8192);
    trd__json_free(doc);
    assert_null(trd__weights_find(w, "rope_freqs.weight"));
    const trd__pair *pairs;
    size_t count = trd__weights_metadata(w, &pairs);
    assert_string_equal(pairs[0].key, "general.architecture");
    assert_string_equal(pairs[0].value, "llama");
    assert_string_equal(pairs[count - 1].key, "config.json");
    trd__weights_close(w);

    w = open_weights("checkpoint/data/qwen3.gguf");
    assert_non_null(strstr(trd__weights_config(w), "\"tie_word_embeddings\": false"));
    assert_non_null(strstr(trd__weights_config(w), "\"rope_type\": \"default\""));
    trd__weights_close(w);
}

static void names(void **state)
{
    (void)state;
    char hub[TRD__GGUF_NAME_BYTES];
    bool key;
    assert_true(trd__gguf_hub_name("blk.17.attn_q.bias", hub));
    assert_string_equal(hub, "model.layers.17.self_attn.q_proj.bias");
    assert_true(trd__gguf_permuted_name(hub, &key) && !key);
    assert_true(trd__gguf_hub_name("blk.0.attn_q_norm.weight", hub));
    assert_string_equal(hub, "model.layers.0.self_attn.q_norm.weight");
    assert_false(trd__gguf_permuted_name(hub, &key));
    assert_true(trd__gguf_hub_name("output.weight", hub));
    assert_string_equal(hub, "lm_head.weight");
    static const char *const unknown[] = {"blk.x.attn_q.weight",
                                          "blk.1.attn_z.weight",
                                          "attn_q.weight",
                                          "blk.1.weight",
                                          "token_embd",
                                          "blk.-1.attn_q.weight",
                                          ""};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (trd__gguf_hub_name(unknown[i], hub)) fail_msg("mapped %s to %s", unknown[i], hub);
    /* Head 1 of 4 rows: hub rows 4 5 6 7 (first halves, then second) lie at 4 6 5 7. */
    static const int64_t rows[] = {4, 6, 5, 7};
    for (int64_t i = 0; i < 4; i++) assert_int_equal(trd__gguf_permuted_row(4 + i, 4), rows[i]);
}

/* A tensor that starts at an odd address of the file converts all the same. */
static void unaligned_data(void **state)
{
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"BF16\","
        "\"shape\":[3],\"data_offsets\":[1,7]}}";
    unsigned char file[256] = {0};
    uint64_t length = sizeof header - 1;
    trd__bf16 values[3] = {trd__f32_to_bf16(1.5f), trd__f32_to_bf16(-2), trd__f32_to_bf16(3)};
    float out[3];
    int32_t whole[3];
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length + 1, values, 6);
    const char *path = scratch_path(*state, "odd.safetensors");
    scratch_write(path, file, 8 + length + 7);
    trd__weights *w = open_weights(path);
    assert_int_equal(trd__weights_read(w, "b", TRD_F32, out), TRD_OK);
    assert_true(out[0] == 1.5f && out[1] == -2 && out[2] == 3);
    assert_int_equal(trd__weights_read(w, "b", TRD_I32, whole), TRD_UNSUPPORTED);
    assert_int_equal(trd__weights_read(w, "c", TRD_F32, out), TRD_NOT_FOUND);
    expect_message("there is no tensor c");
    trd__weights_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gguf_gives_hub_tensors),
                                       cmocka_unit_test(gguf_config), cmocka_unit_test(names),
                                       cmocka_unit_test(unaligned_data)};
    return cmocka_run_group_tests_name("checkpoint/weights", tests, scratch_create, scratch_remove);
}
