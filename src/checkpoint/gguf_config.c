/* Writes the hub's config keys from llama.cpp's metadata keys. Numbers that the file holds as float32 are
 * written as the shortest decimal that reads back, so that 1e-05 does not become 9.999999747378752e-06.
 *
 * llama.cpp keeps Llama 3's rotary scaling only as a tensor of factors (rope_freqs.weight). All Llama 3.x
 * models share its other constants, so the factor is the tensor's largest element, and the whole tensor is
 * recomputed from it and compared: a file that disagrees is refused, never guessed at. */
#include "checkpoint/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "checkpoint/gguf_names.h"
#include "formats/json.h"

enum { KEY_BYTES = 128, LLAMA3_CONTEXT = 8192 };

static const double llama3_low = 1.0, llama3_high = 4.0, pi = 3.14159265358979323846;

typedef struct source {
    const trd__gguf *file;
    const char *architecture;
} source;

static const char *key_of(const source *s, const char *name, char *key)
{
    snprintf(key, KEY_BYTES, "%s.%s", s->architecture, name);
    return key;
}

static trd_status get_i64(const source *s, const char *name, int64_t *number)
{
    char key[KEY_BYTES];
    return trd__gguf_get_i64(s->file, key_of(s, name, key), number);
}

static trd_status opt_i64(const source *s, const char *name, int64_t *number)
{
    char key[KEY_BYTES];
    return trd__gguf_opt_i64(s->file, key_of(s, name, key), number);
}

/* float32 to the double whose decimal form is the shortest that gives the same float32. */
static double shortest(double number)
{
    char text[40];
    for (int precision = 6; precision <= 9; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, number);
        if (strtof(text, NULL) == (float)number) return strtod(text, NULL);
    }
    return number;
}

static trd_status opt_f64(const source *s, const char *name, double *number)
{
    char key[KEY_BYTES];
    TRD_TRY(trd__gguf_opt_f64(s->file, key_of(s, name, key), number));
    *number = shortest(*number);
    return TRD_OK;
}

/* The factor by which Llama 3 slows the rotary frequency of pair i. */
static double llama3_factor(double theta, int64_t dim, int64_t i, double factor)
{
    double wavelength = 2 * pi * pow(theta, (double)(2 * i) / (double)dim);
    double low = LLAMA3_CONTEXT / llama3_low, high = LLAMA3_CONTEXT / llama3_high;
    if (wavelength < high) return 1;
    if (wavelength > low) return factor;
    double smooth = (LLAMA3_CONTEXT / wavelength - llama3_low) / (llama3_high - llama3_low);
    return 1 / ((1 - smooth) / factor + smooth);
}

static trd_status put_llama3(trd__json_writer *json, const trd__gguf_tensor *factors, double theta)
{
    int64_t pairs = factors->shape.rank == 1 ? factors->shape.dim[0] : 0;
    float found[1024];
    if (factors->type != TRD__GGUF_TYPE_F32 || pairs < 1 || pairs > 1024)
        return trd__fail(TRD_UNSUPPORTED,
                         "reading rope_freqs.weight: expected a row of up to 1024 float32 factors");
    memcpy(found, factors->data, (size_t)pairs * sizeof *found);
    float largest = 1;
    for (int64_t i = 0; i < pairs; i++) largest = fmaxf(largest, found[i]);
    double factor = (double)largest;
    for (int64_t i = 0; i < pairs; i++) {
        double expected = llama3_factor(theta, 2 * pairs, i, factor);
        if (fabs((double)found[i] - expected) > 1e-3 * expected)
            return trd__fail(
                TRD_UNSUPPORTED,
                "reading rope_freqs.weight: element %d is %g, Llama 3's scaling would have %g; other rotary "
                "scalings are not supported",
                (int)i, (double)found[i], expected);
    }
    trd__json_put_string(json, "rope_type", "llama3");
    trd__json_put_f64(json, "factor", factor);
    trd__json_put_f64(json, "low_freq_factor", llama3_low);
    trd__json_put_f64(json, "high_freq_factor", llama3_high);
    trd__json_put_i64(json, "original_max_position_embeddings", LLAMA3_CONTEXT);
    return TRD_OK;
}

static trd_status put_rope(trd__json_writer *json, const source *s)
{
    double theta = 10000, factor = 1;
    int64_t context = 0;
    char key[KEY_BYTES];
    trd__gguf_string type = {"none", 4};
    TRD_TRY(opt_f64(s, "rope.freq_base", &theta));
    TRD_TRY(opt_f64(s, "rope.scaling.factor", &factor));
    TRD_TRY(opt_i64(s, "rope.scaling.original_context_length", &context));
    TRD_TRY(trd__gguf_opt_string(s->file, key_of(s, "rope.scaling.type", key), &type));
    const trd__gguf_tensor *factors = trd__gguf_find_tensor(s->file, "rope_freqs.weight");
    trd__json_write_key(json, "rope_parameters");
    trd__json_open_object(json);
    trd__json_put_f64(json, "rope_theta", theta);
    if (factors) {
        TRD_TRY(put_llama3(json, factors, theta));
    } else if (type.bytes == 4 && memcmp(type.text, "none", 4) == 0) {
        trd__json_put_string(json, "rope_type", "default");
    } else {
        trd__json_write_key(json, "rope_type");
        trd__json_write_bytes(json, type.text, type.bytes);
        trd__json_put_f64(json, "factor", factor);
        if (context > 0) trd__json_put_i64(json, "original_max_position_embeddings", context);
    }
    trd__json_close(json);
    return TRD_OK;
}

static trd_status put_sizes(trd__json_writer *json, const source *s)
{
    static const struct {
        const char *gguf, *hub;
    } sizes[] = {{"embedding_length", "hidden_size"},
                 {"block_count", "num_hidden_layers"},
                 {"feed_forward_length", "intermediate_size"},
                 {"attention.head_count", "num_attention_heads"}};
    int64_t hidden = 0, heads = 0, key_heads, head_dim, context = 2048;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t number = 0;
        TRD_TRY(get_i64(s, sizes[i].gguf, &number));
        trd__json_put_i64(json, sizes[i].hub, number);
    }
    TRD_TRY(get_i64(s, "embedding_length", &hidden));
    TRD_TRY(get_i64(s, "attention.head_count", &heads));
    if (heads <= 0 || hidden <= 0)
        return trd__fail(TRD_CORRUPT,
                         "reading GGUF metadata: embedding_length and attention.head_count must be positive");
    key_heads = heads;
    head_dim = hidden / heads;
    TRD_TRY(opt_i64(s, "attention.head_count_kv", &key_heads));
    TRD_TRY(opt_i64(s, "attention.key_length", &head_dim));
    TRD_TRY(opt_i64(s, "context_length", &context));
    int64_t rotary = head_dim;
    TRD_TRY(opt_i64(s, "rope.dimension_count", &rotary));
    trd__json_put_i64(json, "num_key_value_heads", key_heads);
    trd__json_put_i64(json, "head_dim", head_dim);
    trd__json_put_i64(json, "max_position_embeddings", context);
    if (rotary != head_dim)
        trd__json_put_f64(json, "partial_rotary_factor", (double)rotary / (double)head_dim);
    return TRD_OK;
}

static trd_status put_token_ids(trd__json_writer *json, const source *s)
{
    static const struct {
        const char *gguf, *hub;
    } ids[] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
               {"tokenizer.ggml.eos_token_id", "eos_token_id"},
               {"tokenizer.ggml.padding_token_id", "pad_token_id"}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int64_t id = -1;
        TRD_TRY(trd__gguf_opt_i64(s->file, ids[i].gguf, &id));
        trd__json_write_key(json, ids[i].hub);
        if (id >= 0)
            trd__json_write_i64(json, id);
        else
            trd__json_write_null(json);
    }
    return TRD_OK;
}

static trd_status put_known(trd__json_writer *json, const source *s,
                            const trd__gguf_architecture *architecture)
{
    const trd__gguf_tensor *embedding = trd__gguf_find_tensor(s->file, "token_embd.weight");
    double eps = 1e-6;
    int64_t window = 0;
    if (!embedding || embedding->shape.rank != 2)
        return trd__fail(TRD_CORRUPT,
                         "reading GGUF tensors: expected token_embd.weight of rank 2, found none");
    trd__json_write_key(json, "architectures");
    trd__json_open_array(json);
    trd__json_write_string(json, architecture->hub_class);
    trd__json_close(json);
    TRD_TRY(put_sizes(json, s));
    trd__json_put_i64(json, "vocab_size", embedding->shape.dim[0]);
    TRD_TRY(opt_f64(s, "attention.layer_norm_rms_epsilon", &eps));
    trd__json_put_f64(json, "rms_norm_eps", eps);
    TRD_TRY(opt_i64(s, "attention.sliding_window", &window));
    if (window > 0) trd__json_put_i64(json, "sliding_window", window);
    trd__json_put_string(json, "hidden_act", "silu");
    trd__json_put_bool(json, "tie_word_embeddings", trd__gguf_find_tensor(s->file, "output.weight") == NULL);
    if (strcmp(architecture->name, "qwen2") != 0)
        trd__json_put_bool(json, "attention_bias",
                           trd__gguf_find_tensor(s->file, "blk.0.attn_q.bias") != NULL);
    if (strcmp(architecture->name, "llama") == 0)
        trd__json_put_bool(json, "mlp_bias", trd__gguf_find_tensor(s->file, "blk.0.ffn_up.bias") != NULL);
    TRD_TRY(put_rope(json, s));
    return put_token_ids(json, s);
}

trd_status trd__gguf_config(const trd__gguf *file, char **text)
{
    trd__json_writer json = {.indent = 2};
    trd__gguf_string name;
    const trd__gguf_architecture *architecture = trd__gguf_architecture_of(file);
    *text = NULL;
    TRD_TRY(trd__gguf_get_string(file, "general.architecture", &name));
    trd__json_open_object(&json);
    trd__json_write_key(&json, "model_type");
    trd__json_write_bytes(&json, name.text, name.bytes);
    trd_status status = TRD_OK;
    if (architecture) status = put_known(&json, &(source){file, architecture->name}, architecture);
    trd__json_close(&json);
    if (!status) status = trd__json_finish(&json);
    if (status)
        trd__json_writer_free(&json);
    else
        *text = json.text; /* the caller's from here */
    return status;
}
