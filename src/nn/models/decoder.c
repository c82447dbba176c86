/* Parameter table and graph of the shared dense decoder; decoder_config.c reads and writes its config.json.
 */
#include "nn/models/decoder.h"

#include <stdio.h>

#include "base/shape.h"

static trd_status declare_matrix(trd_model *model, const char *name, int64_t rows, int64_t columns,
                                 const char *row_axis, int *index)
{
    const trd__decoder *o = model->options;
    trd__parameter p = {.name = name,
                        .shape = {.rank = 2, .dim = {rows, columns}},
                        .axes = {row_axis, "embed"},
                        .init = TRD__INIT_NORMAL,
                        .deviation = o->initializer_range};
    return trd__model_declare(model, &p, index);
}

static trd_status declare_block(trd_model *model, int64_t layer, trd__block *block)
{
    const trd__decoder *o = model->options;
    const int64_t hidden = o->hidden_size, mlp = o->intermediate_size, head = o->head_dim;
    const int64_t q = o->num_attention_heads * head, kv = o->num_key_value_heads * head;
    const struct {
        int *index;
        const char *name;
        bool present;
        trd__init init;
        int64_t rows, columns;
        const char *row_axis, *column_axis;
    } weights[] = {
#define WEIGHT(field, name, present, init, ...) {&block->field, name, present, TRD__INIT_##init, __VA_ARGS__},
        TRD__BLOCK_WEIGHTS(WEIGHT)
#undef WEIGHT
    };
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        *weights[i].index = -1;
        if (!weights[i].present) continue;
        trd__parameter p = {
            .shape = {.rank = weights[i].columns ? 2 : 1, .dim = {weights[i].rows, weights[i].columns}},
            .axes = {weights[i].row_axis, weights[i].column_axis},
            .init = weights[i].init,
            .deviation = o->initializer_range};
        p.name = trd__arena_format(model->arena, "model.layers.%lld.%s", (long long)layer, weights[i].name);
        p.layer_name = trd__arena_format(model->arena, "model.layers.*.%s", weights[i].name);
        if (!p.name || !p.layer_name) return TRD_NO_MEMORY;
        TRD_TRY(trd__model_declare(model, &p, weights[i].index));
    }
    return TRD_OK;
}

trd_status trd__decoder_declare(trd_model *model)
{
    trd__decoder *o = model->options;
    o->blocks = trd__arena_alloc(model->arena, (size_t)o->num_hidden_layers, sizeof *o->blocks);
    if (!o->blocks) return TRD_NO_MEMORY;
    TRD_TRY(declare_matrix(model, "model.embed_tokens.weight", o->vocab_size, o->hidden_size, "vocab",
                           &o->embedding));
    for (int64_t i = 0; i < o->num_hidden_layers; i++) TRD_TRY(declare_block(model, i, &o->blocks[i]));
    trd__parameter norm = {.name = "model.norm.weight",
                           .shape = {.rank = 1, .dim = {o->hidden_size}},
                           .axes = {"norm"},
                           .init = TRD__INIT_ONES};
    TRD_TRY(trd__model_declare(model, &norm, &o->norm));
    o->lm_head = o->embedding;
    if (o->tie_word_embeddings) return TRD_OK;
    return declare_matrix(model, "lm_head.weight", o->vocab_size, o->hidden_size, "vocab", &o->lm_head);
}

/* x W^T + bias, where the model has a bias. */
static trd_value linear(trd_builder *b, const trd_inputs *in, trd_value x, int weight, int bias)
{
    trd_value y = trd_linear(b, x, trd__model_weight(b, in, weight));
    return bias < 0 ? y : trd_add(b, y, trd__model_weight(b, in, bias));
}

/* (B, T, H * D) -> (B, T, H, D) */
static trd_value heads(trd_builder *b, trd_value x, int64_t count)
{
    trd_shape s = trd_value_shape(x);
    if (trd_is_null(x)) return x;
    return trd_reshape(b, x, (trd_shape){.rank = 4, .dim = {s.dim[0], s.dim[1], count, s.dim[2] / count}});
}

/* (B, T, H, D) -> (B, T, H * D) */
static trd_value join(trd_builder *b, trd_value x)
{
    trd_shape s = trd_value_shape(x);
    if (trd_is_null(x)) return x;
    return trd_reshape(b, x, (trd_shape){.rank = 3, .dim = {s.dim[0], s.dim[1], s.dim[2] * s.dim[3]}});
}

static trd_value norm(trd_builder *b, const trd__decoder *o, const trd_inputs *in, trd_value x, int scale)
{
    return trd_rms_norm(b, x, trd__model_weight(b, in, scale), o->rms_norm_eps);
}

/* The names of what a mesh may split (nn/axis_rules.def). */
static const char *const embed_axes[] = {"activation_batch", "activation_length", "activation_embed"};
static const char *const mlp_axes[] = {"activation_batch", "activation_length", "activation_mlp"};
static const char *const head_axes[] = {"activation_batch", "activation_length", "activation_heads",
                                        "activation_kv"};
static const char *const kv_head_axes[] = {"activation_batch", "activation_length", "activation_kv_heads",
                                           "activation_kv"};

static trd_value attention(trd_builder *b, const trd__decoder *o, const trd__block *w, const trd_inputs *in,
                           trd_value h, int64_t layer, const char *name)
{
    trd_value q = heads(b, linear(b, in, h, w->q_proj, w->q_bias), o->num_attention_heads);
    trd_value k = heads(b, linear(b, in, h, w->k_proj, w->k_bias), o->num_key_value_heads);
    trd_value v = heads(b, linear(b, in, h, w->v_proj, w->v_bias), o->num_key_value_heads);
    if (w->q_norm >= 0) q = norm(b, o, in, q, w->q_norm);
    if (w->k_norm >= 0) k = norm(b, o, in, k, w->k_norm);
    q = trd_axes(b, trd_rope(b, q, &in->rows, &o->rope), head_axes);
    k = trd_axes(b, trd_rope(b, k, &in->rows, &o->rope), kv_head_axes);
    v = trd_axes(b, v, kv_head_axes);
    if (in->cache) {
        k = in->cache->keys[layer] = trd_update_rows(b, in->cache->keys[layer], k, in->cache->start);
        v = in->cache->values[layer] = trd_update_rows(b, in->cache->values[layer], v, in->cache->start);
    }
    trd_value mixed = trd_name(b, trd_attention(b, q, k, v, &in->rows), "%s.attention", name);
    trd_axes(b, mixed, head_axes);
    return trd_axes(b, linear(b, in, join(b, mixed), w->o_proj, w->o_bias), embed_axes);
}

static trd_value feed_forward(trd_builder *b, const trd__block *w, const trd_inputs *in, trd_value h)
{
    trd_value gate = linear(b, in, h, w->gate_proj, w->gate_bias);
    trd_value up = linear(b, in, h, w->up_proj, w->up_bias);
    trd_value inner = trd_axes(b, trd_swiglu(b, gate, up), mlp_axes);
    return trd_axes(b, linear(b, in, inner, w->down_proj, w->down_bias), embed_axes);
}

/* Layer number `layer`, whose sites of dropout are 2 * layer and the next; or any, built once with in's first
 * site. */
static trd_value block(trd_builder *b, const trd_model *model, const trd__block *w, const trd_inputs *in,
                       trd_value x, int64_t layer, const char *name)
{
    const trd__decoder *o = model->options;
    trd_value h = trd_axes(b, norm(b, o, in, x, w->input_layernorm), embed_axes);
    trd_value mixed = attention(b, o, w, in, h, layer, name);
    x = trd_add(b, x, trd__model_dropout(b, model, in, mixed, 2 * layer));
    h = trd_axes(b, norm(b, o, in, x, w->post_attention_layernorm), embed_axes);
    trd_value fed = feed_forward(b, w, in, h);
    x = trd_add(b, x, trd__model_dropout(b, model, in, fed, 2 * layer + 1));
    return trd_layer_boundary(b, trd_axes(b, trd_name(b, x, "%s", name), embed_axes));
}

static trd_value each_layer(trd_builder *b, const trd_model *model, const trd_inputs *in, trd_value x)
{
    const trd__decoder *o = model->options;
    char name[32];
    for (int64_t i = 0; i < o->num_hidden_layers; i++) {
        snprintf(name, sizeof name, "layers.%lld", (long long)i);
        x = block(b, model, &o->blocks[i], in, x, i, name);
    }
    return x;
}

/* -- Scanned layers: the weights of all layers are stacks, and one body is every layer -- */

typedef struct scan {
    const trd_model *model;
    const trd_inputs *in;
} scan;

/* Operands of the body that are the same in every layer. */
enum { SEGMENTS, POSITIONS, COUNTER, SHARED };

/* Stacked operands: the stacks of several layers in their order, then first sites where there is dropout. */
static void layer_body(trd_builder *b, const trd_iteration *iteration, trd_value *out, void *user)
{
    const scan *s = user;
    const trd_model *model = s->model;
    const trd__decoder *o = model->options;
    trd__arena *arena = b->graph.arena;
    trd_value *parameters = trd__arena_alloc(arena, (size_t)model->parameter_count, sizeof *parameters);
    trd_value *current = trd__arena_alloc(arena, (size_t)model->state_count + 1, sizeof *current);
    if (!parameters || !current) {
        out[0] = trd_builder_fail(b, TRD_NO_MEMORY, "out of memory");
        return;
    }
    trd_inputs in = *s->in;
    int count = 0;
    for (int i = 0; i < model->stack_count; i++)
        if (model->stacks[i].layers) parameters[model->stacks[i].first] = iteration->stacked[count++];
    in.parameters = parameters;
    in.rows.segments = iteration->shared[SEGMENTS];
    in.rows.positions = iteration->shared[POSITIONS];
    in.states = &(trd__states){.current = current};
    if (trd__model_drops(model, &in)) {
        current[model->dropout_counter] = iteration->shared[COUNTER];
        in.first_site = iteration->stacked[count];
    }
    out[0] = block(b, model, &o->blocks[0], &in, iteration->carries[0], 0, "layers.*");
}

static trd_value scan_layers(trd_builder *b, const trd_model *model, const trd_inputs *in, trd_value x)
{
    const trd__decoder *o = model->options;
    scan s = {model, in};
    trd_value shared[SHARED] = {in->rows.segments, in->rows.positions};
    trd_value *stacked = trd__arena_alloc(b->graph.arena, (size_t)model->stack_count + 1, sizeof *stacked);
    if (!stacked) return trd_builder_fail(b, TRD_NO_MEMORY, "out of memory");
    trd_repeat_options repeat = {.count = o->num_hidden_layers,
                                 .carries = &x,
                                 .carry_count = 1,
                                 .shared = shared,
                                 .shared_count = COUNTER,
                                 .stacked = stacked,
                                 .body = layer_body,
                                 .user = &s};
    for (int i = 0; i < model->stack_count; i++)
        if (model->stacks[i].layers) stacked[repeat.stacked_count++] = in->stacks[i];
    if (trd__model_drops(model, in)) {
        trd_value layer = trd_iota(b, TRD_I32, TRD__SHAPE(o->num_hidden_layers), 0);
        stacked[repeat.stacked_count++] = trd_mul(b, layer, trd_scalar(b, TRD_I32, 2));
        shared[repeat.shared_count++] = trd__model_state(b, model, in, model->dropout_counter);
    }
    trd_value last;
    trd_repeat(b, &repeat, &last);
    return trd_layer_boundary(b, trd_axes(b, trd_name(b, last, "layers"), embed_axes));
}

trd_value trd__decoder_hidden(trd_builder *b, const trd_model *model, const trd_inputs *in)
{
    const trd__decoder *o = model->options;
    trd_value ids = trd_inputs_get(b, in, "token_ids");
    trd_value x = trd_gather_rows(b, in->parameters[o->embedding], ids);
    x = trd_axes(b, trd_name(b, trd_cast(b, x, in->dtype), "embedding"), embed_axes);
    bool scanned = trd_is_null(in->parameters[o->blocks[0].input_layernorm]);
    x = scanned ? scan_layers(b, model, in, x) : each_layer(b, model, in, x);
    return trd_axes(b, trd_name(b, norm(b, o, in, x, o->norm), "hidden"), embed_axes);
}

trd_value trd__decoder_head(trd_builder *b, const trd_model *model, const trd_inputs *in)
{
    const trd__decoder *o = model->options;
    return trd__model_weight(b, in, o->lm_head);
}
