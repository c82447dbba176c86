/* Where parameters come from and where they go: loading with casts, random initialization, export as a hub
 * folder. Invariant: random weights are a function of (init_weights_seed, parameter name, element) alone,
 * whatever the number of threads. */
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/name_list.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/shape.h"
#include "checkpoint/hub_export.h"
#include "checkpoint/weights.h"
#include "engine/internal.h"

static trd_status model_from_weights(trd_engine *engine)
{
    const trd_engine_options *o = &engine->options;
    TRD_TRY(trd__weights_open(o->load_parameters_path, &engine->source));
    const char *config = trd__weights_config(engine->source);
    if (config) {
        engine->config = trd__strdup(config);
        if (!engine->config) return TRD_NO_MEMORY;
        return trd_model_from_json(config, strlen(config), &engine->model);
    }
    if (!o->model_name)
        return trd__fail(TRD_NOT_FOUND,
                         "loading %s: expected a config.json beside it, found none; set model_name to a "
                         "preset",
                         o->load_parameters_path);
    return trd_model_from_preset(o->model_name, &o->overrides, &engine->model);
}

trd_status trd__weights_load_model(trd_engine *engine)
{
    const trd_engine_options *o = &engine->options;
    static const trd_model_overrides none = {0};
    if (!o->load_parameters_path) {
        if (!o->model_name)
            return trd__fail(
                TRD_INVALID_ARGUMENT,
                "creating an engine: expected model_name or load_parameters_path, found neither");
        return trd_model_from_preset(o->model_name, &o->overrides, &engine->model);
    }
    if (memcmp(&o->overrides, &none, sizeof none) != 0)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "creating an engine: sizes that override a preset cannot be combined with "
                         "load_parameters_path, whose config.json has the sizes");
    return model_from_weights(engine);
}

void trd__weights_release(trd_engine *engine)
{
    trd__weights_close(engine->source);
    engine->source = NULL;
    trd__free(engine->config);
    engine->config = NULL;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static bool has_parameter(const trd_engine *engine, const char *name)
{
    const trd__layout *layout = &engine->layout[TRD__ROLE_PARAMS];
    for (int i = 0; i < layout->count; i++)
        if (strcmp(layout->entries[i].name, name) == 0) return true;
    return false;
}

/* What files carry beside the parameters: a copy of a tied head, tables that the model computes. */
static bool is_expected_extra(const trd_engine *engine, const char *name)
{
    return (engine->model->info.tied && strcmp(name, "lm_head.weight") == 0) ||
           ends_with(name, ".rotary_emb.inv_freq") || strcmp(name, "rope_freqs.weight") == 0;
}

static trd_status check_names(const trd_engine *engine)
{
    const trd__layout *layout = &engine->layout[TRD__ROLE_PARAMS];
    trd__name_list missing = {.count = 0}, unknown = {.count = 0};
    char missing_text[2 * TRD__NAME_LIST_TEXT], unknown_text[2 * TRD__NAME_LIST_TEXT];
    for (int i = 0; i < layout->count; i++)
        if (!trd__weights_find(engine->source, layout->entries[i].name))
            trd__name_list_add(&missing, layout->entries[i].name);
    for (size_t i = 0; i < trd__weights_count(engine->source); i++) {
        const char *name = trd__weights_at(engine->source, i)->name;
        if (!is_expected_extra(engine, name) && !has_parameter(engine, name))
            trd__name_list_add(&unknown, name);
    }
    if (!missing.count && !unknown.count) return TRD_OK;
    return trd__fail(TRD_NOT_FOUND,
                     "loading %s as %s: expected the model's parameters, found %s missing and %s unknown; is "
                     "the config.json that of these weights?",
                     trd__weights_path(engine->source), engine->model->info.architecture,
                     trd__name_list_text(&missing, missing_text, sizeof missing_text),
                     trd__name_list_text(&unknown, unknown_text, sizeof unknown_text));
}

static trd_status check_shapes(const trd_engine *engine)
{
    const trd__layout *layout = &engine->layout[TRD__ROLE_PARAMS];
    for (int i = 0; i < layout->count; i++) {
        const trd__entry *entry = &layout->entries[i];
        const trd__weight *weight = trd__weights_find(engine->source, entry->name);
        char expected[TRD__SHAPE_TEXT], found[TRD__SHAPE_TEXT];
        if (!trd__shape_equal(&entry->shape, &weight->shape))
            return trd__fail(TRD_SHAPE, "loading %s: tensor %s expected shape %s, found %s",
                             trd__weights_path(engine->source), entry->name,
                             trd__shape_text(&entry->shape, expected),
                             trd__shape_text(&weight->shape, found));
    }
    return TRD_OK;
}

/* One parameter's share of a draw. */
typedef struct draw {
    const trd__parameter *parameter;
    trd_dtype dtype;
    uint64_t seed, stream;
    int64_t count;
    void *out;
} draw;

enum { CHUNK = 1024 };

static void draw_normals(const draw *d, int64_t begin, size_t count, float *out)
{
    float deviation = (float)d->parameter->deviation;
    trd__rng_normals(d->seed, d->stream, (uint64_t)begin / 2, (count + 1) / 2, out);
    for (size_t i = 0; i < count; i++) out[i] *= deviation;
}

static void run_draw(void *context, int worker, int workers)
{
    const draw *d = context;
    int64_t begin, end;
    float chunk[CHUNK];
    trd__partition(worker, workers, d->count, CHUNK, &begin, &end);
    float fixed = d->parameter->init == TRD__INIT_ONES ? 1.0f : 0.0f;
    for (int i = 0; i < CHUNK; i++) chunk[i] = fixed;
    for (int64_t at = begin; at < end; at += CHUNK) {
        int count = end - at < CHUNK ? (int)(end - at) : CHUNK;
        if (d->parameter->init == TRD__INIT_NORMAL) draw_normals(d, at, (size_t)count, chunk);
        trd__convert(TRD_F32, chunk, d->dtype, (char *)d->out + (size_t)at * trd_dtype_bytes(d->dtype),
                     (size_t)count);
    }
}

static trd_status fill_one(trd_engine *engine, trd__pool *pool, int i, void *buffer)
{
    const trd__entry *entry = &engine->layout[TRD__ROLE_PARAMS].entries[i];
    if (engine->source) {
        TRD_TRY(trd__weights_read(engine->source, entry->name, entry->dtype, buffer));
    } else {
        draw d = {.parameter = &engine->model->parameters[i],
                  .dtype = entry->dtype,
                  .seed = engine->options.init_weights_seed,
                  .stream = trd__rng_stream(entry->name),
                  .count = trd__shape_count(&entry->shape),
                  .out = buffer};
        trd__pool_run(pool, run_draw, &d);
    }
    return engine->backend->table->set_write(engine->backend, engine->state[TRD__ROLE_PARAMS], i, buffer);
}

static trd_status fill_all(trd_engine *engine, trd__pool *pool)
{
    const trd__layout *layout = &engine->layout[TRD__ROLE_PARAMS];
    size_t largest = 0;
    for (int i = 0; i < layout->count; i++)
        if (trd__entry_bytes(&layout->entries[i]) > largest) largest = trd__entry_bytes(&layout->entries[i]);
    void *buffer = trd__map(largest);
    if (!buffer) return TRD_NO_MEMORY;
    trd_status status = TRD_OK;
    for (int i = 0; status == TRD_OK && i < layout->count; i++) status = fill_one(engine, pool, i, buffer);
    trd__unmap(buffer, largest);
    return status;
}

trd_status trd__weights_fill(trd_engine *engine)
{
    trd__pool *pool = NULL;
    if (engine->source) {
        TRD_TRY(check_names(engine));
        TRD_TRY(check_shapes(engine));
    } else {
        int workers = engine->options.num_threads > 0 ? engine->options.num_threads : trd__processor_count();
        if (engine->model->info.parameters < CHUNK * 64) workers = 1;
        TRD_TRY(trd__pool_create(workers, &pool));
    }
    trd_status status = fill_all(engine, pool);
    trd__pool_free(pool);
    trd__weights_close(engine->source);
    engine->source = NULL;
    return status;
}

/* Host copies of all parameters in one mapping; arrays has one element per parameter. */
static trd_status copy_parameters(trd_engine *engine, char *memory, trd_array *arrays)
{
    trd_view view = trd_engine_params(engine);
    for (int i = 0; i < trd_view_count(view); i++) {
        arrays[i] = trd_view_describe(view, i);
        arrays[i].data = memory;
        TRD_TRY(trd_view_read(view, i, memory));
        memory += trd__entry_bytes(&engine->layout[TRD__ROLE_PARAMS].entries[i]);
    }
    return TRD_OK;
}

trd_status trd_engine_export(trd_engine *engine, const char *folder, trd_dtype dtype)
{
    TRD_TRY(trd__engine_check(engine));
    char *made = NULL;
    if (!engine->config) TRD_TRY(trd_model_to_json(engine->model, trd_dtype_name(dtype), &made));
    const trd__layout *layout = &engine->layout[TRD__ROLE_PARAMS];
    size_t bytes = (size_t)trd__layout_bytes(layout);
    char *memory = trd__map(bytes);
    trd_array *arrays = trd__calloc((size_t)layout->count, sizeof *arrays);
    trd_status status = memory && arrays ? copy_parameters(engine, memory, arrays) : TRD_NO_MEMORY;
    if (status == TRD_OK) {
        trd__hub_export_options options = {.config = engine->config ? engine->config : made,
                                           .dtype = dtype,
                                           .source = engine->options.load_parameters_path};
        status = trd__hub_export(folder, arrays, (size_t)layout->count, &options);
    }
    trd__free(arrays);
    trd__unmap(memory, bytes);
    trd__free(made);
    return status;
}
