/* Engines, batches and state reading for the engine's tests. */
#include "support/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/shape.h"
#include "engine/internal.h"
#include "support/mesh.h"
#include "support/program.h"

void test_ok(trd_status status, const char *call, const char *file, int line)
{
    if (status == TRD_OK) return;
    print_error("%s: %s: %s\n", call, trd_status_text(status), trd_error_message());
    _fail(file, line);
}

trd_engine_options test_options(void)
{
    trd_engine_options o = trd_engine_defaults();
    o.backend = test_backend_name();
    o.compile_cache_directory = getenv("TRD_TEST_CACHE");
    o.rows = TEST_ROWS;
    o.length = TEST_LENGTH;
    o.steps = 100;
    o.num_threads = 1;
    o.optimizer.type = "sgd";
    o.schedule =
        (trd_schedule_options){.type = TRD_SCHEDULE_CONSTANT, .learning_rate = 0.1, .schedule_steps = 100};
    o.gradient_clipping_threshold = 0;
    o.init_weights_seed = 7;
    const trd__placement *mesh = test_placement();
    if (mesh) {
        o.mesh.ici = (trd_mesh_axes){.data = (int)mesh->size[TRD__MESH_DATA],
                                     .fsdp = (int)mesh->size[TRD__MESH_FSDP],
                                     .tensor = (int)mesh->size[TRD__MESH_TENSOR]};
        o.mesh.indivisible_batch = TRD_INDIVISIBLE_REPLICATE;
        o.mesh.shard_mode = mesh->explicit_mode ? TRD_SHARD_EXPLICIT : TRD_SHARD_AUTO;
    }
    return o;
}

trd_engine_options test_adamw(void)
{
    trd_engine_options o = test_options();
    o.optimizer.type = "adamw";
    o.schedule.learning_rate = 0.01;
    o.gradient_clipping_threshold = 1.0;
    return o;
}

trd_model *test_llama(void)
{
    return test_llama_of(TEST_VOCAB);
}

trd_model *test_llama_of(int vocab)
{
    static const char format[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 16,"
        " \"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
        " \"num_key_value_heads\": 1, \"head_dim\": 8, \"vocab_size\": %d, \"rms_norm_eps\": 1e-5,"
        " \"max_position_embeddings\": 64, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true,"
        " \"initializer_range\": 0.2}";
    char config[sizeof format + 16];
    trd_model *model = NULL;
    snprintf(config, sizeof config, format, vocab);
    OK(trd_model_from_json(config, strlen(config), &model));
    return model;
}

trd_engine *test_engine(const trd_engine_options *options)
{
    trd_engine *engine = NULL;
    OK(trd__engine_create_with_model(options, test_llama(), &engine));
    return engine;
}

const trd_batch *test_batch_fill(test_batch *b, uint64_t seed)
{
    for (int r = 0; r < TEST_ROWS; r++) {
        int first = 3 + (int)trd__rng_below(seed, 100, (uint64_t)r, 4); /* length of the first segment */
        int end = TEST_LENGTH - (int)trd__rng_below(seed, 101, (uint64_t)r, 3);
        for (int t = 0; t < TEST_LENGTH; t++) {
            int i = r * TEST_LENGTH + t;
            b->tokens[i] = (int32_t)trd__rng_below(seed, 0, (uint64_t)i, TEST_VOCAB);
            b->segments[i] = t < first ? 1 : t < end ? 2 : 0;
            b->weights[i] = trd__rng_below(seed, 1, (uint64_t)i, 4) ? 1.0f : 0.0f;
        }
    }
    b->batch = (trd_batch){.rows = TEST_ROWS,
                           .length = TEST_LENGTH,
                           .token_ids = b->tokens,
                           .segment_ids = b->segments,
                           .loss_weights = b->weights,
                           .position = seed};
    return &b->batch;
}

static trd_status no_keys(const trd_model *model, trd__json_writer *writer)
{
    (void)model;
    (void)writer;
    return TRD_OK;
}

trd_model *test_toy(const test_leaf *leaves, int count)
{
    static const trd__model_type type = {.name = "toy", .class_name = "Toy", .write = no_keys};
    trd__arena *arena = trd__arena_create();
    assert_non_null(arena);
    trd_model *model = trd__arena_alloc(arena, 1, sizeof *model);
    assert_non_null(model);
    *model = (trd_model){.type = &type, .arena = arena, .info = {.architecture = "toy", .vocab = TEST_VOCAB}};
    for (int i = 0; i < count; i++) {
        trd__parameter p = {.name = leaves[i].name,
                            .shape = TRD__SHAPE(leaves[i].size),
                            .init = TRD__INIT_ONES,
                            .flags = leaves[i].flags};
        int index;
        OK(trd__model_declare(model, &p, &index));
    }
    return model;
}

static size_t entry_size(trd_view view, int i)
{
    trd_array array = trd_view_describe(view, i);
    return (size_t)trd__shape_count(&array.shape) * trd_dtype_bytes(array.dtype);
}

unsigned char *test_state(trd_view view, size_t *bytes)
{
    size_t total = 0, at = 0;
    for (int i = 0; i < trd_view_count(view); i++) total += entry_size(view, i);
    unsigned char *state = malloc(total + 1);
    assert_non_null(state);
    for (int i = 0; i < trd_view_count(view); i++) {
        OK(trd_view_read(view, i, state + at));
        at += entry_size(view, i);
    }
    if (bytes) *bytes = total;
    return state;
}

void test_same_state(trd_view view, const unsigned char *expected)
{
    size_t bytes;
    unsigned char *now = test_state(view, &bytes);
    assert_memory_equal(now, expected, bytes);
    free(now);
}

void test_expect_same(trd_engine *a, trd_engine *b)
{
    unsigned char *params = test_state(trd_engine_params(b), NULL);
    unsigned char *optimizer = test_state(trd_engine_optimizer_state(b), NULL);
    test_same_state(trd_engine_params(a), params);
    test_same_state(trd_engine_optimizer_state(a), optimizer);
    free(params);
    free(optimizer);
}

static double find_metric(const trd_step_metrics *metrics, const char *name)
{
    for (int i = 0; i < metrics->count; i++)
        if (strcmp(metrics->metrics[i].name, name) == 0) return metrics->metrics[i].value;
    fail_msg("no metric \"%s\" in step %lld", name, (long long)metrics->step);
    return 0;
}

double test_metric(trd_engine *engine, const char *name)
{
    trd_step_metrics metrics;
    OK(trd_engine_get_metrics(engine, false, &metrics));
    return find_metric(&metrics, name);
}

double test_eval_metric(trd_engine *engine, const char *name)
{
    trd_step_metrics metrics;
    OK(trd_engine_get_eval_metrics(engine, &metrics));
    return find_metric(&metrics, name);
}

static int find_entry(trd_view view, const char *name, trd_dtype dtype)
{
    int entry = trd_view_find(view, name);
    if (entry < 0) fail_msg("no entry \"%s\"", name);
    assert_int_equal(trd_view_describe(view, entry).dtype, dtype);
    return entry;
}

float test_float(trd_view view, const char *name, size_t i)
{
    int entry = find_entry(view, name, TRD_F32);
    float *values = malloc(entry_size(view, entry));
    assert_non_null(values);
    OK(trd_view_read(view, entry, values));
    float value = values[i];
    free(values);
    return value;
}

double test_double(trd_view view, const char *name)
{
    double value;
    OK(trd_view_read(view, find_entry(view, name, TRD_F64), &value));
    return value;
}
