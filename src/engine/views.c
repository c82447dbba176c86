/* Live views of the state, and handles that know when their array is gone. Invariant: the step path publishes
 * nothing; a read waits for the work that touches the set, so a view is always current. */
#include <string.h>

#include "engine/internal.h"

static trd_status check_view(trd_view view, int i)
{
    trd_engine *engine = view.engine;
    TRD_TRY(trd__engine_check(engine));
    if (i < 0 || i >= engine->pieces[view.set].count)
        return trd__fail(TRD_INVALID_ARGUMENT, "reading a view: expected entry 0 to %d, found %d",
                         engine->pieces[view.set].count - 1, i);
    if (view.set == TRD__ROLE_GRADIENTS && engine->micro_step == 0)
        return trd__fail(TRD_STATE, "reading gradients: expected accumulated micro-batches, found none; call "
                                    "fwd_bwd first");
    return TRD_OK;
}

trd_view trd_engine_params(trd_engine *engine)
{
    return (trd_view){engine, TRD__ROLE_PARAMS};
}

trd_view trd_engine_optimizer_state(trd_engine *engine)
{
    return (trd_view){engine, TRD__ROLE_OPTIMIZER};
}

trd_view trd_engine_gradients(trd_engine *engine)
{
    return (trd_view){engine, TRD__ROLE_GRADIENTS};
}

trd_view trd_engine_model_state(trd_engine *engine)
{
    return (trd_view){engine, TRD__ROLE_MODEL_STATE};
}

int trd_view_count(trd_view view)
{
    return view.engine->pieces[view.set].count;
}

trd_array trd_view_describe(trd_view view, int i)
{
    if (i < 0 || i >= trd_view_count(view)) return (trd_array){.name = ""};
    const trd__piece *piece = &view.engine->pieces[view.set].items[i];
    return (trd_array){.name = piece->name, .dtype = piece->dtype, .shape = piece->shape};
}

int trd_view_find(trd_view view, const char *name)
{
    const trd__pieces *pieces = &view.engine->pieces[view.set];
    for (int i = 0; name && i < pieces->count; i++)
        if (strcmp(pieces->items[i].name, name) == 0) return i;
    return -1;
}

trd_status trd_view_read(trd_view view, int i, void *data)
{
    trd_engine *engine = view.engine;
    TRD_TRY(check_view(view, i));
    trd_status status = trd__piece_read(engine, (trd__role)view.set, i, data);
    return status == TRD_OK ? TRD_OK : trd__engine_fail(engine, status, "reading state");
}

static uint64_t generation(trd_view view)
{
    const trd__set *set = view.engine->state[view.set];
    return set ? set->generation : 0; /* gradients that were never needed */
}

trd_status trd_view_write(trd_view view, int i, const void *data)
{
    trd_engine *engine = view.engine;
    TRD_TRY(check_view(view, i));
    TRD_TRY(trd__queue_flush(engine));
    trd__set *set = engine->state[view.set];
    trd_status status = trd__piece_write(engine, (trd__role)view.set, i, data);
    if (status != TRD_OK) return trd__engine_fail(engine, status, "writing state");
    set->generation++;
    engine->dirty = true;
    engine->base_step = engine->step;
    engine->base_generation = engine->state[TRD__ROLE_PARAMS]->generation;
    return TRD_OK;
}

trd_handle trd_view_handle(trd_view view, int i)
{
    return (trd_handle){view, i, generation(view)};
}

trd_status trd_handle_read(trd_handle handle, void *data)
{
    const trd_engine *engine = handle.view.engine;
    int set = handle.view.set;
    if (handle.index < 0 || handle.index >= trd_view_count(handle.view))
        return trd_view_read(handle.view, handle.index, data); /* which says so */
    if (handle.generation == generation(handle.view)) return trd_view_read(handle.view, handle.index, data);
    const char *name = trd_view_describe(handle.view, handle.index).name;
    if (set == TRD__ROLE_GRADIENTS || set == TRD__ROLE_MODEL_STATE)
        return trd__fail(TRD_DELETED, "reading \"%s\": deleted by a later micro-batch, update or restore",
                         name);
    if (handle.generation < engine->base_generation)
        return trd__fail(TRD_DELETED, "reading \"%s\": deleted by an earlier update, restore or write", name);
    /* Each update donates the set once, so the generation says which one it was. */
    int64_t step = engine->base_step + (int64_t)(handle.generation - engine->base_generation) + 1;
    return trd__fail(TRD_DELETED, "reading \"%s\": deleted by the update of step %lld", name,
                     (long long)step);
}

int64_t trd_engine_step(const trd_engine *engine)
{
    return engine->step;
}

trd_status trd_engine_set_step(trd_engine *engine, int64_t step)
{
    static const int64_t most = 1000000000000000; /* its successors are still exact in a checkpoint */
    if (step < 0 || step > most)
        return trd__fail(TRD_INVALID_ARGUMENT, "setting the step: expected 0 to %lld, found %lld",
                         (long long)most, (long long)step);
    TRD_TRY(trd__engine_check(engine));
    TRD_TRY(trd__queue_flush(engine));
    engine->step = step;
    engine->dirty = true;
    engine->base_step = step;
    engine->base_generation = engine->state[TRD__ROLE_PARAMS]->generation;
    return TRD_OK;
}

int64_t trd_engine_micro_step_count(const trd_engine *engine)
{
    return engine->micro_step;
}

int64_t trd_engine_total_micro_steps(const trd_engine *engine)
{
    return engine->total_micro_steps;
}

bool trd_engine_has_accumulated_grads(const trd_engine *engine)
{
    return engine->micro_step > 0;
}

uint64_t trd_engine_data_position(const trd_engine *engine)
{
    return engine->data_position;
}

const trd_model *trd_engine_model(const trd_engine *engine)
{
    return engine->model;
}

trd_engine_stats trd_engine_get_stats(const trd_engine *engine)
{
    trd_engine_stats stats = engine->stats;
    trd__backend_stats backend = engine->backend->table->stats(engine->backend);
    stats.busy_ns = backend.busy_ns;
    stats.workers = backend.workers;
    return stats;
}

trd_status trd_engine_wait(trd_engine *engine)
{
    return engine->backend->table->drain(engine->backend);
}
