/* Layouts of the engine's sets, made from the model's stacks before anything is compiled (without scanned
 * layers a stack is a parameter). Invariant: stack i is entry i of the parameters; the gradients hold one
 * entry of each trainable stack, in the same order, and the optimizer all states of the first, then of the
 * second; scalars come behind. Entry i of the model state is the model's state i. */
#include <string.h>

#include "base/alloc.h"
#include "base/shape.h"
#include "engine/internal.h"

static trd_status reserve(trd_engine *engine, trd__role role, size_t count)
{
    trd__layout *layout = &engine->layout[role];
    layout->entries = trd__arena_alloc(engine->arena, count, sizeof *layout->entries);
    return layout->entries ? TRD_OK : TRD_NO_MEMORY;
}

static trd__entry *add(trd__layout *layout, const char *name, trd_dtype dtype, trd_shape shape)
{
    trd__entry *entry = &layout->entries[layout->count++];
    *entry = (trd__entry){.name = name, .dtype = dtype, .shape = shape};
    return entry;
}

static void add_like(trd__layout *layout, const trd__stack *stack, trd_dtype dtype)
{
    trd__entry *entry = add(layout, stack->one.name, dtype, trd__shape_scalar());
    entry->shape = trd__stack_shape(stack, entry->axes);
}

/* A state of the optimizer, which knows one layer, for all rows of the stack. */
static void add_state(trd__layout *layout, const char *name, const trd__stack *stack,
                      const trd__optimizer_state *state)
{
    trd__stack all = {.one = {.name = name, .shape = state->shape}, .layers = stack->layers};
    memcpy(all.one.axes, state->axes, sizeof all.one.axes);
    add_like(layout, &all, state->dtype);
}

static trd_status build_parameters(trd_engine *engine)
{
    const trd_model *model = engine->model;
    TRD_TRY(reserve(engine, TRD__ROLE_PARAMS, (size_t)model->stack_count));
    for (int i = 0; i < model->stack_count; i++)
        add_like(&engine->layout[TRD__ROLE_PARAMS], &model->stacks[i], engine->options.weight_dtype);
    return TRD_OK;
}

static trd_status build_gradients(trd_engine *engine)
{
    TRD_TRY(reserve(engine, TRD__ROLE_GRADIENTS, (size_t)engine->trainable_count + TRD__SUM_COUNT));
    for (int i = 0; i < engine->trainable_count; i++) {
        const trd__stack *stack = &engine->model->stacks[engine->trainable[i]];
        bool taken = stack->one.flags != 0; /* and then not rounded */
        add_like(&engine->layout[TRD__ROLE_GRADIENTS], stack,
                 taken ? engine->options.weight_dtype : engine->options.grad_dtype);
    }
    static const char *const sums[TRD__SUM_COUNT] = {"denominator", "loss_sum", "sum_of_means",
                                                     "nonempty_micro_batches"};
    for (int i = 0; i < TRD__SUM_COUNT; i++)
        add(&engine->layout[TRD__ROLE_GRADIENTS], sums[i], TRD_F64, trd__shape_scalar());
    return TRD_OK;
}

static trd_status add_states(trd_engine *engine, const trd__stack *stack)
{
    if (stack->one.flags) return TRD_OK; /* it takes a value: the optimizer has no part in it */
    trd__optimizer_state states[TRD__OPTIMIZER_STATES];
    const trd__optimizer_type *type = engine->optimizer;
    int count = type->states ? type->states(&engine->options.optimizer, &stack->one, states) : 0;
    for (int k = 0; k < count; k++) {
        const char *name = trd__arena_format(engine->arena, "%s.%s", stack->one.name, states[k].name);
        if (!name) return TRD_NO_MEMORY;
        add_state(&engine->layout[TRD__ROLE_OPTIMIZER], name, stack, &states[k]);
    }
    return TRD_OK;
}

static trd_status build_optimizer(trd_engine *engine)
{
    trd__layout *layout = &engine->layout[TRD__ROLE_OPTIMIZER];
    size_t count = (size_t)engine->trainable_count;
    engine->first_state = trd__arena_alloc(engine->arena, count + 1, sizeof *engine->first_state);
    if (!engine->first_state) return TRD_NO_MEMORY;
    TRD_TRY(reserve(engine, TRD__ROLE_OPTIMIZER, count * TRD__OPTIMIZER_STATES + TRD__OPT_EXTRA_COUNT));
    for (int i = 0; i < engine->trainable_count; i++) {
        engine->first_state[i] = layout->count;
        TRD_TRY(add_states(engine, &engine->model->stacks[engine->trainable[i]]));
    }
    engine->first_state[count] = layout->count;
    add(layout, "count", TRD_F64, trd__shape_scalar());
    if (!engine->options.skip_step_on_spikes) return TRD_OK;
    trd_shape history = TRD__SHAPE(engine->options.skip_step_interval);
    add(layout, "spike_seen", TRD_F64, trd__shape_scalar());
    add(layout, "spike_next", TRD_F64, trd__shape_scalar());
    add(layout, "spike_losses", TRD_F64, history);
    add(layout, "spike_norms", TRD_F64, history);
    return TRD_OK;
}

static trd_status build_small(trd_engine *engine)
{
    TRD_TRY(reserve(engine, TRD__ROLE_SCALARS, 1));
    add(&engine->layout[TRD__ROLE_SCALARS], "learning_rate", TRD_F32, trd__shape_scalar());
    TRD_TRY(reserve(engine, TRD__ROLE_RESULTS, TRD__RESULT_COUNT));
    static const char *const names[TRD__RESULT_AUX] = {"loss_sum", "denominator", "gradient_norm",
                                                       "step_skipped", "nonfinite_grads"};
    for (int i = 0; i < TRD__RESULT_COUNT; i++) {
        const char *name =
            i < TRD__RESULT_AUX ? names[i] : trd__arena_format(engine->arena, "aux.%d", i - TRD__RESULT_AUX);
        if (!name) return TRD_NO_MEMORY;
        add(&engine->layout[TRD__ROLE_RESULTS], name, TRD_F64, trd__shape_scalar());
    }
    return TRD_OK;
}

static trd_status build_model_state(trd_engine *engine)
{
    const trd_model *model = engine->model;
    TRD_TRY(reserve(engine, TRD__ROLE_MODEL_STATE, (size_t)model->state_count));
    for (int i = 0; i < model->state_count; i++) {
        const trd__state *s = &model->states[i];
        add(&engine->layout[TRD__ROLE_MODEL_STATE], s->name, s->dtype, s->shape);
    }
    return TRD_OK;
}

trd_status trd__layout_build(trd_engine *engine)
{
    TRD_TRY(build_parameters(engine));
    TRD_TRY(build_gradients(engine));
    TRD_TRY(build_optimizer(engine));
    TRD_TRY(build_model_state(engine));
    engine->layout[TRD__ROLE_CONTRIBUTION] = engine->layout[TRD__ROLE_GRADIENTS];
    TRD_TRY(build_small(engine));
    return trd__pieces_build(engine);
}

uint64_t trd__layout_bytes(const trd__layout *layout)
{
    uint64_t bytes = 0;
    for (int i = 0; i < layout->count; i++) bytes += trd__entry_bytes(&layout->entries[i]);
    return bytes;
}

int trd__optimizer_entry(const trd_engine *engine, int extra)
{
    int entry = engine->first_state[engine->trainable_count] + extra;
    return entry < engine->layout[TRD__ROLE_OPTIMIZER].count ? entry : -1;
}
