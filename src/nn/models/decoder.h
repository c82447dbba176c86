/* The dense pre-norm decoder that Llama, Qwen2 and Qwen3 share: token embedding, blocks of attention and
 * SwiGLU, final norm, output head tied to the embedding or not. What tells the families apart (biases, query
 * and key norms) are fields of the options, set by each model's own file. */
#ifndef TRD_NN_MODELS_DECODER_H
#define TRD_NN_MODELS_DECODER_H

#include "nn/model.h"

/* X(field, hub name): the weights of one block, in declaration order. */
#define TRD__BLOCK_WEIGHTS(X)                                                                                \
    X(input_layernorm, "input_layernorm.weight")                                                             \
    X(q_proj, "self_attn.q_proj.weight")                                                                     \
    X(q_bias, "self_attn.q_proj.bias")                                                                       \
    X(k_proj, "self_attn.k_proj.weight")                                                                     \
    X(k_bias, "self_attn.k_proj.bias")                                                                       \
    X(v_proj, "self_attn.v_proj.weight")                                                                     \
    X(v_bias, "self_attn.v_proj.bias")                                                                       \
    X(o_proj, "self_attn.o_proj.weight")                                                                     \
    X(o_bias, "self_attn.o_proj.bias")                                                                       \
    X(q_norm, "self_attn.q_norm.weight")                                                                     \
    X(k_norm, "self_attn.k_norm.weight")                                                                     \
    X(post_attention_layernorm, "post_attention_layernorm.weight")                                           \
    X(gate_proj, "mlp.gate_proj.weight")                                                                     \
    X(gate_bias, "mlp.gate_proj.bias")                                                                       \
    X(up_proj, "mlp.up_proj.weight")                                                                         \
    X(up_bias, "mlp.up_proj.bias")                                                                           \
    X(down_proj, "mlp.down_proj.weight")                                                                     \
    X(down_bias, "mlp.down_proj.bias")

/* Parameter numbers of one block; -1: the model has no such weight. */
typedef struct trd__block {
#define TRD__BLOCK_FIELD(field, name) int field;
    TRD__BLOCK_WEIGHTS(TRD__BLOCK_FIELD)
#undef TRD__BLOCK_FIELD
} trd__block;

typedef struct trd__decoder {
    int64_t hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads;
    int64_t head_dim, vocab_size, max_position_embeddings;
    double rms_norm_eps, initializer_range;
    bool tie_word_embeddings;
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    trd_rope_options rope;
    int embedding, norm, lm_head; /* parameter numbers; lm_head == embedding when tied */
    trd__block *blocks;
} trd__decoder;

/* Reads what all families have in common. The caller sets its defaults (biases, norms) before. */
trd_status trd__decoder_parse(trd_model *model, trd__json config);
trd_status trd__decoder_declare(trd_model *model);
trd_value trd__decoder_hidden(trd_builder *b, const trd_model *model, const trd_inputs *in);
trd_value trd__decoder_head(trd_builder *b, const trd_model *model, const trd_inputs *in);
trd_status trd__decoder_write(const trd_model *model, trd__json_writer *writer);

#endif
