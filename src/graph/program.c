/* Programs: slots, the leaves that read them and the outputs that write them. Invariant: an entry has at most
 * one leaf and at most one output, and both have the entry's dtype and shape. */
#include "graph/program.h"

#include <string.h>

#include "base/alloc.h"
#include "base/shape.h"

enum { FIRST_OUTPUTS = 16 };

trd_status trd__program_create(const char *name, trd__program **program)
{
    *program = NULL;
    trd__program *p = trd__calloc(1, sizeof *p);
    if (!p) return TRD_NO_MEMORY;
    trd_status status = trd_builder_create(&p->builder);
    if (status == TRD_OK) {
        p->name = trd__arena_strdup(p->builder->graph.arena, name);
        if (!p->name) status = TRD_NO_MEMORY;
    }
    if (status != TRD_OK) {
        trd__program_free(p);
        return status;
    }
    *program = p;
    return TRD_OK;
}

void trd__program_free(trd__program *program)
{
    if (!program) return;
    trd_builder_free(program->builder);
    trd__free(program);
}

trd_status trd__each_body(const trd__program *program, trd_status (*visit)(trd__program *body))
{
    const trd_graph *graph = &program->builder->graph;
    for (int i = 0; i < graph->node_count; i++)
        for (int body = 0; body < graph->nodes[i]->body_count; body++)
            TRD_TRY(visit(graph->nodes[i]->bodies[body]));
    return TRD_OK;
}

/* Copies an entry with its strings into the arena. */
static bool copy_entry(trd__arena *arena, const trd__entry *entry, trd__entry *copy)
{
    *copy = *entry;
    copy->shape = trd__shape_of(entry->shape.rank, entry->shape.dim);
    memset(copy->axes, 0, sizeof copy->axes);
    copy->name = trd__arena_strdup(arena, entry->name);
    if (!copy->name) return false;
    for (int i = 0; i < entry->shape.rank; i++) {
        if (!entry->axes[i]) continue;
        copy->axes[i] = trd__arena_strdup(arena, entry->axes[i]);
        if (!copy->axes[i]) return false;
    }
    return true;
}

static bool fill_slot(trd__arena *arena, trd__slot *slot, const char *name, const trd__entry *entries)
{
    size_t count = (size_t)slot->entry_count;
    trd__entry *copies = trd__arena_alloc(arena, count + 1, sizeof *copies);
    slot->name = trd__arena_strdup(arena, name);
    slot->leaves = trd__arena_alloc(arena, count + 1, sizeof *slot->leaves);
    slot->written = trd__arena_alloc(arena, count + 1, sizeof *slot->written);
    if (!copies || !slot->name || !slot->leaves || !slot->written) return false;
    for (size_t i = 0; i < count; i++)
        if (!copy_entry(arena, &entries[i], &copies[i])) return false;
    slot->entries = copies;
    return true;
}

int trd__program_slot(trd__program *program, const char *name, trd__access access, const trd__entry *entries,
                      int entry_count)
{
    trd_builder *b = program->builder;
    if (b->status != TRD_OK) return -1;
    if (program->slot_count == TRD__MAX_SLOTS) {
        trd_builder_fail(b, TRD_INVALID_ARGUMENT, "program %s: slot \"%s\": expected at most %d slots",
                         program->name, name, TRD__MAX_SLOTS);
        return -1;
    }
    trd__slot *slot = &program->slots[program->slot_count];
    *slot = (trd__slot){.access = access, .entry_count = entry_count};
    if (!fill_slot(b->graph.arena, slot, name, entries)) {
        trd__builder_stick(b, TRD_NO_MEMORY);
        return -1;
    }
    return program->slot_count++;
}

static bool has_local_type(const trd__program *program, const trd__entry *entry)
{
    return program->replicas > 1 && entry->replica != TRD__REPLICA_SHARED;
}

trd_shape trd__program_shape(const trd__program *program, const trd__entry *entry)
{
    trd_shape shape = trd__shape_of(entry->shape.rank, entry->shape.dim);
    if (!has_local_type(program, entry)) return shape;
    if (entry->replica == TRD__REPLICA_OWN) return trd__shape_of(shape.rank - 1, shape.dim + 1);
    shape.dim[0] /= program->replicas;
    return shape;
}

const char *const *trd__program_axes(const trd__program *program, const trd__entry *entry)
{
    return entry->axes + (has_local_type(program, entry) && entry->replica == TRD__REPLICA_OWN);
}

/* Whether the program's replicas can share the entry out; else the builder's error is set. */
static bool check_replicas(trd__program *program, const trd__entry *entry)
{
    if (!has_local_type(program, entry)) return true;
    int64_t rows = entry->shape.rank ? entry->shape.dim[0] : 0;
    bool own = entry->replica == TRD__REPLICA_OWN;
    if (own ? rows == program->replicas : rows > 0 && rows % program->replicas == 0) return true;
    char shape[TRD__SHAPE_TEXT];
    trd_builder_fail(program->builder, TRD_SHAPE,
                     "program %s: entry \"%s\" of %s: expected a first dimension that %s its %lld replicas",
                     program->name, entry->name, trd__shape_text(&entry->shape, shape),
                     own ? "is that of" : "divides among", (long long)program->replicas);
    return false;
}

/* The slot, checked: NULL with the builder's error set when slot or entry is out of range or not open to
 * access. */
static trd__slot *find_entry(trd__program *program, int slot, int entry, trd__access access)
{
    trd_builder *b = program->builder;
    if (b->status != TRD_OK) return NULL;
    if (slot < 0 || slot >= program->slot_count) {
        trd_builder_fail(b, TRD_INVALID_ARGUMENT, "program %s: expected a slot below %d, found %d",
                         program->name, program->slot_count, slot);
        return NULL;
    }
    trd__slot *s = &program->slots[slot];
    if (entry < 0 || entry >= s->entry_count) {
        trd_builder_fail(b, TRD_INVALID_ARGUMENT,
                         "program %s: slot \"%s\": expected an entry below %d, found %d", program->name,
                         s->name, s->entry_count, entry);
        return NULL;
    }
    if (!(s->access & access)) {
        trd_builder_fail(b, TRD_INVALID_ARGUMENT,
                         "program %s: entry \"%s\" of slot \"%s\" is not open to be %s", program->name,
                         s->entries[entry].name, s->name, access == TRD__READ ? "read" : "written");
        return NULL;
    }
    return s;
}

trd_value trd__program_input(trd__program *program, int slot, int entry)
{
    trd__slot *s = find_entry(program, slot, entry, TRD__READ);
    if (!s) return (trd_value){NULL, 0};
    if (!trd_is_null(s->leaves[entry])) return s->leaves[entry];
    const trd__entry *e = &s->entries[entry];
    if (!check_replicas(program, e)) return (trd_value){NULL, 0};
    trd_shape shape = trd__program_shape(program, e);
    trd__input_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.slot = slot;
    attr.entry = entry;
    attr.dtype = e->dtype;
    attr.shape.rank = shape.rank;
    memcpy(attr.shape.dim, shape.dim, sizeof attr.shape.dim);
    trd_value v = trd__add_node(program->builder, &trd__op_input, &attr, NULL, 0);
    trd_name(program->builder, v, "%s", e->name);
    s->leaves[entry] = trd_axes(program->builder, v, trd__program_axes(program, e));
    return v;
}

static bool reserve_output(trd__program *program)
{
    if (program->output_count < program->output_capacity) return true;
    int capacity = program->output_capacity ? 2 * program->output_capacity : FIRST_OUTPUTS;
    trd__output *outputs = trd__arena_alloc(program->builder->graph.arena, (size_t)capacity, sizeof *outputs);
    if (!outputs) return false;
    if (program->output_count)
        memcpy(outputs, program->outputs, (size_t)program->output_count * sizeof *outputs);
    program->outputs = outputs;
    program->output_capacity = capacity;
    return true;
}

void trd__program_output(trd__program *program, int slot, int entry, trd_value value)
{
    trd__slot *s = find_entry(program, slot, entry, TRD__WRITE);
    if (!s) return;
    trd_builder *b = program->builder;
    const trd__entry *e = &s->entries[entry];
    if (trd_is_null(value)) {
        trd_builder_fail(b, TRD_INVALID_ARGUMENT, "program %s: output \"%s\" expected a value, found null",
                         program->name, e->name);
        return;
    }
    if (!check_replicas(program, e)) return;
    if (!trd__owns(b, value)) {
        trd_builder_fail(b, TRD_INVALID_ARGUMENT,
                         "program %s: output \"%s\" expected a value of its own graph, found one of another",
                         program->name, e->name);
        return;
    }
    const trd__type *type = trd__type_of(value);
    trd_shape shape = trd__program_shape(program, e);
    if (type->dtype != e->dtype || !trd__shape_equal(&type->shape, &shape)) {
        char expected[TRD__SHAPE_TEXT], found[TRD__SHAPE_TEXT];
        trd_builder_fail(b, TRD_SHAPE, "program %s: output \"%s\" expected %s %s, found %s %s", program->name,
                         e->name, trd__shape_text(&shape, expected), trd_dtype_name(e->dtype),
                         trd__shape_text(&type->shape, found), trd_dtype_name(type->dtype));
        return;
    }
    if (s->written[entry]) {
        trd_builder_fail(b, TRD_INVALID_ARGUMENT, "program %s: output \"%s\" of slot \"%s\" is written twice",
                         program->name, e->name, s->name);
        return;
    }
    if (!reserve_output(program)) {
        trd__builder_stick(b, TRD_NO_MEMORY);
        return;
    }
    s->written[entry] = true;
    program->outputs[program->output_count++] = (trd__output){value, slot, entry};
}
