/* scan_layers against the same engine without it: losses, gradients, parameters, states and checkpoints,
 * under every option that touches a layer. On the CPU all of them are the same bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/shape.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/program.h"
#include "support/scratch.h"

enum { LAYERS = 3 };

static trd_model *model_of(const char *class_name, const char *type, bool tied)
{
    char config[1024];
    trd_model *model = NULL;
    int length = snprintf(config, sizeof config,
                          "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"hidden_size\": 16,"
                          " \"intermediate_size\": 24, \"num_hidden_layers\": %d, \"num_attention_heads\": 4,"
                          " \"num_key_value_heads\": 2, \"head_dim\": 8, \"vocab_size\": %d,"
                          " \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 64, \"rope_theta\": 1e4,"
                          " \"tie_word_embeddings\": %s, \"initializer_range\": 0.2}",
                          class_name, type, LAYERS, TEST_VOCAB, tied ? "true" : "false");
    OK(trd_model_from_json(config, (size_t)length, &model));
    return model;
}

static trd_engine *qwen3(trd_engine_options o, bool scan)
{
    trd_engine *engine = NULL;
    o.scan_layers = scan;
    OK(trd__engine_create_with_model(&o, model_of("Qwen3ForCausalLM", "qwen3", true), &engine));
    return engine;
}

static bool exact(void)
{
    return strcmp(test_backend_name(), "cpu") == 0;
}

static void same_number(const char *what, double a, double b)
{
    double off = fabs(a - b) / fmax(fabs(b), 1e-30);
    if (exact() ? a != b : !(off < 1e-5 || fabs(a - b) < 1e-6))
        fail_msg("%s: %.17g against %.17g", what, a, b);
}

/* Names, types and content; on another backend the values' distance, relative to their norm. */
static void same_view(trd_view a, trd_view b)
{
    assert_int_equal(trd_view_count(a), trd_view_count(b));
    for (int i = 0; i < trd_view_count(a); i++) {
        trd_array of = trd_view_describe(a, i), other = trd_view_describe(b, i);
        assert_string_equal(of.name, other.name);
        assert_true(of.dtype == other.dtype && trd__shape_equal(&of.shape, &other.shape));
        assert_int_equal(trd_view_find(a, of.name), i);
        size_t count = (size_t)trd__shape_count(&of.shape), bytes = count * trd_dtype_bytes(of.dtype);
        unsigned char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
        assert_true(x && y);
        OK(trd_view_read(a, i, x));
        OK(trd_view_read(b, i, y));
        double squares = 0, apart = 0;
        for (size_t k = 0; k < count; k++) {
            double left = trd__load(of.dtype, x, k), right = trd__load(of.dtype, y, k);
            squares += right * right;
            apart += (left - right) * (left - right);
        }
        bool same = exact() ? memcmp(x, y, bytes) == 0 : sqrt(apart) <= 1e-5 * sqrt(squares) + 1e-6;
        if (!same) fail_msg("%s is off by %g of its norm", of.name, sqrt(apart / squares));
        free(y);
        free(x);
    }
}

static void same_engines(trd_engine *scanned, trd_engine *plain)
{
    same_view(trd_engine_params(scanned), trd_engine_params(plain));
    same_view(trd_engine_optimizer_state(scanned), trd_engine_optimizer_state(plain));
    same_view(trd_engine_model_state(scanned), trd_engine_model_state(plain));
}

static void same_forward(trd_engine *scanned, trd_engine *plain)
{
    test_batch b;
    float logprobs[2][TEST_ROWS * TEST_LENGTH];
    trd_engine *both[] = {scanned, plain};
    for (int e = 0; e < 2; e++) {
        OK(trd_engine_fwd_only(both[e], trd_forward_token_logprobs, NULL, test_batch_fill(&b, 77),
                               logprobs[e], sizeof logprobs[e]));
        OK(trd_engine_eval_begin(both[e]));
        OK(trd_engine_eval_step(both[e], &b.batch));
        OK(trd_engine_eval_end(both[e]));
    }
    for (int i = 0; i < TEST_ROWS * TEST_LENGTH; i++)
        same_number("log-probability", (double)logprobs[0][i], (double)logprobs[1][i]);
    same_number("eval loss", test_eval_metric(scanned, "loss"), test_eval_metric(plain, "loss"));
}

/* Two updates of two micro-batches each, then one train_step; compared within a step and behind each. */
static void same_training(trd_engine *scanned, trd_engine *plain)
{
    trd_engine *both[] = {scanned, plain};
    test_batch b;
    same_view(trd_engine_params(scanned), trd_engine_params(plain)); /* drawn alike */
    for (uint64_t step = 0; step < 3; step++) {
        for (int e = 0; e < 2; e++) {
            if (step == 2) {
                OK(trd_engine_train_step(both[e], test_batch_fill(&b, 31)));
                continue;
            }
            OK(trd_engine_fwd_bwd(both[e], test_batch_fill(&b, 2 * step + 1)));
            OK(trd_engine_fwd_bwd(both[e], test_batch_fill(&b, 2 * step + 2)));
        }
        if (step < 2) same_view(trd_engine_gradients(scanned), trd_engine_gradients(plain));
        for (int e = 0; e < 2 && step < 2; e++) OK(trd_engine_update(both[e]));
        same_number("loss", test_metric(scanned, "loss"), test_metric(plain, "loss"));
        same_number("gradient norm", test_metric(scanned, "gradient_norm"),
                    test_metric(plain, "gradient_norm"));
        same_engines(scanned, plain);
    }
    same_forward(scanned, plain);
}

static void compare(const trd_engine_options *o)
{
    trd_engine *scanned = qwen3(*o, true), *plain = qwen3(*o, false);
    assert_true(scanned->layout[TRD__ROLE_PARAMS].count < plain->layout[TRD__ROLE_PARAMS].count);
    same_training(scanned, plain);
    OK(trd_engine_close(plain));
    OK(trd_engine_close(scanned));
}

static void every_family(void **state)
{
    (void)state;
    static const char *const families[][2] = {
        {"LlamaForCausalLM", "llama"}, {"Qwen2ForCausalLM", "qwen2"}, {"Qwen3ForCausalLM", "qwen3"}};
    for (int i = exact() ? 0 : 3; i < 6; i++) {
        trd_engine *engines[2];
        for (int scan = 0; scan < 2; scan++) {
            trd_engine_options o = exact() ? test_adamw() : test_options(); /* sgd makes no step of noise */
            trd_model *model = model_of(families[i / 2][0], families[i / 2][1], i % 2);
            o.scan_layers = scan == 1;
            OK(trd__engine_create_with_model(&o, model, &engines[scan]));
        }
        same_training(engines[1], engines[0]);
        for (int scan = 0; scan < 2; scan++) OK(trd_engine_close(engines[scan]));
    }
}

static void every_remat_policy(void **state)
{
    (void)state;
    test_cpu_only();
    for (int policy = 0; policy < 3; policy++) {
        trd_engine_options o = test_adamw();
        o.remat_policy = (trd_remat_policy)policy;
        o.dropout_rate = policy == 1 ? 0.2 : 0;
        compare(&o);
    }
}

static void dropout_has_the_masks_of_each_layer(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    o.dropout_rate = 0.3;
    o.optimizer.type = "muon"; /* a loop of its own in the update */
    compare(&o);
}

static void every_optimizer(void **state)
{
    (void)state;
    test_cpu_only();
    static const char *const types[] = {"sgd", "adamw", "adam_pax", "muon", "adafactor", "adafactor"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        trd_engine_options o = test_adamw();
        o.optimizer.type = types[i];
        o.optimizer.muon.weight_decay = 0.1;
        o.optimizer.adafactor.min_dim_size_to_factor = i == 4 ? 16 : 128;
        compare(&o);
    }
}

static void narrow_dtypes(void **state)
{
    (void)state;
    test_cpu_only();
    for (int i = 0; i < 4; i++) {
        trd_engine_options o = test_adamw();
        o.dtype = i & 1 ? TRD_BF16 : TRD_F32;
        o.grad_dtype = i & 2 ? TRD_BF16 : TRD_F32;
        o.weight_dtype = i == 3 ? TRD_BF16 : TRD_F32;
        o.optimizer.mu_dtype = i == 3 ? TRD_BF16 : TRD_F32;
        compare(&o);
    }
}

static void fused_and_unclipped(void **state)
{
    (void)state;
    test_cpu_only();
    trd_engine_options o = test_adamw();
    o.gradient_clipping_threshold = 0;
    o.skip_step_on_nonfinite = false; /* train_step then consumes its gradients */
    compare(&o);
    o.skip_step_on_spikes = true;
    o.gradient_clipping_threshold = 0.01;
    compare(&o);
    o.num_threads = 2;
    compare(&o);
}

static void every_diagnostic(void **state)
{
    (void)state;
    test_cpu_only();
    for (int i = 0; i < TRD_DIAGNOSTIC_COUNT; i++) {
        trd_engine_options o = test_adamw();
        o.diagnostics[i] = true;
        compare(&o);
    }
}

static void masks_and_frozen_layers(void **state)
{
    (void)state;
    static const char *const spared[] = {"norm", "layers\\.0\\.mlp", "layers\\.[12]\\.mlp"};
    static const char *const frozen[] = {"q_proj", "embed"};
    static const char *const some[] = {"layers\\.1\\.mlp"};
    trd_engine_options o = test_adamw();
    trd_engine *engine = NULL;
    o.optimizer.mask = spared;
    o.optimizer.mask_count = 3;
    o.freeze = frozen;
    o.freeze_count = 2;
    if (exact()) compare(&o);
    o.scan_layers = true;
    o.optimizer.mask = some;
    o.optimizer.mask_count = 1;
    assert_int_equal(trd__engine_create_with_model(&o, model_of("Qwen3ForCausalLM", "qwen3", true), &engine),
                     TRD_INVALID_ARGUMENT);
    expect_message("adamw_mask");
    expect_message("model.layers.1.mlp.gate_proj.weight");
    expect_message("set scan_layers: false");
    o.optimizer.mask_count = 0;
    o.freeze = some;
    o.freeze_count = 1;
    assert_int_equal(trd__engine_create_with_model(&o, model_of("Qwen3ForCausalLM", "qwen3", true), &engine),
                     TRD_INVALID_ARGUMENT);
    expect_message("freeze");
    expect_message("set scan_layers: false");
}

static void no_layers_no_scan(void **state)
{
    (void)state;
    const test_leaf leaf = {"w", 4, 0};
    trd_engine_options o = test_options();
    trd_engine *engine = NULL;
    o.scan_layers = true;
    assert_int_equal(trd__engine_create_with_model(&o, test_toy(&leaf, 1), &engine), TRD_UNSUPPORTED);
    expect_message("no layers to scan");
}

/* A write through the view of one layer's weight changes that layer and no other. */
static void views_write_one_layer(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *scanned = qwen3(o, true), *plain = qwen3(o, false);
    trd_engine *both[] = {scanned, plain};
    float values[16 * 24];
    for (int i = 0; i < 16 * 24; i++) values[i] = (float)i;
    for (int e = 0; e < 2; e++) {
        trd_view params = trd_engine_params(both[e]);
        int up = trd_view_find(params, "model.layers.1.mlp.up_proj.weight");
        trd_handle before = trd_view_handle(params, up);
        OK(trd_view_write(params, up, values));
        assert_int_equal(trd_handle_read(before, values), TRD_DELETED);
    }
    assert_true(test_float(trd_engine_params(scanned), "model.layers.1.mlp.up_proj.weight", 5) == 5);
    same_engines(scanned, plain);
    OK(trd_engine_close(plain));
    OK(trd_engine_close(scanned));
}

/* -- checkpoints and files -- */

static trd_engine_options saving(void **state, const char *name)
{
    static char path[2][600];
    static int which;
    which = !which;
    snprintf(path[which], sizeof path[which], "%s/%s", (const char *)*state, name);
    trd_engine_options o = exact() ? test_adamw() : test_options();
    o.checkpoint_directory = path[which];
    o.dropout_rate = 0.1;
    return o;
}

static void feed(trd_engine *engine, uint64_t begin, uint64_t end)
{
    test_batch b;
    for (uint64_t i = begin; i < end; i++) OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, i)));
}

static void same_files(const trd_engine_options *a, const trd_engine_options *b, const char *name)
{
    size_t sizes[2];
    unsigned char *data[2];
    const trd_engine_options *o[] = {a, b};
    for (int i = 0; i < 2; i++)
        data[i] = scratch_read(scratch_path(o[i]->checkpoint_directory, name), &sizes[i]);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(data[0], data[1], sizes[0]);
    free(data[1]);
    free(data[0]);
}

/* Saves in the middle of a step, goes on in the other form, and compares with a run that never stopped. */
static void resume_in_the_other_form(void **state, bool scan)
{
    trd_engine_options o = saving(state, scan ? "scanned" : "plain"), whole = o;
    whole.checkpoint_directory = NULL;
    trd_engine *engine = qwen3(o, scan), *never_stopped = qwen3(whole, scan);
    feed(engine, 1, 3);
    OK(trd_engine_update(engine));
    feed(engine, 3, 4);
    OK(trd_engine_close(engine));
    engine = qwen3(o, !scan);
    OK(trd_engine_restore(engine, -1, NULL));
    feed(never_stopped, 1, 3);
    OK(trd_engine_update(never_stopped));
    feed(never_stopped, 3, 4);
    same_view(trd_engine_gradients(engine), trd_engine_gradients(never_stopped));
    same_engines(engine, never_stopped);
    trd_engine *both[] = {engine, never_stopped};
    for (int e = 0; e < 2; e++) {
        feed(both[e], 4, 5);
        OK(trd_engine_update(both[e]));
    }
    same_engines(engine, never_stopped);
    same_number("loss", test_metric(engine, "loss"), test_metric(never_stopped, "loss"));
    OK(trd_engine_close(never_stopped));
    OK(trd_engine_close(engine));
}

static void checkpoints_go_either_way(void **state)
{
    resume_in_the_other_form(state, true);
    resume_in_the_other_form(state, false);
}

static void checkpoints_are_the_same_files(void **state)
{
    trd_engine_options one = saving(state, "one"), other = saving(state, "other");
    trd_engine *engines[] = {qwen3(one, true), qwen3(other, false)};
    for (int e = 0; e < 2; e++) {
        feed(engines[e], 1, 3);
        OK(trd_engine_save(engines[e], NULL, true, NULL));
        OK(trd_engine_update(engines[e]));
        OK(trd_engine_save(engines[e], NULL, true, NULL));
        OK(trd_engine_export(
            engines[e], scratch_path(e ? other.checkpoint_directory : one.checkpoint_directory, "exported"),
            TRD_F32));
        OK(trd_engine_close(engines[e]));
    }
    if (!exact()) return;
    same_files(&one, &other, "step-1/tensors.safetensors");
    same_files(&one, &other, "exported/model.safetensors");
}

/* Weights of a hub folder fill stacks. */
static void files_load_into_stacks(void **state)
{
    trd_engine_options o = test_adamw();
    trd_engine *engine = qwen3(o, false), *loaded = NULL;
    const char *folder = scratch_path(*state, "hub");
    feed(engine, 1, 3);
    OK(trd_engine_update(engine));
    OK(trd_engine_export(engine, folder, TRD_F32));
    o.load_parameters_path = folder;
    o.scan_layers = true;
    OK(trd_engine_create(&o, &loaded));
    same_view(trd_engine_params(loaded), trd_engine_params(engine));
    OK(trd_engine_close(loaded));
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family),
        cmocka_unit_test(every_remat_policy),
        cmocka_unit_test(dropout_has_the_masks_of_each_layer),
        cmocka_unit_test(every_optimizer),
        cmocka_unit_test(narrow_dtypes),
        cmocka_unit_test(fused_and_unclipped),
        cmocka_unit_test(every_diagnostic),
        cmocka_unit_test(masks_and_frozen_layers),
        cmocka_unit_test(no_layers_no_scan),
        cmocka_unit_test(views_write_one_layer),
        cmocka_unit_test(checkpoints_go_either_way),
        cmocka_unit_test(checkpoints_are_the_same_files),
        cmocka_unit_test(files_load_into_stacks),
    };
    return cmocka_run_group_tests_name("engine/scan", tests, scratch_create, scratch_remove);
}
