/* What the tests of generation share: small random models of every family behind an engine, a full forward
 * pass to compare with, and prompts of different lengths. */
#ifndef TESTS_GENERATE_FIXTURE_H
#define TESTS_GENERATE_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/internal.h"
#include "generate/generator.h"
#include "support/engine.h"

enum { ROWS = 3, LENGTH = 48, VOCAB = 50, POSITIONS = 64 };

typedef struct family {
    const char *class_name, *type;
    bool scan; /* with scanned layers */
} family;
static const family families[] = {{"LlamaForCausalLM", "llama", false},
                                  {"Qwen2ForCausalLM", "qwen2", false},
                                  {"Qwen3ForCausalLM", "qwen3", false},
                                  {"Qwen3ForCausalLM", "qwen3", true}};
enum { FAMILIES = sizeof families / sizeof *families };

static inline trd_engine *fixture_engine(const family *f, trd_dtype dtype, const char *checkpoints)
{
    char config[1024];
    trd_model *model;
    trd_engine *engine;
    int length = snprintf(config, sizeof config,
                          "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"hidden_size\": 32,"
                          " \"intermediate_size\": 48, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
                          " \"num_key_value_heads\": 2, \"head_dim\": 8, \"vocab_size\": %d,"
                          " \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": %d, \"rope_theta\": 10000.0,"
                          " \"tie_word_embeddings\": true, \"initializer_range\": 0.2}",
                          f->class_name, f->type, VOCAB, POSITIONS);
    OK(trd_model_from_json(config, (size_t)length, &model));
    trd_engine_options o = test_options();
    o.rows = ROWS;
    o.length = LENGTH;
    o.num_threads = 2;
    o.dtype = o.weight_dtype = dtype;
    o.scan_layers = f->scan;
    o.checkpoint_directory = checkpoints;
    o.checkpoint_period = 1;
    OK(trd__engine_create_with_model(&o, model, &engine));
    return engine;
}

static inline trd_generator *fixture_generator(trd_engine *engine, int rows, int chunk)
{
    trd_generator_options o = trd_generator_defaults();
    trd_generator *g;
    o.rows = rows;
    o.length = LENGTH;
    o.prefill_chunk = chunk;
    OK(trd_generator_from_engine(engine, &o, &g));
    return g;
}

/* Reproducible token ids. */
static inline void fixture_tokens(int32_t *ids, int count, uint64_t seed)
{
    for (int i = 0; i < count; i++) ids[i] = (int32_t)trd__rng_below(seed, 0, (uint64_t)i, VOCAB);
}

static inline trd_value fixture_forward(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                        void *user)
{
    (void)user;
    return trd_model_logits(b, model, in);
}

/* Logits (ROWS, LENGTH, VOCAB) of token rows (ROWS, LENGTH); free with free. */
static inline float *fixture_logits(trd_engine *engine, const int32_t *tokens)
{
    size_t bytes = sizeof(float) * ROWS * LENGTH * VOCAB;
    float *logits = malloc(bytes);
    trd_batch batch = {.rows = ROWS, .length = LENGTH, .token_ids = tokens};
    assert_non_null(logits);
    OK(trd_engine_fwd_only(engine, fixture_forward, NULL, &batch, logits, bytes));
    return logits;
}

/* Largest difference over the largest value. */
static inline double fixture_distance(const float *expected, const float *found, int count)
{
    double difference = 0, largest = 1e-30;
    for (int i = 0; i < count; i++) {
        if (!isfinite(found[i])) return INFINITY;
        if (fabs((double)expected[i]) > largest) largest = fabs((double)expected[i]);
        if (fabs((double)expected[i] - (double)found[i]) > difference)
            difference = fabs((double)expected[i] - (double)found[i]);
    }
    return difference / largest;
}

#endif
