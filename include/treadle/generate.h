/* Text generation: a model's weights with a key-value cache, and sampling on the host.
 *
 * A generator runs up to `rows` prompts of different lengths together. Prompts are read in chunks; then every
 * row gives one token at a time. It works on token ids; the tokenizer and its chat template are the caller's.
 * Thread-safety: one thread at a time per generator, and, when it shares an engine's weights, per engine. */
#ifndef TREADLE_GENERATE_H
#define TREADLE_GENERATE_H

#include <treadle/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opaque: trd_generator_open or trd_generator_from_engine makes one, trd_generator_close frees it. */
typedef struct trd_generator trd_generator;

/* Sizes and types of a generator. */
typedef struct trd_generator_options {
    int rows;            /* B: prompts that run together */
    int64_t length;      /* most tokens of a row, prompt included; 0 or more than the model allows: that */
    int prefill_chunk;   /* most prompt tokens of a row that are read at once */
    trd_dtype dtype;     /* weights, cache and compute: float32 or bfloat16 */
    int num_threads;     /* 0: chosen */
    const char *backend; /* NULL: cpu */
    const char *plugin_path; /* of a backend that opens a plugin; NULL: it looks by itself */
    trd_log_sink log;        /* where log lines go */
} trd_generator_options;

/* One row as long as the model allows, float32, threads as chosen. */
TRD_API trd_generator_options trd_generator_defaults(void);

/* Loads path: a Hugging Face folder, a .safetensors or .gguf file, or one checkpoint of a run
 * ("out/run/checkpoints/step-12"). Options stay the caller's. Errors: TRD_NOT_FOUND, TRD_CORRUPT,
 * TRD_UNSUPPORTED name the file; TRD_SHAPE the tensor. */
TRD_API trd_status trd_generator_open(const char *path, const trd_generator_options *options,
                                      trd_generator **generator);
/* Shares the engine's backend and its parameters as they are at each call (updates already queued come
 * first); no weight is copied. The engine must outlive the generator. dtype, num_threads and backend of the
 * options are ignored: compute and cache have the parameters' dtype. */
TRD_API trd_status trd_generator_from_engine(trd_engine *engine, const trd_generator_options *options,
                                             trd_generator **generator);
TRD_API void trd_generator_close(trd_generator *generator);                   /* NULL is fine */
TRD_API const trd_model *trd_generator_model(const trd_generator *generator); /* the generator's own */

/* How the next token is chosen: logits / temperature, then the top_k largest, then the smallest set of most
 * likely tokens whose probabilities reach top_p (Holtzman et al. 2020), then a draw from what is left. */
typedef struct trd_sampling {
    double temperature; /* 0: greedy, the largest logit (of equal ones the lowest id) */
    int64_t top_k;      /* 0: off */
    double top_p;       /* in (0, 1]; 1: off */
    uint64_t seed;      /* token t of prompt i depends on (seed, i, t) and its logits alone */
} trd_sampling;

/* The token ids to go on from; they stay the caller's. */
typedef struct trd_prompt {
    const int32_t *ids; /* inside the vocabulary */
    int64_t count;      /* at least 1 */
} trd_prompt;

/* How each prompt is continued and when it ends. */
typedef struct trd_generate_options {
    trd_sampling sampling;   /* how tokens are chosen */
    int64_t max_tokens;      /* per prompt */
    const int32_t *stop_ids; /* a prompt ends with any of them */
    int stop_count;          /* of stop_ids */
    /* Called for every new token, a stop id included; returning false ends that prompt. May be NULL. */
    bool (*on_token)(void *user, int64_t prompt, int32_t id);
    void *user; /* passed to on_token */
} trd_generate_options;

/* Greedy, 128 tokens, no stop ids. */
TRD_API trd_generate_options trd_generate_defaults(void);

/* Why a prompt ended. */
typedef enum trd_finish {
    TRD_FINISH_LENGTH,   /* max_tokens */
    TRD_FINISH_STOP,     /* the last id is a stop id */
    TRD_FINISH_CANCELLED /* on_token returned false */
} trd_finish;

/* The continuation of one prompt; free with trd_generated_free. */
typedef struct trd_generated {
    int32_t *ids;      /* new tokens only */
    int64_t count;     /* of ids */
    trd_finish finish; /* why it ended */
} trd_generated;

/* Counts and times of one call of trd_generate. */
typedef struct trd_generate_stats {
    int64_t prompt_tokens;    /* read */
    int64_t generated_tokens; /* chosen */
    uint64_t prefill_ns;      /* time spent reading prompts */
    uint64_t decode_ns;       /* time spent generating */
} trd_generate_stats;

/* Generates for count prompts, `rows` of them at a time, into results (count elements; free each with
 * trd_generated_free). stats may be NULL. Everything is checked before anything runs: TRD_INVALID_ARGUMENT
 * for an empty prompt, a token id outside the vocabulary, or a prompt that leaves no room for max_tokens. */
TRD_API trd_status trd_generate(trd_generator *generator, const trd_prompt *prompts, int64_t count,
                                const trd_generate_options *options, trd_generated *results,
                                trd_generate_stats *stats);
TRD_API void trd_generated_free(trd_generated *result); /* a zeroed result is fine */

#ifdef __cplusplus
}
#endif
#endif
