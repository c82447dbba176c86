/* Stacks: how a model's parameters are held. Invariant: every parameter is a row of one stack, the stacks are
 * in the order of their first parameters, and a stack's rows lie the same number of parameters apart. */
#include <string.h>

#include "base/shape.h"
#include "graph/program.h"
#include "nn/model.h"
#include "ops/rules.h"

static trd__stack *find(const trd_model *model, const char *layer_name)
{
    for (int i = model->stack_count - 1; i >= 0; i--)
        if (model->stacks[i].layers && strcmp(model->stacks[i].one.name, layer_name) == 0)
            return &model->stacks[i];
    return NULL;
}

static void begin_stack(trd_model *model, int number)
{
    trd__parameter *p = &model->parameters[number];
    trd__stack *stack = &model->stacks[model->stack_count];
    *stack = (trd__stack){.one = *p, .first = number};
    p->stack = model->stack_count++;
    p->row = 0;
    if (!p->layer_name) return;
    stack->one.name = p->layer_name;
    stack->layers = 1;
}

static trd_status add_row(const trd_model *model, trd__stack *stack, int number)
{
    trd__parameter *p = &model->parameters[number];
    int from_first = number - stack->first;
    if (stack->layers == 1) stack->stride = from_first;
    if (!trd__shape_equal(&p->shape, &stack->one.shape) || p->init != stack->one.init ||
        p->flags != stack->one.flags || from_first != stack->layers * stack->stride)
        return trd__fail(TRD_INTERNAL, "stacking layers: expected %s like %s in every layer, found another",
                         p->name, stack->one.name);
    p->stack = (int)(stack - model->stacks);
    p->row = stack->layers++;
    return TRD_OK;
}

trd_status trd__model_stack_layers(trd_model *model)
{
    bool any = false;
    model->stack_count = 0;
    for (int i = 0; i < model->parameter_count; i++) {
        const char *layer_name = model->parameters[i].layer_name;
        trd__stack *stack = layer_name ? find(model, layer_name) : NULL;
        any = any || layer_name;
        if (stack)
            TRD_TRY(add_row(model, stack, i));
        else
            begin_stack(model, i);
    }
    return any ? TRD_OK
               : trd__fail(TRD_UNSUPPORTED,
                           "scan_layers: the architecture \"%s\" has no layers to scan; set it to false",
                           model->info.architecture ? model->info.architecture : "");
}

trd_shape trd__stack_shape(const trd__stack *stack, const char **axes)
{
    const trd__parameter *one = &stack->one;
    int first = stack->layers > 0;
    trd_shape shape = {.rank = one->shape.rank + first};
    if (first) shape.dim[0] = stack->layers;
    if (first && axes) axes[0] = TRD__AXIS_LAYERS;
    for (int axis = 0; axis < one->shape.rank; axis++) {
        shape.dim[first + axis] = one->shape.dim[axis];
        if (axes) axes[first + axis] = one->axes[axis];
    }
    return shape;
}

trd_status trd__model_by_stack(const trd_model *model, const char *key, const bool *chosen, bool *by_stack)
{
    for (int i = 0; i < model->stack_count; i++) {
        const trd__stack *stack = &model->stacks[i];
        by_stack[i] = chosen[stack->first];
        for (int64_t row = 1; row < stack->layers; row++) {
            int number = stack->first + (int)row * stack->stride;
            if (chosen[number] == by_stack[i]) continue;
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "%s: expected patterns that treat scanned layers alike, found ones that tell %s "
                             "from %s; cover all layers, or set scan_layers: false",
                             key, model->parameters[stack->first].name, model->parameters[number].name);
        }
    }
    return TRD_OK;
}

void trd__model_unstack(trd_builder *b, const trd_model *model, const trd_value *stacks, bool cut,
                        trd_value *parameters)
{
    for (int i = 0; i < model->parameter_count; i++) {
        const trd__parameter *p = &model->parameters[i];
        const trd__stack *stack = &model->stacks[p->stack];
        parameters[i] = (trd_value){NULL, 0};
        if (stack->layers == 0)
            parameters[i] = stacks[p->stack];
        else if (cut)
            parameters[i] = trd__take_row(b, stacks[p->stack], p->row);
    }
}
