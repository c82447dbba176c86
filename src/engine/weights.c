/* Where parameters come from and where they go: loading with casts, random initialization, export as a hub
 * folder. Invariant: random weights are a function of (init_weights_seed, parameter name, element) alone,
 * whatever the number of threads. */
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/shape.h"
#include "checkpoint/hub_export.h"
#include "checkpoint/weights.h"
#include "engine/internal.h"
#include "engine/params.h"

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

typedef struct drawing {
    const trd_engine *engine;
    trd__pool *pool;
} drawing;

static trd_status draw_parameter(void *context, int i, trd_dtype dtype, void *out)
{
    const drawing *all = context;
    const trd_engine *engine = all->engine;
    const trd__parameter *p = &engine->model->parameters[i];
    draw d = {.parameter = p,
              .dtype = dtype,
              .seed = engine->options.init_weights_seed,
              .stream = trd__rng_stream(p->name),
              .count = trd__shape_count(&p->shape),
              .out = out};
    trd__pool_run(all->pool, run_draw, &d);
    return TRD_OK;
}

/* On as many threads as the backend has. */
static trd_status draw_all(trd_engine *engine)
{
    trd__backend *backend = engine->backend;
    drawing all = {.engine = engine};
    int workers = engine->model->info.parameters < CHUNK * 64 ? 1 : backend->table->stats(backend).workers;
    TRD_TRY(trd__pool_create(workers, &all.pool));
    trd_status status =
        trd__params_fill_with(backend, engine->state[TRD__ROLE_PARAMS], engine->model, draw_parameter, &all);
    trd__pool_free(all.pool);
    return status;
}

trd_status trd__weights_fill_states(trd_engine *engine)
{
    const trd_model *model = engine->model;
    for (int i = 0; i < model->state_count; i++) {
        const trd__state *s = &model->states[i];
        size_t count = (size_t)trd__shape_count(&s->shape);
        void *values = trd__calloc(count, trd_dtype_bytes(s->dtype));
        if (!values) return TRD_NO_MEMORY;
        for (size_t k = 0; k < count; k++) trd__store(s->dtype, values, k, s->initial);
        trd_status status = engine->backend->table->set_write(
            engine->backend, engine->state[TRD__ROLE_MODEL_STATE], i, values);
        trd__free(values);
        TRD_TRY(status);
    }
    return TRD_OK;
}

trd_status trd__weights_fill(trd_engine *engine)
{
    if (!engine->source) return draw_all(engine);
    trd__origin origin = {.weights = engine->source};
    trd_status status =
        trd__params_fill(engine->backend, engine->state[TRD__ROLE_PARAMS], engine->model, &origin);
    if (status != TRD_OK) trd__fail_in(status, "loading %s", trd__weights_path(engine->source));
    trd__weights_close(engine->source);
    engine->source = NULL;
    return status;
}

/* Host copies of all parameters in one mapping; arrays has one element per parameter. */
static trd_status copy_parameters(trd_engine *engine, char *memory, trd_array *arrays)
{
    trd_view view = trd_engine_params(engine);
    for (int i = 0; i < trd_view_count(view); i++) arrays[i] = trd_view_describe(view, i);
    return trd__pieces_read(engine, TRD__ROLE_PARAMS, false, memory, arrays);
}

trd_status trd_engine_export(trd_engine *engine, const char *folder, trd_dtype dtype)
{
    TRD_TRY(trd__engine_check(engine));
    if (!folder) return trd__fail(TRD_INVALID_ARGUMENT, "exporting: expected a folder, found NULL");
    char *made = NULL;
    if (!engine->config) TRD_TRY(trd_model_to_json(engine->model, trd_dtype_name(dtype), &made));
    size_t count = (size_t)engine->pieces[TRD__ROLE_PARAMS].count;
    size_t bytes = (size_t)trd__pieces_bytes(engine, TRD__ROLE_PARAMS, false);
    char *memory = trd__map(bytes);
    trd_array *arrays = trd__calloc(count, sizeof *arrays);
    trd_status status = memory && arrays ? copy_parameters(engine, memory, arrays) : TRD_NO_MEMORY;
    if (status == TRD_OK) {
        trd__hub_export_options options = {.config = engine->config ? engine->config : made,
                                           .dtype = dtype,
                                           .source = engine->options.load_parameters_path};
        status = trd__hub_export(folder, arrays, count, &options);
    }
    trd__free(arrays);
    trd__unmap(memory, bytes);
    trd__free(made);
    return status;
}
