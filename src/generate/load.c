/* A generator's own model and parameters, from files. */
#include "engine/origin.h"
#include "engine/params.h"
#include "generate/generator.h"

static trd_status create_params(trd_generator *g)
{
    const trd_model *model = g->model;
    trd__entry *entries = trd__arena_alloc(g->arena, (size_t)model->parameter_count + 1, sizeof *entries);
    if (!entries) return TRD_NO_MEMORY;
    for (int i = 0; i < model->parameter_count; i++) {
        const trd__parameter *p = &model->parameters[i];
        entries[i] = (trd__entry){.name = p->name, .dtype = g->options.dtype, .shape = p->shape};
    }
    TRD_TRY(
        g->backend->table->set_create(g->backend, "params", entries, model->parameter_count, &g->own_params));
    g->params = g->own_params;
    return TRD_OK;
}

static trd_status load(trd_generator *g, const trd__origin *s)
{
    TRD_TRY(trd__origin_model(s, &g->own_model));
    g->model = g->own_model;
    TRD_TRY(create_params(g));
    return trd__params_fill(g->backend, g->own_params, g->model, s);
}

trd_status trd__generator_load(trd_generator *g, const char *path)
{
    trd__origin origin;
    trd_status status = trd__origin_open(path, &origin);
    if (!status) status = load(g, &origin);
    trd__origin_close(&origin);
    return status ? trd__fail_in(status, "loading %s", path) : TRD_OK;
}
