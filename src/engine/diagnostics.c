/* The slower designs behind the diagnostic switches, kept out of the step path: the queue calls the hooks
 * here only where a switch adds host work, and accumulate: separate has its programs here. Invariant: no hook
 * changes a number or a program; all they do is wait and walk.
 *
 * A *tree* stands for the model whose attributes an engine of the slower kind would keep: a handle to every
 * array of the state, reached by name. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/shape.h"
#include "engine/internal.h"

typedef struct named {
    const char *name;
    int entry;
} named;

typedef struct held {
    trd_handle handle;
    trd__event event;
} held;

struct trd__diagnostics {
    trd_handle *tree[TRD__STATE_ROLES]; /* by entry */
    named *index[TRD__STATE_ROLES];     /* sorted by name */
    trd_handle *arguments;              /* of the call that is being made */
    int arrays;                         /* entries of all state sets */
    held *held;                         /* arrays of them for each flight; NULL: throttle_on is scalar */
};

static bool is_on(const trd_engine *engine, trd_diagnostic which)
{
    return engine->options.diagnostics[which];
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

static trd_handle handle_of(trd_engine *engine, int role, int entry)
{
    return trd_view_handle((trd_view){engine, role}, entry);
}

static trd_status create_tree(trd_engine *engine, int role)
{
    trd__diagnostics *d = engine->diagnostics;
    const trd__pieces *pieces = &engine->pieces[role];
    size_t count = (size_t)pieces->count;
    d->tree[role] = trd__arena_alloc(engine->arena, count + 1, sizeof *d->tree[role]);
    d->index[role] = trd__arena_alloc(engine->arena, count + 1, sizeof *d->index[role]);
    if (!d->tree[role] || !d->index[role]) return TRD_NO_MEMORY;
    for (int i = 0; i < pieces->count; i++) {
        d->tree[role][i] = handle_of(engine, role, i);
        d->index[role][i] = (named){pieces->items[i].name, i};
    }
    qsort(d->index[role], count, sizeof *d->index[role], by_name);
    d->arrays += pieces->count;
    return TRD_OK;
}

trd_status trd__diagnostics_create(trd_engine *engine)
{
    bool throttle = is_on(engine, TRD_DIAGNOSTIC_THROTTLE_ON);
    if (!is_on(engine, TRD_DIAGNOSTIC_PUBLISH) && !is_on(engine, TRD_DIAGNOSTIC_STATE) && !throttle)
        return TRD_OK;
    trd__diagnostics *d = trd__arena_alloc(engine->arena, 1, sizeof *d);
    if (!d) return TRD_NO_MEMORY;
    engine->diagnostics = d;
    for (int role = 0; role < TRD__STATE_ROLES; role++) TRD_TRY(create_tree(engine, role));
    size_t arrays = (size_t)d->arrays, flights = (size_t)engine->flight_count;
    d->arguments = trd__arena_alloc(engine->arena, arrays + 1, sizeof *d->arguments);
    if (throttle) d->held = trd__arena_alloc(engine->arena, arrays * flights, sizeof *d->held);
    return d->arguments && (d->held || !throttle) ? TRD_OK : TRD_NO_MEMORY;
}

static int find(const trd_engine *engine, int role, const char *name)
{
    named key = {name, 0};
    const named *found = bsearch(&key, engine->diagnostics->index[role], (size_t)engine->pieces[role].count,
                                 sizeof key, by_name);
    return found ? found->entry : -1;
}

/* state: split. Every array of the model is found by its name, checked and put into the argument list. */
static trd_status split(trd_engine *engine)
{
    int count = 0;
    for (int role = 0; role < TRD__STATE_ROLES; role++)
        for (int i = 0; i < engine->pieces[role].count; i++) {
            const trd__piece *piece = &engine->pieces[role].items[i];
            const trd__layout *layout = trd__mesh_device_layout(engine, (trd__role)role);
            const trd__entry *expected = &layout->entries[piece->entry];
            int found = find(engine, role, piece->name);
            const trd__entry *entry = &engine->state[role]->entries[piece->entry];
            if (found < 0 || entry->dtype != expected->dtype ||
                !trd__shape_equal(&entry->shape, &expected->shape))
                return trd__fail(TRD_INTERNAL, "splitting the state: expected \"%s\", found %s", piece->name,
                                 found < 0 ? "no such array" : "another dtype or shape");
            engine->diagnostics->arguments[count++] = handle_of(engine, role, found);
        }
    return TRD_OK;
}

/* The arguments as the call has left them go back to their places in the tree. */
static void merge_back(trd_engine *engine)
{
    trd__diagnostics *d = engine->diagnostics;
    for (int n = 0; n < d->arrays; n++) {
        const trd_handle *argument = &d->arguments[n];
        int role = argument->view.set;
        int entry = find(engine, role, trd_view_describe(argument->view, argument->index).name);
        d->tree[role][entry] = handle_of(engine, role, entry);
    }
}

/* publish: eager. The work is waited for, then the tree gets the arrays of every set that it changed. */
static trd_status publish(trd_engine *engine, trd__program_kind kind)
{
    TRD_TRY(trd__queue_drain(engine));
    for (int role = 0; role < TRD__STATE_ROLES; role++) {
        if (!(trd__program_access(engine, kind, role) & TRD__WRITE)) continue;
        for (int i = 0; i < engine->pieces[role].count; i++)
            engine->diagnostics->tree[role][i] = handle_of(engine, role, i);
    }
    return TRD_OK;
}

static held *held_by(const trd_engine *engine, const trd__flight *flight)
{
    return engine->diagnostics->held + (flight - engine->flights) * engine->diagnostics->arrays;
}

/* throttle_on: state. The queue keeps a handle to every array of the state as the run leaves it. */
static void hold(trd_engine *engine, const trd__flight *flight)
{
    held *h = held_by(engine, flight);
    for (int role = 0; role < TRD__STATE_ROLES; role++)
        for (int i = 0; i < engine->pieces[role].count; i++)
            *h++ = (held){handle_of(engine, role, i), flight->event};
}

trd_status trd__diagnostics_before_run(trd_engine *engine)
{
    return is_on(engine, TRD_DIAGNOSTIC_STATE) ? split(engine) : TRD_OK;
}

trd_status trd__diagnostics_after_run(trd_engine *engine, const trd__flight *flight)
{
    if (engine->diagnostics->held) hold(engine, flight);
    if (is_on(engine, TRD_DIAGNOSTIC_STATE)) merge_back(engine);
    return is_on(engine, TRD_DIAGNOSTIC_PUBLISH) ? publish(engine, flight->compiled->kind) : TRD_OK;
}

trd_status trd__diagnostics_finished(trd_engine *engine, const trd__flight *flight)
{
    if (!engine->diagnostics->held) return TRD_OK;
    const held *h = held_by(engine, flight);
    for (int n = 0; n < engine->diagnostics->arrays; n++) {
        trd_status status = engine->backend->table->event_wait(engine->backend, h[n].event);
        if (status != TRD_OK) return trd__engine_fail(engine, status, "running a queued program");
    }
    return TRD_OK;
}

/* accumulate: separate. What "first" left in the contribution defines the accumulators, or is added to them.
 * Leaves that take a value instead of a gradient take the newest, or the maximum. */
trd_status trd__trace_merge(trd__trace *trace, bool add)
{
    trd_builder *b = trace->program->builder;
    const trd_engine *engine = trace->engine;
    for (int i = 0; i < engine->layout[TRD__ROLE_GRADIENTS].count; i++) {
        bool sum = i >= engine->trainable_count;
        unsigned flags = sum ? 0 : engine->model->stacks[engine->trainable[i]].one.flags;
        trd_value value = trd__trace_input(trace, TRD__ROLE_CONTRIBUTION, i);
        if (add && !flags)
            value = trd_accumulate(b, trd__trace_input(trace, TRD__ROLE_GRADIENTS, i), value);
        else if (add && flags & TRD_PARAM_OVERWRITE_MAX)
            value = trd_max(b, trd__trace_input(trace, TRD__ROLE_GRADIENTS, i), value);
        trd__trace_output(trace, TRD__ROLE_GRADIENTS, i, value);
    }
    return trd_builder_status(b);
}
