/* Models from config.json and presets: what is read, what is refused with which message, and that what is
 * written reads back as the same model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/shape.h"
#include "nn/models/decoder.h"
#include "support/engine.h"
#include "support/scratch.h"

typedef struct member {
    const char *key, *value; /* value as JSON text; NULL: the key is left out */
} member;

/* A config of a small llama with some members replaced or added; the list ends with a zeroed one. */
static const char *config_with(const member *changes)
{
    static const member base[] = {{"architectures", "[\"LlamaForCausalLM\"]"},
                                  {"model_type", "\"llama\""},
                                  {"hidden_size", "64"},
                                  {"intermediate_size", "96"},
                                  {"num_hidden_layers", "2"},
                                  {"num_attention_heads", "4"},
                                  {"num_key_value_heads", "2"},
                                  {"vocab_size", "128"},
                                  {"rms_norm_eps", "1e-5"},
                                  {"max_position_embeddings", "512"},
                                  {"hidden_act", "\"silu\""},
                                  {"tie_word_embeddings", "true"}};
    static char text[4096];
    size_t used = (size_t)snprintf(text, sizeof text, "{\"transformers_version\": \"5\"");
    for (const member *c = changes; c->key; c++)
        if (c->value)
            used += (size_t)snprintf(text + used, sizeof text - used, ", \"%s\": %s", c->key, c->value);
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) {
        bool changed = false;
        for (const member *c = changes; c->key; c++) changed |= strcmp(c->key, base[i].key) == 0;
        if (!changed)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, ", \"%s\": %s", base[i].key, base[i].value);
    }
    snprintf(text + used, sizeof text - used, "}");
    return text;
}

static trd_model *model_with(const member *changes)
{
    const char *text = config_with(changes);
    trd_model *model = NULL;
    OK(trd_model_from_json(text, strlen(text), &model));
    return model;
}

static void defaults(void **state)
{
    (void)state;
    trd_model *model = model_with((const member[]){{"num_key_value_heads", NULL},
                                                   {"max_position_embeddings", NULL},
                                                   {"bos_token_id", "1"},
                                                   {"eos_token_id", "[7, 8]"},
                                                   {0}});
    trd_model_info info = trd_model_describe(model);
    const trd__decoder *o = model->options;
    assert_string_equal(info.architecture, "llama");
    assert_int_equal(info.kv_heads, 4);
    assert_int_equal(info.head_dim, 16);
    assert_int_equal(info.max_positions, 2048);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 7);
    assert_true(info.tied);
    assert_true(o->rope.theta == 10000 && o->rope.scaling == TRD_ROPE_DEFAULT);
    assert_true(o->initializer_range == 0.02);
    assert_false(o->qkv_bias);
    assert_string_equal(model->parameters[0].name, "model.embed_tokens.weight");
    assert_string_equal(model->parameters[model->parameter_count - 1].name, "model.norm.weight");
    trd_model_free(model);
    trd_model_free(NULL);
}

static int find(const trd_model *model, const char *name)
{
    for (int i = 0; i < model->parameter_count; i++)
        if (strcmp(model->parameters[i].name, name) == 0) return i;
    return -1;
}

/* What tells the families apart. */
static void families(void **state)
{
    (void)state;
    trd_model *llama = model_with((const member[]){
        {"attention_bias", "true"}, {"mlp_bias", "true"}, {"tie_word_embeddings", "false"}, {0}});
    assert_true(find(llama, "lm_head.weight") >= 0);
    assert_true(find(llama, "model.layers.1.self_attn.o_proj.bias") >= 0);
    assert_true(find(llama, "model.layers.1.mlp.down_proj.bias") >= 0);
    trd_model_free(llama);
    trd_model *qwen2 = model_with((const member[]){{"architectures", "[\"Qwen2ForCausalLM\"]"}, {0}});
    assert_string_equal(trd_model_describe(qwen2).architecture, "qwen2");
    assert_true(find(qwen2, "model.layers.0.self_attn.v_proj.bias") >= 0);
    assert_true(find(qwen2, "model.layers.0.self_attn.o_proj.bias") < 0);
    assert_true(find(qwen2, "lm_head.weight") < 0);
    trd_model_free(qwen2);
    trd_model *qwen3 = model_with(
        (const member[]){{"architectures", NULL}, {"model_type", "\"qwen3\""}, {"head_dim", "32"}, {0}});
    int norm = find(qwen3, "model.layers.1.self_attn.q_norm.weight");
    assert_true(norm >= 0);
    assert_int_equal(qwen3->parameters[norm].shape.dim[0], 32);
    assert_int_equal(qwen3->parameters[find(qwen3, "model.layers.0.self_attn.q_proj.weight")].shape.dim[0],
                     128);
    assert_true(find(qwen3, "model.layers.0.self_attn.q_proj.bias") < 0);
    trd_model_free(qwen3);
}

static void expect_rope(trd_model *model, const trd_rope_options *expected)
{
    const trd_rope_options *found = &((const trd__decoder *)model->options)->rope;
    assert_true(found->theta == expected->theta);
    assert_int_equal(found->scaling, expected->scaling);
    assert_true(found->factor == expected->factor);
    assert_true(found->low_freq_factor == expected->low_freq_factor);
    assert_true(found->high_freq_factor == expected->high_freq_factor);
    assert_true(found->original_max_position_embeddings == expected->original_max_position_embeddings);
    assert_true(found->partial_rotary_factor == expected->partial_rotary_factor);
    trd_model_free(model);
}

/* rope_theta with rope_scaling, as most hub checkpoints have it, and rope_parameters say the same. */
static void both_spellings_of_rope(void **state)
{
    (void)state;
    const trd_rope_options plain = {.theta = 500000};
    expect_rope(model_with((const member[]){{"rope_theta", "500000.0"}, {"rope_scaling", "null"}, {0}}),
                &plain);
    expect_rope(model_with((const member[]){
                    {"rope_parameters", "{\"rope_theta\": 500000.0, \"rope_type\": \"default\"}"}, {0}}),
                &plain);
    const trd_rope_options linear = {.theta = 10000, .scaling = TRD_ROPE_LINEAR, .factor = 4};
    expect_rope(model_with((const member[]){{"rope_scaling", "{\"type\": \"linear\", \"factor\": 4}"}, {0}}),
                &linear);
    expect_rope(model_with((const member[]){
                    {"rope_parameters", "{\"rope_type\": \"linear\", \"factor\": 4.0}"}, {0}}),
                &linear);
    const trd_rope_options llama3 = {.theta = 500000,
                                     .scaling = TRD_ROPE_LLAMA3,
                                     .factor = 8,
                                     .low_freq_factor = 1,
                                     .high_freq_factor = 4,
                                     .original_max_position_embeddings = 64};
#define LLAMA3                                                                                               \
    "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "      \
    "\"original_max_position_embeddings\": 64"
    expect_rope(
        model_with((const member[]){{"rope_theta", "500000.0"}, {"rope_scaling", "{" LLAMA3 "}"}, {0}}),
        &llama3);
    expect_rope(
        model_with((const member[]){{"rope_parameters", "{\"rope_theta\": 500000.0, " LLAMA3 "}"}, {0}}),
        &llama3);
}

static void refusals(void **state)
{
    (void)state;
    const struct {
        member change;
        trd_status status;
        const char *message;
    } cases[] = {
        {{"architectures", "[\"BertForMaskedLM\"]"}, TRD_UNSUPPORTED, "\"BertForMaskedLM\" is an encoder"},
        {{"architectures", "[\"T5ForConditionalGeneration\"]"}, TRD_UNSUPPORTED, "sequence-to-sequence"},
        {{"architectures", "[\"MambaForCausalLM\"]"},
         TRD_UNSUPPORTED,
         "architecture \"MambaForCausalLM\" is not supported; known: llama (LlamaForCausalLM), qwen2"},
        {{"architectures", "[7]"}, TRD_CORRUPT, "architectures"},
        {{"num_attention_heads", "3"}, TRD_INVALID_ARGUMENT, "num_attention_heads 3 is no multiple of"},
        {{"hidden_size", NULL},
         TRD_INVALID_ARGUMENT,
         "hidden_size: expected a whole number from 1, found 0 (miss"},
        {{"intermediate_size", NULL}, TRD_INVALID_ARGUMENT, "intermediate_size"},
        {{"num_hidden_layers", NULL}, TRD_INVALID_ARGUMENT, "num_hidden_layers"},
        {{"num_attention_heads", NULL}, TRD_INVALID_ARGUMENT, "num_attention_heads"},
        {{"vocab_size", NULL}, TRD_INVALID_ARGUMENT, "vocab_size"},
        {{"rms_norm_eps", NULL}, TRD_CORRUPT, "rms_norm_eps"},
        {{"rms_norm_eps", "0"}, TRD_INVALID_ARGUMENT, "rms_norm_eps: expected more than 0"},
        {{"hidden_size", "-64"}, TRD_INVALID_ARGUMENT, "found -64"},
        {{"hidden_size", "\"64\""}, TRD_CORRUPT, "hidden_size"},
        {{"vocab_size", "1e12"}, TRD_INVALID_ARGUMENT, "vocab_size: expected a whole number from 1"},
        {{"head_dim", "15"}, TRD_INVALID_ARGUMENT, "head_dim: expected an even number, found 15"},
        {{"hidden_act", "\"gelu\""}, TRD_UNSUPPORTED, "hidden_act \"gelu\" is not supported; known: silu"},
        {{"use_sliding_window", "true"}, TRD_UNSUPPORTED, "use_sliding_window: true is not supported"},
        {{"layer_types", "[\"full_attention\", \"sliding_attention\"]"},
         TRD_UNSUPPORTED,
         "layer_types: \"sliding_attention\" is not supported"},
        {{"quantization_config", "{\"quant_method\": \"gptq\"}"}, TRD_UNSUPPORTED, "quantization_config"},
        {{"rope_theta", "0"}, TRD_INVALID_ARGUMENT, "rope_theta: expected more than 0"},
        {{"partial_rotary_factor", "2"}, TRD_INVALID_ARGUMENT, "partial_rotary_factor: expected 0 to 1"},
        {{"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4}"},
         TRD_UNSUPPORTED,
         "rope_type \"yarn\" is not supported; known: default, linear, llama3"},
        {{"rope_scaling", "{\"rope_type\": \"linear\"}"}, TRD_CORRUPT, "factor"},
        {{"rope_scaling", "{\"type\": \"linear\", \"factor\": 0.5}"}, TRD_INVALID_ARGUMENT, "at least 1"},
        {{"rope_parameters",
          "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4, "
          "\"original_max_position_embeddings\": 64}"},
         TRD_INVALID_ARGUMENT,
         "high_freq_factor must be greater than low_freq_factor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = config_with((const member[]){cases[i].change, {0}});
        trd_model *model;
        trd_status status = trd_model_from_json(text, strlen(text), &model);
        if (status == TRD_OK) fail_msg("accepted: %s: %s", cases[i].change.key, cases[i].change.value);
        assert_null(model);
        expect_message(cases[i].message);
        expect_message("config.json");
        assert_int_equal(status, cases[i].status);
    }
    trd_model *model;
    const char *none = config_with((const member[]){{"architectures", NULL}, {"model_type", NULL}, {0}});
    assert_int_equal(trd_model_from_json(none, strlen(none), &model), TRD_INVALID_ARGUMENT);
    expect_message("this is no model's config.json");
    assert_int_not_equal(trd_model_from_json("[]", 2, &model), TRD_OK);
    assert_int_not_equal(trd_model_from_json("{", 1, &model), TRD_OK);
    assert_null(model);
}

/* Numbers of parameters as published (tied weights counted once). */
static void presets(void **state)
{
    (void)state;
    const struct {
        const char *name;
        int64_t parameters;
    } published[] = {{"smollm2-135m", 134515008}, {"smollm2-360m", 361821120},  {"smollm2-1.7b", 1711376384},
                     {"llama3.2-1b", 1235814400}, {"llama3.2-3b", 3212749824},  {"llama3.1-8b", 8030261248},
                     {"qwen2.5-0.5b", 494032768}, {"qwen2.5-1.5b", 1543714304}, {"qwen2.5-3b", 3085938688},
                     {"qwen2.5-7b", 7615616512},  {"qwen3-0.6b", 596049920},    {"qwen3-1.7b", 1720574976},
                     {"qwen3-4b", 4022468096},    {"qwen3-8b", 8190735360},     {"qwen3-14b", 14768307200},
                     {"qwen3-32b", 32762123264}};
    trd_model *model;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        OK(trd_model_from_preset(published[i].name, NULL, &model));
        if (trd_model_describe(model).parameters != published[i].parameters)
            fail_msg("%s: %lld parameters, published are %lld", published[i].name,
                     (long long)trd_model_describe(model).parameters, (long long)published[i].parameters);
        trd_model_free(model);
    }
    for (int i = 0; trd_model_preset_name(i); i++) {
        OK(trd_model_from_preset(trd_model_preset_name(i), NULL, &model));
        trd_model_free(model);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(trd_model_preset_name(i), trd_model_preset_name(j));
    }
    assert_null(trd_model_preset_name(-1));
    assert_int_equal(trd_model_from_preset("qwen3-06b", NULL, &model), TRD_INVALID_ARGUMENT);
    assert_null(model);
    expect_message("\"qwen3-06b\" is no preset; did you mean \"qwen3-0.6b\"?");
    trd_model_overrides o = {.layers = 3,
                             .hidden = 32,
                             .intermediate = 48,
                             .heads = 2,
                             .kv_heads = 1,
                             .head_dim = 8,
                             .vocab = 100};
    OK(trd_model_from_preset("qwen3-0.6b", &o, &model));
    trd_model_info info = trd_model_describe(model);
    assert_int_equal(info.layers, 3);
    assert_int_equal(info.hidden, 32);
    assert_int_equal(info.intermediate, 48);
    assert_int_equal(info.heads, 2);
    assert_int_equal(info.kv_heads, 1);
    assert_int_equal(info.head_dim, 8);
    assert_int_equal(info.vocab, 100);
    trd_model_free(model);
    o.kv_heads = 3;
    assert_int_equal(trd_model_from_preset("tiny", &o, &model), TRD_INVALID_ARGUMENT);
    expect_message("model_name tiny: ");
}

static void reads_back(trd_model *model)
{
    trd_model *again;
    char *first, *second;
    OK(trd_model_to_json(model, "bfloat16", &first));
    OK(trd_model_from_json(first, strlen(first), &again));
    OK(trd_model_to_json(again, "bfloat16", &second));
    assert_string_equal(first, second);
    assert_non_null(strstr(first, "\"torch_dtype\": \"bfloat16\""));
    assert_non_null(strstr(first, "\"rope_theta\""));
    assert_non_null(strstr(first, "\"rope_parameters\""));
    assert_int_equal(model->parameter_count, again->parameter_count);
    for (int i = 0; i < model->parameter_count; i++) {
        assert_string_equal(model->parameters[i].name, again->parameters[i].name);
        assert_true(trd__shape_equal(&model->parameters[i].shape, &again->parameters[i].shape));
    }
    trd_model_info a = trd_model_describe(model), b = trd_model_describe(again);
    assert_int_equal(a.bos, b.bos);
    assert_int_equal(a.eos, b.eos);
    assert_int_equal(a.max_positions, b.max_positions);
    expect_rope(again, &((const trd__decoder *)model->options)->rope);
    trd_text_free(first);
    trd_text_free(second);
    trd_model_free(model);
}

static void json_round_trip(void **state)
{
    (void)state;
    trd_model *model;
    for (int i = 0; trd_model_preset_name(i); i++) {
        OK(trd_model_from_preset(trd_model_preset_name(i), NULL, &model));
        reads_back(model);
    }
    reads_back(model_with((const member[]){{"attention_bias", "true"},
                                           {"mlp_bias", "true"},
                                           {"partial_rotary_factor", "0.5"},
                                           {"initializer_range", "0.05"},
                                           {"tie_word_embeddings", "false"},
                                           {"rope_scaling", "{\"type\": \"linear\", \"factor\": 3}"},
                                           {0}}));
    reads_back(model_with((const member[]){{"architectures", "[\"Qwen3ForCausalLM\"]"},
                                           {"attention_bias", "true"},
                                           {"eos_token_id", "5"},
                                           {0}}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults), cmocka_unit_test(families), cmocka_unit_test(both_spellings_of_rope),
        cmocka_unit_test(refusals), cmocka_unit_test(presets),  cmocka_unit_test(json_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
