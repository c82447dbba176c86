/* Presets: rows of published sizes turned into config.json text, so that one parser builds every model. */
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "nn/model.h"

typedef struct preset {
    const char *name, *type;
    int hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, positions;
    double theta, llama3_factor, eps;
    bool tied;
    int bos, eos;
} preset;

static const preset presets[] = {
#define TRD_PRESET(...) {__VA_ARGS__},
#include "nn/models/presets.def"
#undef TRD_PRESET
};
enum { PRESETS = sizeof presets / sizeof *presets };

const char *trd_model_preset_name(int i)
{
    return i >= 0 && i < PRESETS ? presets[i].name : NULL;
}

static int or_preset(int64_t override, int value)
{
    return override > 0 ? (int) override : value;
}

static trd_status from_row(const preset *p, const trd_model_overrides *o, trd_model **model)
{
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    trd__json_put_string(&w, "model_type", p->type);
    trd__json_put_i64(&w, "hidden_size", or_preset(o->hidden, p->hidden));
    trd__json_put_i64(&w, "intermediate_size", or_preset(o->intermediate, p->intermediate));
    trd__json_put_i64(&w, "num_hidden_layers", or_preset(o->layers, p->layers));
    trd__json_put_i64(&w, "num_attention_heads", or_preset(o->heads, p->heads));
    trd__json_put_i64(&w, "num_key_value_heads", or_preset(o->kv_heads, p->kv_heads));
    trd__json_put_i64(&w, "head_dim", or_preset(o->head_dim, p->head_dim));
    trd__json_put_i64(&w, "vocab_size", or_preset(o->vocab, p->vocab));
    trd__json_put_i64(&w, "max_position_embeddings", p->positions);
    trd__json_put_f64(&w, "rms_norm_eps", p->eps);
    trd__json_put_f64(&w, "rope_theta", p->theta);
    trd__json_put_bool(&w, "tie_word_embeddings", p->tied);
    if (p->bos >= 0) trd__json_put_i64(&w, "bos_token_id", p->bos);
    if (p->eos >= 0) trd__json_put_i64(&w, "eos_token_id", p->eos);
    if (p->llama3_factor > 0) {
        trd__json_write_key(&w, "rope_scaling");
        trd__json_open_object(&w);
        trd__json_put_string(&w, "rope_type", "llama3");
        trd__json_put_f64(&w, "factor", p->llama3_factor);
        trd__json_put_f64(&w, "low_freq_factor", 1);
        trd__json_put_f64(&w, "high_freq_factor", 4);
        trd__json_put_i64(&w, "original_max_position_embeddings", 8192);
        trd__json_close(&w);
    }
    trd__json_close(&w);
    trd_status status = trd__json_finish(&w);
    if (!status) status = trd_model_from_json(w.text, w.bytes, model);
    trd__json_writer_free(&w);
    return status ? trd__fail_in(status, "model_name %s", p->name) : TRD_OK;
}

trd_status trd_model_from_preset(const char *name, const trd_model_overrides *overrides, trd_model **model)
{
    static const trd_model_overrides none;
    const char *names[PRESETS];
    *model = NULL;
    for (int i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0)
            return from_row(&presets[i], overrides ? overrides : &none, model);
        names[i] = presets[i].name;
    }
    const char *nearest = trd__nearest(name, names, PRESETS);
    return trd__fail(TRD_INVALID_ARGUMENT,
                     "model_name: \"%s\" is no preset; did you mean \"%s\"? `treadle plan "
                     "--help` lists them",
                     name, nearest ? nearest : presets[0].name);
}
