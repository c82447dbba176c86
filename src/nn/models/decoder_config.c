/* config.json of the shared dense decoder, read and written. Both spellings of the rotary settings are read:
 * rope_theta + rope_scaling (most hub checkpoints) and rope_parameters (transformers 5). The latter is
 * written; checkpoint/hub_config.c adds the former for other readers. */
#include <string.h>

#include "nn/models/decoder.h"

enum { MOST_LAYERS = 1024 }; /* a damaged number must not start a graph of millions of nodes */

static trd_status positive(trd__json config, const char *key, int64_t *value)
{
    TRD_TRY(trd__json_opt_i64(config, key, value));
    if (*value < 1 || *value > INT32_MAX)
        return trd__json_fail(config, TRD_INVALID_ARGUMENT,
                              "%s: expected a whole number from 1, found %lld%s", key, (long long)*value,
                              *value == 0 ? " (missing)" : "");
    return TRD_OK;
}

static trd_status parse_scaling(trd__json scaling, trd_rope_options *rope)
{
    const char *type = "default";
    TRD_TRY(trd__json_opt_string(scaling, "type", &type));
    TRD_TRY(trd__json_opt_string(scaling, "rope_type", &type));
    TRD_TRY(trd__json_opt_f64(scaling, "rope_theta", &rope->theta));
    TRD_TRY(trd__json_opt_f64(scaling, "partial_rotary_factor", &rope->partial_rotary_factor));
    if (strcmp(type, "default") == 0) return TRD_OK;
    bool llama3 = strcmp(type, "llama3") == 0;
    if (!llama3 && strcmp(type, "linear") != 0)
        return trd__json_fail(scaling, TRD_UNSUPPORTED,
                              "rope_type \"%s\" is not supported; known: default, linear, llama3", type);
    rope->scaling = llama3 ? TRD_ROPE_LLAMA3 : TRD_ROPE_LINEAR;
    TRD_TRY(trd__json_get_f64(scaling, "factor", &rope->factor));
    if (!(rope->factor >= 1))
        return trd__json_fail(scaling, TRD_INVALID_ARGUMENT, "factor: expected at least 1, found %g",
                              rope->factor);
    if (!llama3) return TRD_OK;
    TRD_TRY(trd__json_get_f64(scaling, "low_freq_factor", &rope->low_freq_factor));
    TRD_TRY(trd__json_get_f64(scaling, "high_freq_factor", &rope->high_freq_factor));
    TRD_TRY(trd__json_get_f64(scaling, "original_max_position_embeddings",
                              &rope->original_max_position_embeddings));
    if (!(rope->high_freq_factor > rope->low_freq_factor))
        return trd__json_fail(scaling, TRD_INVALID_ARGUMENT,
                              "high_freq_factor must be greater than low_freq_factor, found %g and %g",
                              rope->high_freq_factor, rope->low_freq_factor);
    return TRD_OK;
}

static trd_status parse_rope(trd__json config, trd_rope_options *rope)
{
    rope->theta = 10000;
    TRD_TRY(trd__json_opt_f64(config, "rope_theta", &rope->theta));
    TRD_TRY(trd__json_opt_f64(config, "partial_rotary_factor", &rope->partial_rotary_factor));
    const char *const keys[] = {"rope_scaling", "rope_parameters"};
    for (int i = 0; i < 2; i++) {
        trd__json scaling = trd__json_find(config, keys[i]);
        trd__json_kind kind = trd__json_kind_of(scaling);
        if (kind == TRD__JSON_OBJECT)
            TRD_TRY(parse_scaling(scaling, rope));
        else if (kind != TRD__JSON_NULL && kind != TRD__JSON_ABSENT)
            return trd__json_fail(config, TRD_INVALID_ARGUMENT,
                                  "%s: expected an object or null, found neither", keys[i]);
    }
    if (!(rope->theta > 0))
        return trd__json_fail(config, TRD_INVALID_ARGUMENT, "rope_theta: expected more than 0, found %g",
                              rope->theta);
    if (!(rope->partial_rotary_factor >= 0 && rope->partial_rotary_factor <= 1))
        return trd__json_fail(config, TRD_INVALID_ARGUMENT,
                              "partial_rotary_factor: expected 0 to 1, found %g",
                              rope->partial_rotary_factor);
    return TRD_OK;
}

/* What changes the computation and is not built: better an error than another model. */
static trd_status refuse_unsupported(trd__json config)
{
    const char *activation = "silu";
    bool sliding = false;
    TRD_TRY(trd__json_opt_string(config, "hidden_act", &activation));
    TRD_TRY(trd__json_opt_bool(config, "use_sliding_window", &sliding));
    if (strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0)
        return trd__json_fail(config, TRD_UNSUPPORTED, "hidden_act \"%s\" is not supported; known: silu",
                              activation);
    if (sliding) return trd__json_fail(config, TRD_UNSUPPORTED, "use_sliding_window: true is not supported");
    if (trd__json_kind_of(trd__json_find(config, "quantization_config")) == TRD__JSON_OBJECT)
        return trd__json_fail(config, TRD_UNSUPPORTED,
                              "quantization_config: quantized hub checkpoints are not supported; load the "
                              "bfloat16 or float16 version");
    trd__json types = trd__json_find(config, "layer_types");
    for (trd__json t = trd__json_first(types); trd__json_exists(t); t = trd__json_next(t)) {
        const char *type;
        TRD_TRY(trd__json_as_string(t, &type));
        if (strcmp(type, "full_attention") != 0)
            return trd__json_fail(config, TRD_UNSUPPORTED,
                                  "layer_types: \"%s\" is not supported; known: "
                                  "full_attention",
                                  type);
    }
    return TRD_OK;
}

trd_status trd__decoder_parse(trd_model *model, trd__json config)
{
    trd__decoder *o = model->options;
    TRD_TRY(refuse_unsupported(config));
    TRD_TRY(positive(config, "hidden_size", &o->hidden_size));
    TRD_TRY(positive(config, "intermediate_size", &o->intermediate_size));
    TRD_TRY(positive(config, "num_hidden_layers", &o->num_hidden_layers));
    if (o->num_hidden_layers > MOST_LAYERS)
        return trd__json_fail(config, TRD_INVALID_ARGUMENT, "num_hidden_layers: expected 1 to %d, found %lld",
                              MOST_LAYERS, (long long)o->num_hidden_layers);
    TRD_TRY(positive(config, "num_attention_heads", &o->num_attention_heads));
    o->num_key_value_heads = o->num_attention_heads;
    TRD_TRY(positive(config, "num_key_value_heads", &o->num_key_value_heads));
    o->head_dim = o->hidden_size / o->num_attention_heads;
    TRD_TRY(positive(config, "head_dim", &o->head_dim));
    TRD_TRY(positive(config, "vocab_size", &o->vocab_size));
    o->max_position_embeddings = 2048;
    TRD_TRY(positive(config, "max_position_embeddings", &o->max_position_embeddings));
    TRD_TRY(trd__json_get_f64(config, "rms_norm_eps", &o->rms_norm_eps));
    if (!(o->rms_norm_eps > 0))
        return trd__json_fail(config, TRD_INVALID_ARGUMENT, "rms_norm_eps: expected more than 0, found %g",
                              o->rms_norm_eps);
    o->initializer_range = 0.02;
    TRD_TRY(trd__json_opt_f64(config, "initializer_range", &o->initializer_range));
    TRD_TRY(trd__json_opt_bool(config, "tie_word_embeddings", &o->tie_word_embeddings));
    TRD_TRY(parse_rope(config, &o->rope));
    if (o->num_attention_heads % o->num_key_value_heads != 0)
        return trd__json_fail(config, TRD_INVALID_ARGUMENT,
                              "num_attention_heads %lld is no multiple of num_key_value_heads %lld",
                              (long long)o->num_attention_heads, (long long)o->num_key_value_heads);
    if (o->head_dim % 2 != 0)
        return trd__json_fail(config, TRD_INVALID_ARGUMENT, "head_dim: expected an even number, found %lld",
                              (long long)o->head_dim);
    model->info.layers = o->num_hidden_layers;
    model->info.hidden = o->hidden_size;
    model->info.heads = o->num_attention_heads;
    model->info.kv_heads = o->num_key_value_heads;
    model->info.head_dim = o->head_dim;
    model->info.intermediate = o->intermediate_size;
    model->info.vocab = o->vocab_size;
    model->info.max_positions = o->max_position_embeddings;
    model->info.tied = o->tie_word_embeddings;
    return TRD_OK;
}

static void write_rope(const trd_rope_options *rope, trd__json_writer *w)
{
    static const char *const names[] = {"default", "linear", "llama3"};
    trd__json_put_f64(w, "rope_theta", rope->theta);
    if (rope->partial_rotary_factor > 0)
        trd__json_put_f64(w, "partial_rotary_factor", rope->partial_rotary_factor);
    trd__json_put_string(w, "rope_type", names[rope->scaling]);
    if (rope->scaling == TRD_ROPE_DEFAULT) return;
    trd__json_put_f64(w, "factor", rope->factor);
    if (rope->scaling != TRD_ROPE_LLAMA3) return;
    trd__json_put_f64(w, "low_freq_factor", rope->low_freq_factor);
    trd__json_put_f64(w, "high_freq_factor", rope->high_freq_factor);
    trd__json_put_i64(w, "original_max_position_embeddings", (int64_t)rope->original_max_position_embeddings);
}

trd_status trd__decoder_write(const trd_model *model, trd__json_writer *w)
{
    const trd__decoder *o = model->options;
    trd__json_put_i64(w, "hidden_size", o->hidden_size);
    trd__json_put_i64(w, "intermediate_size", o->intermediate_size);
    trd__json_put_i64(w, "num_hidden_layers", o->num_hidden_layers);
    trd__json_put_i64(w, "num_attention_heads", o->num_attention_heads);
    trd__json_put_i64(w, "num_key_value_heads", o->num_key_value_heads);
    trd__json_put_i64(w, "head_dim", o->head_dim);
    trd__json_put_i64(w, "vocab_size", o->vocab_size);
    trd__json_put_i64(w, "max_position_embeddings", o->max_position_embeddings);
    trd__json_put_f64(w, "rms_norm_eps", o->rms_norm_eps);
    trd__json_put_f64(w, "initializer_range", o->initializer_range);
    trd__json_put_bool(w, "tie_word_embeddings", o->tie_word_embeddings);
    trd__json_put_string(w, "hidden_act", "silu");
    trd__json_put_bool(w, "use_cache", true);
    trd__json_write_key(w, "rope_parameters");
    trd__json_open_object(w);
    write_rope(&o->rope, w);
    trd__json_close(w);
    return w->status;
}
