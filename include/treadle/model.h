/* Models: an architecture, its options and its table of parameters. A model holds no weights and no state; it
 * builds graph. Known architectures: llama (SmolLM2, Llama 3.x), qwen2 (Qwen2, Qwen2.5), qwen3 (dense).
 *
 * A model is immutable: any number of threads may use it. Parameter names are those of the hub checkpoints.
 */
#ifndef TREADLE_MODEL_H
#define TREADLE_MODEL_H

#include <treadle/graph.h>
#include <treadle/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opaque: trd_model_from_json or trd_model_from_preset makes one, trd_model_free frees it. */
typedef struct trd_model trd_model;
/* Opaque: the payload as graph inputs, handed to a loss while it is traced. */
typedef struct trd_inputs trd_inputs;

/* From the text of a Hugging Face config.json (both rope_theta / rope_scaling and rope_parameters are read).
 * TRD_UNSUPPORTED names the architecture found and those known; TRD_INVALID_ARGUMENT names the key. */
TRD_API trd_status trd_model_from_json(const char *json, size_t bytes, trd_model **model);
/* Sizes that replace a preset's; 0 keeps it. */
typedef struct trd_model_overrides {
    int64_t layers;       /* base_num_decoder_layers */
    int64_t hidden;       /* base_emb_dim: C */
    int64_t intermediate; /* base_mlp_dim */
    int64_t heads;        /* base_num_query_heads */
    int64_t kv_heads;     /* base_num_kv_heads */
    int64_t head_dim;     /* head_dim: D */
    int64_t vocab;        /* vocab_size: V */
} trd_model_overrides;
/* A preset by its config name ("qwen3-0.6b", "smollm2-135m", ...); an unknown name suggests the nearest.
 * overrides may be NULL. */
TRD_API trd_status trd_model_from_preset(const char *name, const trd_model_overrides *overrides,
                                         trd_model **model);
TRD_API void trd_model_free(trd_model *model); /* NULL is fine */
/* Preset number i's name, NULL past the last. */
TRD_API const char *trd_model_preset_name(int i);

/* config.json text for an export; free with trd_text_free. torch_dtype is a hub name ("float32", "bfloat16").
 */
TRD_API trd_status trd_model_to_json(const trd_model *model, const char *torch_dtype, char **json);

/* A model's sizes. */
typedef struct trd_model_info {
    const char *architecture; /* "llama", "qwen2", "qwen3" */
    int64_t layers;           /* decoder blocks */
    int64_t hidden;           /* C */
    int64_t heads;            /* of queries */
    int64_t kv_heads;         /* of keys and values */
    int64_t head_dim;         /* D */
    int64_t intermediate;     /* width inside the feed-forward block */
    int64_t vocab;            /* V */
    int64_t max_positions;    /* tokens of the longest sequence it was made for */
    int64_t parameters;       /* elements, tied weights once */
    bool tied;                /* output head shares the embedding */
    int32_t bos;              /* -1: none in the config */
    int32_t eos;              /* -1: none in the config */
} trd_model_info;
/* The architecture's name is static. */
TRD_API trd_model_info trd_model_describe(const trd_model *model);

/* What a loss sees of the payload. Names: "token_ids", "segment_ids", "positions" (all (B, T) i32),
 * "loss_weights" ((B, T) f32, aligned to the predicted token, 0 on first tokens of segments and on padding),
 * and every extra array. Asking for a name that the payload lacks fails the builder with that name. */
TRD_API trd_value trd_inputs_get(trd_builder *b, const trd_inputs *in, const char *name);
/* Whether the payload has an input of that name. */
TRD_API bool trd_inputs_has(const trd_inputs *in, const char *name);
/* A compile-time constant of the payload, or otherwise when there is none of that name. */
TRD_API double trd_inputs_constant(const trd_inputs *in, const char *name, double otherwise);

/* Final hidden states after the last norm: (B, T, C) in the compute dtype. */
TRD_API trd_value trd_model_hidden(trd_builder *b, const trd_model *model, const trd_inputs *in);
/* log p(token t | earlier tokens of its segment): (B, T) f32; 0 at a segment's first token, on padding, and
 * where weights (B, T) f32 is 0 (such rows cost nothing on the CPU). weights null: every predicted token. */
TRD_API trd_value trd_model_token_logprobs(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                           trd_value weights);
/* The same, and in log_sums (may be NULL) the log-sum-exp of the logits that predict each token: (B, T) f32,
 * 0 where the log-probability is. A loss that depends on log_sums forms the logits twice. */
TRD_API trd_value trd_model_token_statistics(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                             trd_value weights, trd_value *log_sums);
/* Logits (B, T, V) f32 of all rows: for generation and small models. */
TRD_API trd_value trd_model_logits(trd_builder *b, const trd_model *model, const trd_inputs *in);

#ifdef __cplusplus
}
#endif
#endif
