/* The state as everything outside the programs knows it: by the names and shapes of parameters, whether their
 * layers are stacked or not. Invariant: the pieces of a role are the entries that it would have without
 * stacks, in the same order, and those of one entry come in the order of its rows. */
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "engine/internal.h"

static trd_status add(trd_engine *engine, trd__role role, int entry, int64_t row, const char *name)
{
    const trd__entry *whole = &engine->layout[role].entries[entry];
    trd__pieces *pieces = &engine->pieces[role];
    trd__piece *piece = &pieces->items[pieces->count++];
    *piece =
        (trd__piece){.entry = entry, .row = row, .name = name, .dtype = whole->dtype, .shape = whole->shape};
    if (row >= 0) piece->shape = trd__shape_of(whole->shape.rank - 1, whole->shape.dim + 1);
    return name ? TRD_OK : TRD_NO_MEMORY;
}

/* Parameter p's piece of an entry, which is called like the parameter's stack with a state's name behind. */
static trd_status add_of(trd_engine *engine, trd__role role, int entry, const trd__parameter *p)
{
    const trd__stack *stack = &engine->model->stacks[p->stack];
    const char *name = engine->layout[role].entries[entry].name;
    if (!stack->layers) return add(engine, role, entry, -1, name);
    const char *state = name + strlen(stack->one.name);
    name = *state ? trd__arena_format(engine->arena, "%s%s", p->name, state) : p->name;
    return add(engine, role, entry, p->row, name);
}

static trd_status add_parameter(trd_engine *engine, const trd__parameter *p, int gradient)
{
    TRD_TRY(add_of(engine, TRD__ROLE_PARAMS, p->stack, p));
    if (gradient < 0) return TRD_OK; /* frozen */
    TRD_TRY(add_of(engine, TRD__ROLE_GRADIENTS, gradient, p));
    for (int i = engine->first_state[gradient]; i < engine->first_state[gradient + 1]; i++)
        TRD_TRY(add_of(engine, TRD__ROLE_OPTIMIZER, i, p));
    return TRD_OK;
}

/* The entries of a role from first on, each as it is. */
static trd_status add_whole(trd_engine *engine, trd__role role, int first)
{
    for (int i = first; i < engine->layout[role].count; i++)
        TRD_TRY(add(engine, role, i, -1, engine->layout[role].entries[i].name));
    return TRD_OK;
}

static trd_status reserve(trd_engine *engine)
{
    size_t parameters = (size_t)engine->model->parameter_count;
    const size_t most[TRD__STATE_ROLES] = {[TRD__ROLE_PARAMS] = parameters,
                                           [TRD__ROLE_GRADIENTS] = parameters + TRD__SUM_COUNT,
                                           [TRD__ROLE_OPTIMIZER] =
                                               parameters * TRD__OPTIMIZER_STATES + TRD__OPT_EXTRA_COUNT,
                                           [TRD__ROLE_MODEL_STATE] = (size_t)engine->model->state_count};
    for (int role = 0; role < TRD__STATE_ROLES; role++) {
        trd__pieces *pieces = &engine->pieces[role];
        pieces->items = trd__arena_alloc(engine->arena, most[role] + 1, sizeof *pieces->items);
        engine->saved_names[role] = trd__arena_alloc(engine->arena, most[role] + 1, sizeof(char *));
        if (!pieces->items || !engine->saved_names[role]) return TRD_NO_MEMORY;
    }
    return TRD_OK;
}

trd_status trd__pieces_build(trd_engine *engine)
{
    const trd_model *model = engine->model;
    int *gradient = trd__arena_alloc(engine->arena, (size_t)model->stack_count + 1, sizeof *gradient);
    if (!gradient) return TRD_NO_MEMORY;
    TRD_TRY(reserve(engine));
    for (int i = 0; i < model->stack_count; i++) gradient[i] = -1;
    for (int i = 0; i < engine->trainable_count; i++) gradient[engine->trainable[i]] = i;
    for (int i = 0; i < model->parameter_count; i++)
        TRD_TRY(add_parameter(engine, &model->parameters[i], gradient[model->parameters[i].stack]));
    TRD_TRY(add_whole(engine, TRD__ROLE_GRADIENTS, engine->trainable_count));
    TRD_TRY(add_whole(engine, TRD__ROLE_OPTIMIZER, engine->first_state[engine->trainable_count]));
    return add_whole(engine, TRD__ROLE_MODEL_STATE, 0);
}

size_t trd__piece_bytes(const trd__piece *piece)
{
    return trd__tensor_bytes(&piece->shape, piece->dtype);
}

int trd__saved_pieces(const trd_engine *engine, trd__role role, bool middle)
{
    if (role != TRD__ROLE_GRADIENTS) return engine->pieces[role].count;
    return middle ? engine->pieces[role].count - TRD__SUM_COUNT : 0;
}

static int saved_entries(const trd_engine *engine, trd__role role, bool middle)
{
    if (role != TRD__ROLE_GRADIENTS) return engine->layout[role].count;
    return middle ? engine->trainable_count : 0;
}

/* Of an entry in a copy of the state. Its pieces are parts of it. */
static size_t copied_bytes(const trd__entry *entry)
{
    return trd__align_up(trd__entry_bytes(entry));
}

uint64_t trd__pieces_bytes(const trd_engine *engine, trd__role role, bool middle)
{
    uint64_t bytes = 0;
    for (int i = 0; i < saved_entries(engine, role, middle); i++)
        bytes += copied_bytes(&engine->layout[role].entries[i]);
    return bytes;
}

/* places[i] is where entry i is then. */
static trd_status read_entries(trd_engine *engine, trd__role role, bool middle, char *memory, char **places)
{
    for (int i = 0; i < saved_entries(engine, role, middle); i++) {
        trd_status status = trd__entry_read(engine, role, i, memory);
        if (status != TRD_OK) return trd__engine_fail(engine, status, "reading state");
        places[i] = memory;
        memory += copied_bytes(&engine->layout[role].entries[i]);
    }
    return TRD_OK;
}

trd_status trd__pieces_read(trd_engine *engine, trd__role role, bool middle, char *memory, trd_array *arrays)
{
    char **places = trd__calloc((size_t)saved_entries(engine, role, middle) + 1, sizeof *places);
    trd_status status = places ? read_entries(engine, role, middle, memory, places) : TRD_NO_MEMORY;
    for (int i = 0; status == TRD_OK && i < trd__saved_pieces(engine, role, middle); i++) {
        const trd__piece *piece = &engine->pieces[role].items[i];
        size_t row = piece->row < 0 ? 0 : (size_t)piece->row;
        arrays[i].data = places[piece->entry] + row * trd__piece_bytes(piece);
    }
    trd__free(places);
    return status;
}

trd_status trd__piece_read(trd_engine *engine, trd__role role, int i, void *data)
{
    const trd__piece *piece = &engine->pieces[role].items[i];
    size_t bytes = trd__piece_bytes(piece);
    if (piece->row < 0) return trd__entry_read(engine, role, piece->entry, data);
    return trd__entry_read_part(engine, role, piece->entry, (size_t)piece->row * bytes, bytes, data);
}

static trd_status replace_row(trd_engine *engine, trd__role role, const trd__piece *piece, const void *data,
                              char *whole)
{
    size_t bytes = trd__piece_bytes(piece);
    TRD_TRY(trd__entry_read(engine, role, piece->entry, whole));
    if (bytes) memcpy(whole + (size_t)piece->row * bytes, data, bytes);
    return trd__entry_write(engine, role, piece->entry, whole);
}

trd_status trd__piece_write(trd_engine *engine, trd__role role, int i, const void *data)
{
    const trd__piece *piece = &engine->pieces[role].items[i];
    if (piece->row < 0) return trd__entry_write(engine, role, piece->entry, data);
    size_t bytes = trd__entry_bytes(&engine->layout[role].entries[piece->entry]);
    char *whole = trd__map(bytes);
    if (!whole) return TRD_NO_MEMORY;
    trd_status status = replace_row(engine, role, piece, data, whole);
    trd__unmap(whole, bytes);
    return status;
}

/* Writes an entry from the arrays of its pieces, of which `first` is the first. */
static trd_status write_entry(trd_engine *engine, trd__role role, int first, trd__piece_find find,
                              const void *context)
{
    const trd__pieces *pieces = &engine->pieces[role];
    const int entry = pieces->items[first].entry;
    const trd_array *array = find(context, role, first);
    if (pieces->items[first].row < 0 && array->dtype == pieces->items[first].dtype)
        return trd__entry_write(engine, role, entry, array->data);
    size_t bytes = trd__entry_bytes(&engine->layout[role].entries[entry]);
    char *whole = trd__map(bytes), *at = whole;
    if (!whole) return TRD_NO_MEMORY;
    for (int i = first; i < pieces->count; i++) {
        const trd__piece *piece = &pieces->items[i];
        if (piece->entry != entry) continue;
        array = find(context, role, i);
        trd__convert(array->dtype, array->data, piece->dtype, at, (size_t)trd__shape_count(&piece->shape));
        at += trd__piece_bytes(piece);
    }
    trd_status status = trd__entry_write(engine, role, entry, whole);
    trd__unmap(whole, bytes);
    return status;
}

trd_status trd__pieces_write(trd_engine *engine, trd__role role, bool middle, trd__piece_find find,
                             const void *context)
{
    for (int i = 0; i < trd__saved_pieces(engine, role, middle); i++) {
        if (engine->pieces[role].items[i].row <= 0) TRD_TRY(write_entry(engine, role, i, find, context));
    }
    return TRD_OK;
}
