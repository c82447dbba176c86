/* The dense pre-norm decoder that Llama, Qwen2 and Qwen3 share: token embedding, blocks of attention and
 * SwiGLU, final norm, output head tied to the embedding or not. What tells the families apart (biases, query
 * and key norms) are fields of the options, set by each model's own file. */
#ifndef TRD_NN_MODELS_DECODER_H
#define TRD_NN_MODELS_DECODER_H

#include "nn/model.h"

/* X(field, hub name, present, init, rows, columns, row axis, column axis): the weights of one block, in
 * declaration order. Columns 0: a vector. Where it is expanded, o is the trd__decoder, and hidden, mlp,
 * head, q and kv (the latter two of all heads together) are sizes. */
#define TRD__BLOCK_WEIGHTS(X)                                                                                \
    X(input_layernorm, "input_layernorm.weight", true, ONES, hidden, 0, "norm", NULL)                        \
    X(q_proj, "self_attn.q_proj.weight", true, NORMAL, q, hidden, "q_heads", "embed")                        \
    X(q_bias, "self_attn.q_proj.bias", o->qkv_bias, ZEROS, q, 0, "q_heads", NULL)                            \
    X(k_proj, "self_attn.k_proj.weight", true, NORMAL, kv, hidden, "kv_heads", "embed")                      \
    X(k_bias, "self_attn.k_proj.bias", o->qkv_bias, ZEROS, kv, 0, "kv_heads", NULL)                          \
    X(v_proj, "self_attn.v_proj.weight", true, NORMAL, kv, hidden, "kv_heads", "embed")                      \
    X(v_bias, "self_attn.v_proj.bias", o->qkv_bias, ZEROS, kv, 0, "kv_heads", NULL)                          \
    X(o_proj, "self_attn.o_proj.weight", true, NORMAL, hidden, q, "embed", "heads")                          \
    X(o_bias, "self_attn.o_proj.bias", o->o_bias, ZEROS, hidden, 0, "embed", NULL)                           \
    X(q_norm, "self_attn.q_norm.weight", o->qk_norm, ONES, head, 0, "kv", NULL)                              \
    X(k_norm, "self_attn.k_norm.weight", o->qk_norm, ONES, head, 0, "kv", NULL)                              \
    X(post_attention_layernorm, "post_attention_layernorm.weight", true, ONES, hidden, 0, "norm", NULL)      \
    X(gate_proj, "mlp.gate_proj.weight", true, NORMAL, mlp, hidden, "mlp", "embed")                          \
    X(gate_bias, "mlp.gate_proj.bias", o->mlp_bias, ZEROS, mlp, 0, "mlp", NULL)                              \
    X(up_proj, "mlp.up_proj.weight", true, NORMAL, mlp, hidden, "mlp", "embed")                              \
    X(up_bias, "mlp.up_proj.bias", o->mlp_bias, ZEROS, mlp, 0, "mlp", NULL)                                  \
    X(down_proj, "mlp.down_proj.weight", true, NORMAL, hidden, mlp, "embed", "mlp")                          \
    X(down_bias, "mlp.down_proj.bias", o->mlp_bias, ZEROS, hidden, 0, "embed", NULL)

/* Parameter numbers of one block; -1: the model has no such weight. */
typedef struct trd__block {
#define TRD__BLOCK_FIELD(field, ...) int field;
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
