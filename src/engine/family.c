/* Families of programs: one per payload signature, which is the length, the extra arrays (name, dtype, shape)
 * and the constants. Invariants: two payloads share a family exactly when the same programs serve both; the
 * families are listed by their last payload, newest first, and the oldest make room, so that a constant that
 * changes with every step fills no memory. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/shape.h"
#include "engine/internal.h"

enum { MOST_FAMILIES = 32 };

/* The shape an extra has in the program: its rows padded to the compiled batch. */
static trd_shape compiled_shape(const trd_engine *engine, const trd_batch *batch, const trd_array *extra)
{
    trd_shape shape = trd__shape_of(extra->shape.rank, extra->shape.dim);
    if (shape.rank > 0 && shape.dim[0] == batch->rows) shape.dim[0] = engine->options.rows;
    return shape;
}

static bool same_extras(const trd_engine *engine, const trd__family *family, const trd_batch *batch)
{
    if (family->inputs.count != TRD__INPUT_COUNT + batch->extra_count) return false;
    for (int i = 0; i < batch->extra_count; i++) {
        const trd__entry *entry = &family->inputs.entries[TRD__INPUT_COUNT + i];
        trd_shape shape = compiled_shape(engine, batch, &batch->extras[i]);
        if (entry->dtype != batch->extras[i].dtype || !trd__shape_equal(&entry->shape, &shape) ||
            strcmp(entry->name, batch->extras[i].name) != 0)
            return false;
    }
    return true;
}

static bool same_constants(const trd__family *family, const trd_batch *batch)
{
    if (family->constant_count != batch->constant_count) return false;
    for (int i = 0; i < batch->constant_count; i++)
        if (memcmp(&family->constants[i].value, &batch->constants[i].value, sizeof(double)) != 0 ||
            strcmp(family->constants[i].name, batch->constants[i].name) != 0)
            return false;
    return true;
}

static trd_status family_inputs(const trd_engine *engine, const trd_batch *batch, trd__family *family)
{
    static const char *const axes[] = {"activation_batch", "activation_length"};
    int count = TRD__INPUT_COUNT + batch->extra_count;
    trd__entry *entries = trd__arena_alloc(family->arena, (size_t)count, sizeof *entries);
    if (!entries) return TRD_NO_MEMORY;
    family->inputs = (trd__layout){entries, count};
    for (int i = 0; i < TRD__INPUT_COUNT; i++)
        entries[i] = (trd__entry){.name = trd__input_names[i],
                                  .replica = TRD__REPLICA_ROWS,
                                  .dtype = i == TRD__INPUT_WEIGHTS ? TRD_F32 : TRD_I32,
                                  .shape = TRD__SHAPE(engine->options.rows, batch->length),
                                  .axes = {axes[0], axes[1]}};
    for (int i = 0; i < batch->extra_count; i++) {
        trd__entry *entry = &entries[TRD__INPUT_COUNT + i];
        entry->name = trd__arena_strdup(family->arena, batch->extras[i].name);
        entry->dtype = batch->extras[i].dtype;
        entry->shape = compiled_shape(engine, batch, &batch->extras[i]);
        if (entry->shape.rank > 0 && entry->shape.dim[0] == engine->options.rows) { /* a value for each row */
            entry->axes[0] = axes[0];
            entry->replica = TRD__REPLICA_ROWS;
        }
        if (!entry->name) return TRD_NO_MEMORY;
    }
    family->constants =
        trd__arena_alloc(family->arena, (size_t)batch->constant_count + 1, sizeof *family->constants);
    if (!family->constants) return TRD_NO_MEMORY;
    for (int i = 0; i < batch->constant_count; i++) {
        const char *name = trd__arena_strdup(family->arena, batch->constants[i].name);
        if (!name) return TRD_NO_MEMORY;
        family->constants[i] = (trd_constant){name, batch->constants[i].value};
    }
    family->constant_count = batch->constant_count;
    return TRD_OK;
}

static trd_status family_create(trd_engine *engine, const trd_batch *batch, trd__family **created)
{
    trd__family *family = trd__calloc(1, sizeof *family);
    if (!family) return TRD_NO_MEMORY;
    family->length = batch->length;
    family->arena = trd__arena_create();
    trd_status status = family->arena ? family_inputs(engine, batch, family) : TRD_NO_MEMORY;
    if (status != TRD_OK) {
        trd__arena_free(family->arena);
        trd__free(family);
        return status;
    }
    *created = family;
    return TRD_OK;
}

static const trd_constant *find_constant(const trd__family *family, const char *name)
{
    for (int i = 0; i < family->constant_count; i++)
        if (strcmp(family->constants[i].name, name) == 0) return &family->constants[i];
    return NULL;
}

/* How the constants differ, by the first that is new or has another value. */
static void tell_constants(const trd__family *before, const trd_batch *batch, char *text, size_t bytes)
{
    snprintf(text, bytes, "%d constants, before %d", batch->constant_count, before->constant_count);
    for (int i = 0; i < batch->constant_count; i++) {
        const trd_constant *now = &batch->constants[i], *old = find_constant(before, now->name);
        if (old && memcmp(&old->value, &now->value, sizeof now->value) == 0) continue;
        if (old)
            snprintf(text, bytes, "constant %s is %.17g, before %.17g", now->name, now->value, old->value);
        else
            snprintf(text, bytes, "constant %s is new", now->name);
        return;
    }
}

/* Why a payload needs programs of its own, when there are programs already. */
static void log_signature(const trd_engine *engine, const trd_batch *batch)
{
    const trd__family *before = engine->families;
    char why[256];
    if (!before) return;
    if (before->length != batch->length)
        snprintf(why, sizeof why, "length is %d, before %d", batch->length, before->length);
    else if (!same_extras(engine, before, batch))
        snprintf(why, sizeof why, "the extra arrays differ in name, dtype or shape");
    else
        tell_constants(before, batch, why, sizeof why);
    trd__log(&engine->options.log, TRD_LOG_INFO, "a payload of another signature compiles its programs: %s",
             why);
}

/* The family whose last payload lies furthest back goes, once nothing queued is of it. */
static trd_status drop_oldest(trd_engine *engine)
{
    TRD_TRY(trd__queue_flush(engine));
    trd__family **at = &engine->families;
    while ((*at)->next) at = &(*at)->next;
    trd__family *oldest = *at;
    *at = NULL;
    trd__family_free(engine, oldest);
    return TRD_OK;
}

trd_status trd__family_find(trd_engine *engine, const trd_batch *batch, trd__family **family)
{
    int count = 0;
    for (trd__family **at = &engine->families; *at; at = &(*at)->next, count++) {
        trd__family *f = *at;
        if (f->length != batch->length || !same_extras(engine, f, batch) || !same_constants(f, batch))
            continue;
        *at = f->next;
        f->next = engine->families;
        *family = engine->families = f;
        return TRD_OK;
    }
    if (count >= MOST_FAMILIES) TRD_TRY(drop_oldest(engine));
    TRD_TRY(family_create(engine, batch, family));
    log_signature(engine, batch);
    (*family)->next = engine->families;
    engine->families = *family;
    return TRD_OK;
}

static trd_status reserve_staging(const trd_engine *engine, trd__family *family)
{
    size_t count = (size_t)engine->options.rows * (size_t)family->length;
    trd__arena *arena = family->arena;
    family->tokens = trd__arena_alloc(arena, count, sizeof *family->tokens);
    family->segments = trd__arena_alloc(arena, count, sizeof *family->segments);
    family->positions = trd__arena_alloc(arena, count, sizeof *family->positions);
    family->weights = trd__arena_alloc(arena, count, sizeof *family->weights);
    if (!family->tokens || !family->segments || !family->positions || !family->weights) return TRD_NO_MEMORY;
    for (int i = TRD__INPUT_COUNT; i < family->inputs.count; i++) {
        const trd__entry *entry = &family->inputs.entries[i];
        family->extra[i - TRD__INPUT_COUNT] = trd__arena_alloc(
            arena, (size_t)trd__shape_count(&entry->shape) + 1, trd_dtype_bytes(entry->dtype));
        if (!family->extra[i - TRD__INPUT_COUNT]) return TRD_NO_MEMORY;
    }
    return TRD_OK;
}

trd_status trd__family_rings(trd_engine *engine, trd__family *family)
{
    if (family->ring_size) return TRD_OK;
    if (!family->tokens) TRD_TRY(reserve_staging(engine, family));
    int size = engine->max_inflight + 1;
    if (!family->ring) family->ring = trd__arena_alloc(family->arena, (size_t)size, sizeof(trd__set *));
    if (!family->ring) return TRD_NO_MEMORY;
    for (int i = 0; i < size; i++)
        if (!family->ring[i])
            TRD_TRY(engine->backend->table->set_create(engine->backend, "inputs", family->inputs.entries,
                                                       family->inputs.count, &family->ring[i]));
    family->ring_size = size;
    return TRD_OK;
}

void trd__forward_free(trd_engine *engine, trd__forward *forward)
{
    const trd__backend_table *table = engine->backend->table;
    if (forward->compiled.executable) table->executable_free(engine->backend, forward->compiled.executable);
    if (forward->results) table->set_free(engine->backend, forward->results);
    trd__free(forward);
}

void trd__family_free(trd_engine *engine, trd__family *family)
{
    const trd__backend_table *table = engine->backend->table;
    while (family->forwards) {
        trd__forward *f = family->forwards;
        family->forwards = f->next;
        trd__forward_free(engine, f);
    }
    for (int kind = 0; kind < TRD__PROGRAM_COUNT; kind++)
        if (family->programs[kind].executable)
            table->executable_free(engine->backend, family->programs[kind].executable);
    for (int i = 0; family->ring && i <= engine->max_inflight; i++)
        if (family->ring[i]) table->set_free(engine->backend, family->ring[i]);
    trd__arena_free(family->arena);
    trd__free(family);
}
