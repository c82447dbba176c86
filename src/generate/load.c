/* A generator's own parameters: checked against the model, then read one tensor at a time. */
#include "base/alloc.h"
#include "base/dtype.h"
#include "base/name_list.h"
#include "base/shape.h"
#include "generate/generator.h"
#include "generate/origin.h"

static trd_status check(const trd__origin *s, const trd_model *model)
{
    trd__name_list missing = {.count = 0};
    char text[2 * TRD__NAME_LIST_TEXT];
    for (int i = 0; i < model->parameter_count; i++) {
        const trd__parameter *p = &model->parameters[i];
        char expected[TRD__SHAPE_TEXT], found[TRD__SHAPE_TEXT];
        trd_array array;
        if (!trd__origin_find(s, p->name, &array))
            trd__name_list_add(&missing, p->name);
        else if (!trd__shape_equal(&array.shape, &p->shape))
            return trd__fail(TRD_SHAPE, "tensor %s expected shape %s, found %s", p->name,
                             trd__shape_text(&p->shape, expected), trd__shape_text(&array.shape, found));
    }
    if (!missing.count) return TRD_OK;
    return trd__fail(TRD_NOT_FOUND,
                     "expected the parameters of a %s model, found %s missing; is the config.json that of "
                     "these weights?",
                     model->info.architecture, trd__name_list_text(&missing, text, sizeof text));
}

static trd_status read_tensor(const trd__origin *s, const trd__entry *entry, void *out)
{
    trd_array array;
    if (!trd__origin_find(s, entry->name, &array) || !array.data)
        return trd__weights_read(s->weights, entry->name, entry->dtype, out);
    trd__convert(array.dtype, array.data, entry->dtype, out, (size_t)trd__shape_count(&array.shape));
    return TRD_OK;
}

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

static trd_status fill_params(trd_generator *g, const trd__origin *s)
{
    size_t largest = 0;
    for (int i = 0; i < g->params->entry_count; i++) {
        size_t bytes = trd__entry_bytes(&g->params->entries[i]);
        if (bytes > largest) largest = bytes;
    }
    void *buffer = trd__map(largest);
    if (!buffer) return TRD_NO_MEMORY;
    trd_status status = TRD_OK;
    for (int i = 0; !status && i < g->params->entry_count; i++) {
        status = read_tensor(s, &g->params->entries[i], buffer);
        if (!status) status = g->backend->table->set_write(g->backend, g->params, i, buffer);
    }
    trd__unmap(buffer, largest);
    return status;
}

static trd_status load(trd_generator *g, const trd__origin *s)
{
    TRD_TRY(trd__origin_model(s, &g->own_model));
    g->model = g->own_model;
    TRD_TRY(check(s, g->model));
    TRD_TRY(create_params(g));
    return fill_params(g, s);
}

trd_status trd__generator_load(trd_generator *g, const char *path)
{
    trd__origin origin;
    trd_status status = trd__origin_open(path, &origin);
    if (!status) status = load(g, &origin);
    trd__origin_close(&origin);
    return status ? trd__fail_in(status, "loading %s", path) : TRD_OK;
}
