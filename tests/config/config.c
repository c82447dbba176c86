/* Configs: every kind of key with its type, range and choices; what several keys must say together; unbuilt
 * features; and that a config written as YAML gives itself. Errors name file and line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/config.h>

#include "config/config.h"
#include "support/engine.h"
#include "support/scratch.h"

static const char *write_config(void **state, const char *text)
{
    const char *path = scratch_path(*state, "config.yml");
    scratch_write(path, text, strlen(text));
    return path;
}

/* The config of text, which must load. */
static trd_config *config_of(void **state, const char *text)
{
    trd_config *config = NULL;
    OK(trd_config_load(write_config(state, text), NULL, 0, &config));
    return config;
}

static void refuses(void **state, const char *text, trd_status status, const char *message)
{
    trd_config *config;
    trd_status found = trd_config_load(write_config(state, text), NULL, 0, &config);
    if (found == TRD_OK) fail_msg("loaded: %s", text);
    assert_int_equal(found, status);
    assert_null(config);
    expect_message(message);
}

static trd_status override_status(const char *override, trd_config **config)
{
    const char *overrides[] = {"model_name=tiny", override};
    return trd_config_load(NULL, overrides, 2, config);
}

static void override_refused(const char *override, const char *message)
{
    trd_config *config;
    if (override_status(override, &config) == TRD_OK) fail_msg("accepted: %s", override);
    expect_message(message);
}

static void override_gives(const char *override, const char *key, const char *value)
{
    trd_config *config;
    trd_status status = override_status(override, &config);
    if (status) fail_msg("%s: %s", override, trd_error_message());
    assert_string_equal(trd_config_get(config, key), value);
    trd_config_free(config);
}

static void values_by_kind(void **state)
{
    trd_config *config = config_of(state, "# a comment\n"
                                          "model_name: qwen3-0.6b   # text\n"
                                          "steps: 12\n"
                                          "learning_rate: 2.5e-4\n"
                                          "packing: false\n"
                                          "enable_data_shuffling: True\n"
                                          "dtype: bfloat16\n"
                                          "run_name: \"a \\\"b\\\"\"\n"
                                          "adamw_mask: ['norm', \"bias$\"]\n"
                                          "train_files: one.jsonl\n"
                                          "eval_files:\n  - x.jsonl\n  - y.jsonl\n"
                                          "profiler: trace\n"
                                          "chat_template: null\n");
    const trd_engine_options *e = trd_config_engine(config);
    assert_string_equal(e->model_name, "qwen3-0.6b");
    assert_null(e->load_parameters_path);
    assert_int_equal(e->steps, 12);
    assert_int_equal(e->schedule.schedule_steps, 12);
    assert_true(e->schedule.learning_rate == 2.5e-4);
    assert_int_equal(e->dtype, TRD_BF16);
    assert_int_equal(e->weight_dtype, TRD_F32);
    assert_int_equal(e->optimizer.mask_count, 2);
    assert_string_equal(e->optimizer.mask[1], "bias$");
    assert_false(config->train.packing);
    assert_true(config->train.shuffle);
    assert_false(config->eval.shuffle);
    assert_int_equal(config->train.file_count, 1);
    assert_string_equal(config->eval.files[1], "y.jsonl");
    assert_true(trd_config_has_eval(config));
    assert_string_equal(trd_config_get(config, "run_name"), "a \"b\"");
    assert_string_equal(trd_config_get(config, "train_files"), "['one.jsonl']");
    assert_string_equal(trd_config_get(config, "learning_rate"), "0.00025");
    assert_string_equal(trd_config_get(config, "micro_batch_size_to_train_on"), "1");
    assert_null(trd_config_get(config, "no_such_key"));
    assert_string_equal(e->checkpoint_directory, "out/a \"b\"/checkpoints");
    assert_string_equal(e->profiler.directory, "out/a \"b\"/profile");
    assert_int_equal(e->profiler.skip_first_steps, 1);
    assert_int_equal(e->profiler.steps, 5);
    assert_int_equal(e->profiler.period, -1);
    trd_config_free(config);
}

static void wrong_values(void **state)
{
    const struct {
        const char *line, *message;
    } cases[] = {
        {"profiler: xplane", "profiler: expected trace or nothing, found \"xplane\""},
        {"profile_periodically_period: 4", "profile_periodically_period 4 is less than profiler_steps 5"},
        {"steps: many", "config.yml line 2: steps: expected a whole number, found \"many\""},
        {"steps: 1.5", "steps: expected a whole number, found \"1.5\""},
        {"steps: 1e3", "steps: expected a whole number"},
        {"steps: \"12\"", "steps: expected a whole number, found the quoted text \"12\""},
        {"steps:", "steps: expected a whole number, found \"\""},
        {"steps: [1]", "steps: expected a whole number, found a list"},
        {"steps: -1", "config.yml line 2: steps: expected 0 to 1000000000000, found -1"},
        {"steps: 99999999999999999999", "steps: expected a whole number"},
        {"per_device_batch_size: 0", "per_device_batch_size: expected 1 to 65536, found 0"},
        {"learning_rate: fast", "learning_rate: expected a number, found \"fast\""},
        {"learning_rate: nan", "learning_rate: expected a number, found \"nan\""},
        {"learning_rate: .inf", "learning_rate: expected a number"},
        {"learning_rate: -1", "learning_rate: expected 0 to 1000, found -1"},
        {"adam_b1: 1", "adam_b1: expected 0 to 0.999999999, found 1"},
        {"z_loss_multiplier: 2", "z_loss_multiplier: expected 0 to 1, found 2"},
        {"packing: yes", "packing: expected true or false, found \"yes\""},
        {"packing: 1", "packing: expected true or false, found \"1\""},
        {"packing: 'true'", "packing: expected true or false, found the quoted text \"true\""},
        {"dtype: float64", "dtype: expected one of float32|bfloat16, found \"float64\""},
        {"dtype: float", "dtype: expected one of float32|bfloat16, found \"float\""},
        {"dtype: [float32]", "dtype: expected one of float32|bfloat16, found \"a list\""},
        {"run_name: [a]", "run_name: expected a text, found a list"},
        {"train_files: [[a]]", "train_files: a list may hold plain values only"},
        {"train_files: [{a: b}]", "train_files: a list may hold plain values only"},
        {"run_name: \"a\\0b\"", "holds a NUL byte"},
        {"lerning_rate: 1",
         "config.yml line 2: unknown key \"lerning_rate\"; did you mean \"learning_rate\"?"},
        {"lr_schedule: wsd", "did you mean \"lr_schedule_type\"?"},
        {"qqqqqqqqqqqq: 1", "unknown key \"qqqqqqqqqqqq\"; docs/config.md lists the keys"},
        {"run_name: {a: b}", "unknown key \"run_name.a\""},
        {"? [a]\n: b", "expected a key"},
        {"steps: 1\nsteps: 2", "config.yml line 3: steps is given twice"},
        {"steps: *x", "aliases are not supported"},
        {"run_name: &x a\nbase_output_directory: *x", "config.yml line 3: aliases are not supported"},
        {"steps: 1\n---\nsteps: 2", "a config is one YAML document, found a second"},
        {"steps: [1", "not valid YAML"},
        {"\tsteps: 1", "config.yml line 2: not valid YAML"},
        {"run_name: 'a", "not valid YAML"},
    };
    char text[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "model_name: tiny\n%s\n", cases[i].line);
        trd_config *config;
        if (trd_config_load(write_config(state, text), NULL, 0, &config) == TRD_OK)
            fail_msg("loaded: %s", cases[i].line);
        assert_null(config);
        expect_message(cases[i].message);
    }
}

/* Every switch is a key with two choices; the second one turns it on, and no other. */
static void dropout_has_two_keys(void **state)
{
    trd_config *config = config_of(state, "model_name: tiny\ndropout_rate: 0.25\n");
    assert_true(trd_config_engine(config)->dropout_rate == 0.25);
    trd_config_free(config);
    config = config_of(state, "model_name: tiny\ndropout_rate: 0.25\nenable_dropout: false\n");
    assert_true(trd_config_engine(config)->dropout_rate == 0);
    trd_config_free(config);
    override_refused("dropout_rate=1", "dropout_rate");
}

static void diagnostic_switches(void **state)
{
    (void)state;
    const struct {
        const char *key, *slow;
    } switches[] = {
#define SWITCH(name, key, normal, slow, resume, help) {#key, slow},
        TRD_DIAGNOSTIC_LIST(SWITCH)
#undef SWITCH
    };
    for (int on = 0; on < TRD_DIAGNOSTIC_COUNT; on++) {
        char text[64];
        trd_config *config;
        snprintf(text, sizeof text, "%s=%s", switches[on].key, switches[on].slow);
        if (override_status(text, &config)) fail_msg("%s: %s", text, trd_error_message());
        for (int i = 0; i < TRD_DIAGNOSTIC_COUNT; i++)
            assert_int_equal(trd_config_engine(config)->diagnostics[i], i == on);
        trd_config_free(config);
    }
    override_refused("throttle_on=grads", "throttle_on: expected one of scalar|state, found \"grads\"");
}

/* Never ignored: the message names key and feature. */
static void unbuilt_features(void **state)
{
    const struct {
        const char *text, *key, *feature;
    } cases[] = {
        {"lora.enable_lora: true", "lora.enable_lora", "LoRA adapters"},
        {"lora:\n  enable_lora: true", "lora.enable_lora", "LoRA adapters"},
        {"lora: {rank: {deep: 4}}", "lora.rank.deep", "LoRA adapters"},
        {"use_dpo: true", "use_dpo", "DPO"},
        {"num_experts: 8", "num_experts", "mixture of experts"},
        {"quantization: int8", "quantization", "quantized training"},
        {"ici_context_parallelism: 4", "ici_context_parallelism", "mesh axes other than data, fsdp, tensor"},
        {"mesh_axes: [data]", "mesh_axes", "meshes whose axes have other names"},
        {"data_sharding: [data]", "data_sharding", "inputs split otherwise than by logical_axis_rules"},
        {"dataset_type: hf", "dataset_type", "data sources other than JSONL"},
    };
    char text[256], message[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "model_name: tiny\n%s\n", cases[i].text);
        snprintf(message, sizeof message, "%s belongs to a feature that is not built yet: %s", cases[i].key,
                 cases[i].feature);
        refuses(state, text, TRD_UNSUPPORTED, message);
    }
    override_refused("lora.enable_lora=true", "override lora.enable_lora=true: lora.enable_lora belongs to");
}

static void files_that_are_no_config(void **state)
{
    refuses(state, "", TRD_INVALID_ARGUMENT, "model_name is missing");
    refuses(state, "# nothing\n", TRD_INVALID_ARGUMENT, "model_name is missing");
    refuses(state, "just words\n", TRD_INVALID_ARGUMENT, "line 1: expected lines of \"key: value\"");
    refuses(state, "- model_name\n", TRD_INVALID_ARGUMENT, "expected lines of \"key: value\"");
    refuses(state, "model_name: {a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}}\n", TRD_INVALID_ARGUMENT,
            "nested too deeply");
    const char *path = scratch_path(*state, "config.yml");
    const unsigned char binary[] = {0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0xff, 0xfe, 0x80};
    trd_config *config;
    scratch_write(path, binary, sizeof binary);
    assert_int_equal(trd_config_load(path, NULL, 0, &config), TRD_INVALID_ARGUMENT);
    expect_message("not valid YAML");
    assert_int_equal(trd_config_load(scratch_path(*state, "none.yml"), NULL, 0, &config), TRD_NOT_FOUND);
    expect_message("none.yml");
    assert_int_not_equal(trd_config_load(*state, NULL, 0, &config), TRD_OK);
    assert_null(config);
    config = config_of(state, "\xef\xbb\xbfmodel_name: tiny\r\nsteps: 3\r\n"); /* as Windows writes it */
    assert_int_equal(trd_config_engine(config)->steps, 3);
    trd_config_free(config);
}

static void overrides(void **state)
{
    override_gives("steps=7", "steps", "7");
    override_gives("metrics_prefix=", "metrics_prefix", "");
    override_refused("run_name=", "run_name is empty");
    override_refused("base_output_directory=", "base_output_directory is empty");
    override_gives("run_name='it''s'", "run_name", "it's");
    override_gives("run_name=a=b", "run_name", "a=b");
    override_gives("run_name=yes", "run_name", "yes");
    override_gives("train_files=[a.jsonl, 'b c.jsonl']", "train_files", "['a.jsonl', 'b c.jsonl']");
    override_gives("train_files=a.jsonl", "train_files", "['a.jsonl']");
    override_gives("train_files=[]", "train_files", "[]");
    override_gives("adamw_mask=", "adamw_mask", "[]");
    override_refused("steps", "override \"steps\": expected key=value");
    override_refused("=5", "expected key=value");
    override_refused("steps=", "override steps=: steps: expected a whole number");
    override_refused("steps=-3", "override steps=-3: steps: expected 0 to");
    override_refused("stps=3", "override stps=3: unknown key \"stps\"; did you mean \"steps\"?");
    override_refused("run_name='a' b", "not valid YAML");
    override_refused("run_name=a\n---\nb", "a value is one YAML document");
    override_refused("train_files=[a", "not valid YAML");
    override_refused("freeze=[\"a\\.b\"]", "single quotes leave a backslash as it is");
    override_gives("freeze=['a\\.b']", "freeze", "['a\\.b']");
    const char *twice[] = {"steps=1", "steps=2"}; /* the last one counts, as in a shell history */
    trd_config *config;
    OK(trd_config_load(write_config(state, "model_name: tiny\nsteps: 5\nrun_name: file\n"), twice, 2,
                       &config));
    assert_string_equal(trd_config_get(config, "steps"), "2");
    assert_string_equal(trd_config_get(config, "run_name"), "file");
    trd_config_free(config);
}

static void keys_that_belong_together(void **state)
{
    refuses(state, "steps: 3\n", TRD_INVALID_ARGUMENT, "model_name is missing");
    refuses(state, "model_name: tiny\nsteps: 3\nnum_epochs: 2\n", TRD_INVALID_ARGUMENT,
            "steps 3 and num_epochs 2 are both given");
    refuses(state, "model_name: tiny\nper_device_batch_size: 4\nmicro_batch_size_to_train_on: 2\n",
            TRD_INVALID_ARGUMENT, "micro_batch_size_to_train_on is 2 but per_device_batch_size 4");
    refuses(state,
            "model_name: tiny\nlr_schedule_type: wsd\nwarmup_steps_fraction: 0.6\n"
            "wsd_decay_steps_fraction: 0.5\n",
            TRD_INVALID_ARGUMENT, "more than the whole schedule");
    trd_config *config = config_of(state, "model_name: tiny\nper_device_batch_size: 4\n"
                                          "micro_batch_size_to_train_on: 4\nnum_epochs: 3\n"
                                          "enable_checkpointing: false\nlearning_rate_schedule_steps: 50\n");
    const trd_engine_options *e = trd_config_engine(config);
    assert_int_equal(e->rows, 4);
    assert_int_equal(e->steps, 0);
    assert_int_equal(config->train.epochs, 3);
    assert_int_equal(e->schedule.schedule_steps, 50);
    assert_null(e->checkpoint_directory);
    const trd_data_options *data;
    assert_int_equal(trd_config_data(config, &data), TRD_INVALID_ARGUMENT);
    expect_message("train_files is empty");
    assert_int_equal(trd_config_eval_data(config, &data), TRD_INVALID_ARGUMENT);
    expect_message("eval_files is empty");
    const trd_tokenizer *tokenizer;
    assert_int_equal(trd_config_tokenizer(config, &tokenizer), TRD_INVALID_ARGUMENT);
    expect_message("tokenizer_path is empty");
    trd_config_free(config);
}

/* A value other than the default for every key, so that a key that is written wrongly cannot hide. */
static void give_other_value(const trd_config_key *key, char *text, size_t bytes)
{
    const char *bar = strchr(key->choices, '|');
    if (!strcmp(key->name, "micro_batch_size_to_train_on"))
        snprintf(text, bytes, "%s=5", key->name); /* any number, on a mesh */
    else if (!strcmp(key->name, "profiler"))
        snprintf(text, bytes, "%s=trace", key->name);
    else if (!strcmp(key->name, "profile_periodically_period"))
        snprintf(text, bytes, "%s=9", key->name); /* not below profiler_steps */
    else if (!strcmp(key->name, "num_epochs"))
        snprintf(text, bytes, "%s=%s", key->name, key->preset); /* steps are given */
    else if (*key->choices)
        snprintf(text, bytes, "%s=%s", key->name, bar ? bar + 1 : key->choices);
    else if (!strcmp(key->type, "true or false"))
        snprintf(text, bytes, "%s=%s", key->name, strcmp(key->preset, "true") ? "true" : "false");
    else if (!strcmp(key->type, "list"))
        snprintf(text, bytes, "%s=['it''s: #1', \"tab\\tnew\\nline \\\\ \\\"q\\\"\", '']", key->name);
    else if (!strcmp(key->type, "list of rules"))
        snprintf(text, bytes, "%s=[[embed, [fsdp, tensor]], ['it''s', null], [mlp, tensor]]", key->name);
    else if (!strcmp(key->type, "text"))
        snprintf(text, bytes, "%s=\"a 'b' \\\"c\\\"\\n\\td: #e\"", key->name);
    else if (!strcmp(key->type, "integer"))
        snprintf(text, bytes, "%s=%.0f", key->name, key->min + 3);
    else
        snprintf(text, bytes, "%s=%.17g", key->name, key->max > 0 ? 1.0 / 3 : 0.0);
    char *last = strrchr(text, '|'); /* of several choices the last */
    if (last && *key->choices) memmove(strchr(text, '=') + 1, last + 1, strlen(last));
}

static void yaml_round_trip(void **state)
{
    enum { MOST_KEYS = 128, BYTES = 256 };
    static char texts[MOST_KEYS][BYTES];
    const char *values[MOST_KEYS];
    trd_config_key key;
    int count = 0;
    for (; trd_config_describe(count, &key); count++) {
        assert_true(count < MOST_KEYS);
        assert_true(*key.section && *key.name && *key.type && *key.help && *key.resume);
        give_other_value(&key, texts[count], BYTES);
        values[count] = texts[count];
    }
    assert_true(count > 60);
    trd_config *first, *second;
    char *yaml, *again;
    OK(trd_config_load(NULL, values, count, &first));
    OK(trd_config_to_yaml(first, &yaml));
    OK(trd_config_load(write_config(state, yaml), NULL, 0, &second));
    OK(trd_config_to_yaml(second, &again));
    assert_string_equal(yaml, again);
    for (int i = 0; trd_config_describe(i, &key); i++)
        assert_string_equal(trd_config_get(first, key.name), trd_config_get(second, key.name));
    assert_string_equal(trd_config_engine(first)->fingerprint, trd_config_engine(second)->fingerprint);
    assert_string_equal(trd_config_get(second, "run_name"), "a 'b' \"c\"\n\td: #e");
    assert_string_equal(second->values.train_files.items[1], "tab\tnew\nline \\ \"q\"");
    assert_true(second->values.learning_rate == 1.0 / 3);
    trd_text_free(yaml);
    trd_text_free(again);
    trd_config_free(first);
    trd_config_free(second);
    trd_config_free(NULL);
}

/* MaxText's spellings: an empty mu_dtype is the weights', None is a number that is not set. */
static void optimizer_keys(void **state)
{
    trd_config *config = config_of(state, "model_name: tiny\n"
                                          "opt_type: muon\n"
                                          "weight_dtype: bfloat16\n"
                                          "mu_dtype: \"\"\n"
                                          "muon_consistent_rms: None\n"
                                          "adam_eps_root: 1e-6\n"
                                          "adafactor_min_dim_size_to_factor: 32\n"
                                          "freeze: [embed, '^(?!.*norm)']\n");
    const trd_engine_options *e = trd_config_engine(config);
    assert_string_equal(e->optimizer.type, "muon");
    assert_int_equal(e->optimizer.mu_dtype, TRD_BF16);
    assert_string_equal(trd_config_get(config, "mu_dtype"), "bfloat16");
    assert_true(e->optimizer.muon.beta == 0.95 && e->optimizer.muon.consistent_rms == 0);
    assert_true(e->optimizer.eps_root == 1e-6);
    assert_int_equal(e->optimizer.adafactor.min_dim_size_to_factor, 32);
    assert_int_equal(e->freeze_count, 2);
    assert_string_equal(e->freeze[1], "^(?!.*norm)");
    trd_config_free(config);
    override_gives("mu_dtype=", "mu_dtype", "float32");
    override_gives("muon_consistent_rms=0.2", "muon_consistent_rms", "0.2");
    override_gives("learning_rate=None", "learning_rate", "3e-05");
    const char *const types[] = {"adamw", "adam_pax", "adafactor", "muon", "sgd"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char override[32];
        snprintf(override, sizeof override, "opt_type=%s", types[i]);
        override_gives(override, "opt_type", types[i]);
    }
    override_refused("opt_type=", "opt_type: expected one of adamw|adam_pax|adafactor|muon|sgd");
    override_refused("muon_consistent_rms=none", "muon_consistent_rms: expected a number");
}

/* message NULL: as many are taken. */
static void many_rules(void **state, int count, const char *message)
{
    static const char rule[] = "- [a, data]\n";
    char *text = malloc(64 + (size_t)count * sizeof rule);
    assert_non_null(text);
    char *at = stpcpy(text, "model_name: tiny\nlogical_axis_rules:\n");
    for (int i = 0; i < count; i++) at = stpcpy(at, rule);
    if (message)
        refuses(state, text, TRD_INVALID_ARGUMENT, message);
    else
        trd_config_free(config_of(state, text));
    free(text);
}

static void mesh_keys(void **state)
{
    trd_config *config = config_of(state, "model_name: tiny\n"
                                          "per_device_batch_size: 3\n"
                                          "ici_data_parallelism: 2\n"
                                          "dcn_data_parallelism: 2\n"
                                          "ici_tensor_parallelism: 2\n"
                                          "logical_axis_rules:\n"
                                          "  - ['embed', ['fsdp', 'tensor']]\n"
                                          "  - ['mlp', 'tensor']\n"
                                          "  - [vocab, null]\n"
                                          "  - [norm, []]\n"
                                          "shard_mode: explicit\n"
                                          "indivisible_batch: replicate\n"
                                          "defer_grad_reduction: true\n"
                                          "shard_optimizer_over_data: true\n");
    const trd_mesh_options *mesh = &trd_config_engine(config)->mesh;
    assert_int_equal(trd_config_engine(config)->rows, 24);
    assert_int_equal(config->train.rows, 24);
    assert_int_equal(mesh->ici.data, 2);
    assert_int_equal(mesh->dcn.data, 2);
    assert_int_equal(mesh->ici.fsdp, 1);
    assert_int_equal(mesh->ici.tensor, 2);
    assert_int_equal(mesh->rule_count, 4);
    assert_string_equal(mesh->rules[0].logical, "embed");
    assert_int_equal(mesh->rules[0].axis_count, 2);
    assert_string_equal(mesh->rules[0].axes[1], "tensor");
    assert_int_equal(mesh->rules[1].axis_count, 1);
    assert_int_equal(mesh->rules[2].axis_count, 0);
    assert_int_equal(mesh->rules[3].axis_count, 0);
    assert_int_equal(mesh->shard_mode, TRD_SHARD_EXPLICIT);
    assert_int_equal(mesh->indivisible_batch, TRD_INDIVISIBLE_REPLICATE);
    assert_true(mesh->defer_grad_reduction && mesh->shard_optimizer_over_data);
    assert_string_equal(trd_config_get(config, "logical_axis_rules"),
                        "[['embed', ['fsdp', 'tensor']], ['mlp', ['tensor']], ['vocab', []], ['norm', []]]");
    trd_config_free(config);
    static const char form[] = "a rule is [name, axis], [name, [axis, ...]] or [name, null]";
    override_refused("logical_axis_rules=embed", "expected a list of [name, axis or [axes] or null]");
    override_refused("logical_axis_rules=[embed]", form);
    override_refused("logical_axis_rules=[[embed]]", form);
    override_refused("logical_axis_rules=[[]]", form);
    override_refused("logical_axis_rules=[[embed, a, b]]", form);
    override_refused("logical_axis_rules=[[embed, [a, [b]]]]", form);
    override_refused("logical_axis_rules=[[[embed], a]]", form);
    override_refused("logical_axis_rules=[[embed, {a: b}]]", form);
    override_refused("logical_axis_rules=[['', a]]", "\"\" is no name");
    override_refused("logical_axis_rules=[['a b', a]]", "\"a b\" is no name");
    many_rules(state, 1024, NULL);
    many_rules(state, 1025, "logical_axis_rules: more than 1024 items");
    override_refused("ici_fdsp_parallelism=2", "did you mean \"ici_fsdp_parallelism\"?");
    override_refused("ici_fsdp_parallelism=-1",
                     "ici_fsdp_parallelism: expected 1 or more, found -1: the rows");
    override_refused("dcn_data_parallelism=0", "dcn_data_parallelism: expected 1 or more, found 0; give");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_by_kind),      cmocka_unit_test(wrong_values),
        cmocka_unit_test(optimizer_keys),      cmocka_unit_test(dropout_has_two_keys),
        cmocka_unit_test(diagnostic_switches), cmocka_unit_test(unbuilt_features),
        cmocka_unit_test(mesh_keys),           cmocka_unit_test(files_that_are_no_config),
        cmocka_unit_test(overrides),           cmocka_unit_test(keys_that_belong_together),
        cmocka_unit_test(yaml_round_trip),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
