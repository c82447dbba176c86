/* Filling a set of parameters. Invariant: nothing is read before all names and shapes are known to fit. */
#include "engine/params.h"

#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/name_list.h"
#include "base/shape.h"

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static bool has_parameter(const trd_model *model, const char *name)
{
    for (int i = 0; i < model->parameter_count; i++)
        if (strcmp(model->parameters[i].name, name) == 0) return true;
    return false;
}

/* What files carry beside the parameters: a copy of a tied head, tables that the model computes. */
static bool is_expected_extra(const trd_model *model, const char *name)
{
    return (model->info.tied && strcmp(name, "lm_head.weight") == 0) ||
           ends_with(name, ".rotary_emb.inv_freq") || strcmp(name, "rope_freqs.weight") == 0;
}

/* A checkpoint also holds the optimizer's state, so only weights files can have too much. */
static trd_status check_names(const trd_model *model, const trd__origin *origin)
{
    trd__name_list missing = {.count = 0}, unknown = {.count = 0};
    char missing_text[2 * TRD__NAME_LIST_TEXT], unknown_text[2 * TRD__NAME_LIST_TEXT];
    trd_array array;
    for (int i = 0; i < model->parameter_count; i++)
        if (!trd__origin_find(origin, model->parameters[i].name, &array))
            trd__name_list_add(&missing, model->parameters[i].name);
    for (size_t i = 0; origin->weights && i < trd__weights_count(origin->weights); i++) {
        const char *name = trd__weights_at(origin->weights, i)->name;
        if (!is_expected_extra(model, name) && !has_parameter(model, name))
            trd__name_list_add(&unknown, name);
    }
    if (!missing.count && !unknown.count) return TRD_OK;
    return trd__fail(TRD_NOT_FOUND,
                     "expected the parameters of a %s model, found %s missing and %s unknown; is the "
                     "config.json that of these weights?",
                     model->info.architecture,
                     trd__name_list_text(&missing, missing_text, sizeof missing_text),
                     trd__name_list_text(&unknown, unknown_text, sizeof unknown_text));
}

static trd_status check_shapes(const trd_model *model, const trd__origin *origin)
{
    for (int i = 0; i < model->parameter_count; i++) {
        const trd__parameter *p = &model->parameters[i];
        char expected[TRD__SHAPE_TEXT], found[TRD__SHAPE_TEXT];
        trd_array array = {0};
        trd__origin_find(origin, p->name, &array);
        if (!trd__shape_equal(&array.shape, &p->shape))
            return trd__fail(TRD_SHAPE, "tensor %s expected shape %s, found %s", p->name,
                             trd__shape_text(&p->shape, expected), trd__shape_text(&array.shape, found));
    }
    return TRD_OK;
}

static trd_status make_stack(const trd__stack *stack, trd_dtype dtype, trd__params_make make, void *context,
                             char *out)
{
    size_t bytes = trd__tensor_bytes(&stack->one.shape, dtype);
    int64_t rows = stack->layers ? stack->layers : 1;
    for (int64_t row = 0; row < rows; row++)
        TRD_TRY(make(context, stack->first + (int)row * stack->stride, dtype, out + (size_t)row * bytes));
    return TRD_OK;
}

trd_status trd__params_fill_with(trd__backend *backend, trd__set *set, const trd_model *model,
                                 trd__params_make make, void *context)
{
    size_t largest = 0;
    for (int i = 0; i < set->entry_count; i++) {
        size_t bytes = trd__entry_bytes(&set->entries[i]);
        if (bytes > largest) largest = bytes;
    }
    void *buffer = trd__map(largest);
    if (!buffer) return TRD_NO_MEMORY;
    trd_status status = TRD_OK;
    for (int i = 0; status == TRD_OK && i < set->entry_count; i++) {
        status = make_stack(&model->stacks[i], set->entries[i].dtype, make, context, buffer);
        if (status == TRD_OK) status = backend->table->set_write(backend, set, i, buffer);
    }
    trd__unmap(buffer, largest);
    return status;
}

typedef struct reading {
    const trd_model *model;
    const trd__origin *origin;
} reading;

static trd_status read_tensor(void *context, int i, trd_dtype dtype, void *out)
{
    const reading *r = context;
    const char *name = r->model->parameters[i].name;
    trd_array array;
    if (!trd__origin_find(r->origin, name, &array) || !array.data)
        return trd__weights_read(r->origin->weights, name, dtype, out);
    trd__convert(array.dtype, array.data, dtype, out, (size_t)trd__shape_count(&array.shape));
    return TRD_OK;
}

trd_status trd__params_fill(trd__backend *backend, trd__set *set, const trd_model *model,
                            const trd__origin *origin)
{
    reading r = {model, origin};
    TRD_TRY(check_names(model, origin));
    TRD_TRY(check_shapes(model, origin));
    return trd__params_fill_with(backend, set, model, read_tensor, &r);
}
