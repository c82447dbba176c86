/* Two tables: architectures, and tensor names (those of convert_hf_to_gguf.py in llama.cpp). Invariant: the
 * map from GGUF to hub names is one to one. */
#include "checkpoint/gguf_names.h"

#include <stdio.h>
#include <string.h>

static const trd__gguf_architecture architectures[] = {
    {"llama", "LlamaForCausalLM", true},
    {"qwen2", "Qwen2ForCausalLM", false},
    {"qwen3", "Qwen3ForCausalLM", false},
};

static const struct {
    const char *gguf, *hub;
} top[] = {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}},
  in_layer[] = {
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"},
};

const trd__gguf_architecture *trd__gguf_architecture_of(const trd__gguf *file)
{
    trd__gguf_string name = {"", 0};
    if (trd__gguf_opt_string(file, "general.architecture", &name)) return NULL;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (strlen(architectures[i].name) == name.bytes &&
            memcmp(architectures[i].name, name.text, name.bytes) == 0)
            return &architectures[i];
    return NULL;
}

/* Length of the stem before ".weight" or ".bias", 0 for other suffixes. */
static size_t stem_length(const char *name, const char **suffix)
{
    *suffix = strrchr(name, '.');
    if (!*suffix || (strcmp(*suffix, ".weight") != 0 && strcmp(*suffix, ".bias") != 0)) return 0;
    return (size_t)(*suffix - name);
}

bool trd__gguf_hub_name(const char *name, char *out)
{
    const char *suffix;
    size_t stem = stem_length(name, &suffix);
    if (stem == 0) return false;
    for (size_t i = 0; i < sizeof top / sizeof *top; i++)
        if (strlen(top[i].gguf) == stem && memcmp(top[i].gguf, name, stem) == 0) {
            snprintf(out, TRD__GGUF_NAME_BYTES, "%s%s", top[i].hub, suffix);
            return true;
        }
    int layer, used = 0;
    if (sscanf(name, "blk.%9d.%n", &layer, &used) != 1 || used == 0 || layer < 0 || (size_t)used >= stem)
        return false;
    size_t length = stem - (size_t)used;
    for (size_t i = 0; i < sizeof in_layer / sizeof *in_layer; i++)
        if (strlen(in_layer[i].gguf) == length && memcmp(in_layer[i].gguf, name + used, length) == 0) {
            snprintf(out, TRD__GGUF_NAME_BYTES, "model.layers.%d.%s%s", layer, in_layer[i].hub, suffix);
            return true;
        }
    return false;
}

bool trd__gguf_permuted_name(const char *hub_name, bool *key)
{
    *key = strstr(hub_name, ".self_attn.k_proj.") != NULL;
    return *key || strstr(hub_name, ".self_attn.q_proj.") != NULL;
}

int64_t trd__gguf_permuted_row(int64_t row, int64_t head_dim)
{
    int64_t in_head = row % head_dim, half = head_dim / 2;
    return row - in_head + 2 * (in_head % half) + in_head / half;
}
