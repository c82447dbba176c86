/* Storage for every value. First the entries of written slots: a program's output is computed straight in its
 * entry, and so is the chain of values that it takes over in place (an accumulator's contributions), as long
 * as the entry's old value is not read any more. What cannot be is computed in the arena and copied at the
 * end. Then the arena: results take over the buffer of an input that dies, where the kernel allows it.
 *
 * Invariant: at any draft a byte holds at most one live value. */
#include <string.h>

#include "backend/cpu/lower.h"
#include "backend/planner.h"
#include "base/alloc.h"

static void set_lifetimes(trd__lowering *l)
{
    for (int d = 0; d < l->draft_count; d++) {
        const trd__draft *draft = &l->drafts[d];
        for (int i = 0; i < draft->input_count; i++)
            if (draft->inputs[i] >= 0) trd__root_of(l, draft->inputs[i])->last = d;
        for (int r = 0; r < draft->output_count; r++) {
            if (draft->outputs[r] < 0) continue;
            trd__storage *s = &l->values[draft->outputs[r]];
            s->def = d;
            if (s->last < d) s->last = d;
        }
    }
    for (int v = 0; v < l->value_count; v++)
        if (l->values[v].output >= 0) l->values[v].last = l->draft_count;
}

/* True when `draft` may write its result `to` over its operand `from`: all of it, read nowhere else. */
static bool can_reuse(const trd__lowering *l, const trd__draft *draft, const trd__storage *from,
                      const trd__storage *to)
{
    if (from->bytes != to->bytes) return false;
    for (int r = 0; r < draft->output_count; r++) {
        if (draft->outputs[r] < 0 || &l->values[draft->outputs[r]] != to) continue;
        bool found = false;
        for (int i = 0; i < draft->input_count; i++) {
            if (draft->inputs[i] < 0 || trd__root_of(l, draft->inputs[i]) != from) continue;
            const trd__storage *operand = &l->values[draft->inputs[i]];
            if (!(draft->reuse[r] >> i & 1) || operand->offset != 0 || operand->bytes != from->bytes)
                return false;
            found = true;
        }
        return found;
    }
    return false;
}

static trd__storage *old_content(const trd__lowering *l, const trd__storage *output)
{
    const trd__output *o = &l->program->outputs[output->output];
    const trd__slot *slot = &l->program->slots[o->slot];
    if (!(slot->access & TRD__READ) || trd_is_null(slot->leaves[o->entry])) return NULL;
    trd__storage *old = &l->values[trd__value_number(l, slot->leaves[o->entry])];
    return old->last < 0 ? NULL : old;
}

/* May v be computed in the entry whose old content is `old`? */
static bool entry_is_free(const trd__lowering *l, const trd__storage *old, const trd__storage *v)
{
    if (!old || old->last < v->def) return true;
    return old->last == v->def && can_reuse(l, &l->drafts[v->def], old, v);
}

static void place_output(trd__lowering *l, trd__storage *v)
{
    const trd__place entry = v->output_place;
    const trd__storage *old = old_content(l, v);
    if (!entry_is_free(l, old, v)) return;
    while (v) {
        v->placed = true;
        v->place = entry;
        const trd__draft *draft = &l->drafts[v->def];
        trd__storage *next = NULL;
        for (int i = 0; i < draft->input_count && !next; i++) {
            if (draft->inputs[i] < 0) continue;
            trd__storage *q = trd__root_of(l, draft->inputs[i]);
            if (q->placed || q->taken || q->def < 0 || q->output >= 0 || q->last != v->def) continue;
            if (can_reuse(l, draft, q, v) && entry_is_free(l, old, q)) next = q;
        }
        if (next) next->taken = true;
        v = next;
    }
}

static trd_status add_copy(trd__lowering *l, int draft, const trd__storage *from, trd__place to)
{
    if (l->copy_count == l->copy_capacity) {
        int capacity = l->copy_capacity ? 2 * l->copy_capacity : 16;
        trd__copy *larger = trd__realloc(l->copies, (size_t)capacity, sizeof *larger);
        if (!larger) return TRD_NO_MEMORY;
        l->copies = larger;
        l->copy_capacity = capacity;
    }
    l->copies[l->copy_count++] = (trd__copy){draft, from->place, to, from->bytes};
    return TRD_OK;
}

/* Joins v to the buffer of a dying operand, or gives it a new one. */
static void assign_buffer(const trd__lowering *l, trd__lifetime *buffers, int *count, trd__storage *v)
{
    const trd__draft *draft = &l->drafts[v->def];
    for (int i = 0; i < draft->input_count; i++) {
        if (draft->inputs[i] < 0) continue;
        trd__storage *q = trd__root_of(l, draft->inputs[i]);
        if (q->buffer < 0 || q->taken || q->last != v->def || !can_reuse(l, draft, q, v)) continue;
        q->taken = true;
        v->buffer = q->buffer;
        buffers[v->buffer].last = v->last;
        return;
    }
    v->buffer = (*count)++;
    buffers[v->buffer] = (trd__lifetime){.bytes = v->bytes, .first = v->def, .last = v->last};
}

static trd_status plan_arena(trd__lowering *l)
{
    trd__lifetime *buffers = trd__alloc((size_t)l->value_count + 1, sizeof *buffers);
    if (!buffers) return TRD_NO_MEMORY;
    int count = 0;
    for (int d = 0; d < l->draft_count; d++)
        for (int r = 0; r < l->drafts[d].output_count; r++) {
            int v = l->drafts[d].outputs[r];
            if (v >= 0 && !l->values[v].placed) assign_buffer(l, buffers, &count, &l->values[v]);
        }
    trd__memory_report *report = &l->executable->report;
    trd_status status = trd__plan_memory(buffers, count, &report->arena_bytes, &report->lower_bound_bytes);
    for (int v = 0; !status && v < l->value_count; v++)
        if (l->values[v].buffer >= 0)
            l->values[v].place = (trd__place){TRD__REGION_ARENA, (size_t)buffers[l->values[v].buffer].offset};
    trd__free(buffers);
    return status;
}

/* Accumulators that could not be taken over in place are copied to where the result will be. */
static trd_status copy_accumulators(trd__lowering *l, int d)
{
    const trd__draft *draft = &l->drafts[d];
    int i = draft->accumulator;
    for (int r = 0; r < draft->output_count; r++) {
        if (i < 0 || draft->inputs[i] < 0 || draft->outputs[r] < 0 || !(draft->reuse[r] >> i & 1)) continue;
        const trd__storage *from = &l->values[draft->inputs[i]], *to = &l->values[draft->outputs[r]];
        if (from->place.region == to->place.region && from->place.offset == to->place.offset) continue;
        TRD_TRY(add_copy(l, d, from, to->place));
    }
    return TRD_OK;
}

trd_status trd__place_values(trd__lowering *l)
{
    set_lifetimes(l);
    for (int v = 0; v < l->value_count; v++)
        if (l->values[v].output >= 0) place_output(l, &l->values[v]);
    TRD_TRY(plan_arena(l));
    for (int v = 0; v < l->value_count; v++) {
        trd__storage *s = &l->values[v];
        if (s->root == v) continue;
        s->place = l->values[s->root].place;
        s->place.offset += s->offset;
    }
    for (int d = 0; d < l->draft_count; d++) TRD_TRY(copy_accumulators(l, d));
    for (int v = 0; v < l->value_count; v++) {
        const trd__storage *s = &l->values[v];
        if (s->output >= 0 && !s->placed) TRD_TRY(add_copy(l, l->draft_count, s, s->output_place));
    }
    return TRD_OK;
}
