/* Storage for every value. First the entries of written slots: a program's output is computed straight in its
 * entry, and so is the chain of values that it takes over in place (an accumulator's contributions), as long
 * as the entry's old value is not read any more. What cannot be is computed in the arena and copied at the
 * end. Then the arena: results take over the buffer of an input that dies, where the kernel allows it. A
 * repeat's body is placed like a program of its own, but in the program's arena and time, where its drafts
 * stand for those of all its iterations.
 *
 * Invariant: at any position a byte holds at most one live value. */
#include <string.h>

#include "backend/cpu/lower.h"
#include "backend/planner.h"
#include "base/alloc.h"

static void set_lifetimes(trd__lowering *l)
{
    l->length = 0;
    for (int d = 0; d < l->draft_count; d++) {
        trd__draft *draft = &l->drafts[d];
        draft->begin = l->length;
        l->length += draft->body ? draft->body->length : 1;
        draft->end = l->length - 1;
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
    l->length++; /* copies at the end */
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
            if (!trd__may_reuse(draft, r, i) || operand->offset != 0 || operand->bytes != from->bytes)
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

/* Lifetimes, and what is computed in entries: what a program is given whatever is around it. */
static void place_outputs(trd__lowering *l)
{
    for (int d = 0; d < l->draft_count; d++)
        if (l->drafts[d].body) place_outputs(l->drafts[d].body);
    set_lifetimes(l);
    for (int v = 0; v < l->value_count; v++)
        if (l->values[v].output >= 0) place_output(l, &l->values[v]);
}

/* The arena's buffers, in the time of the whole program. */
typedef struct plan {
    trd__lifetime *buffers;
    int count;
} plan;

static void assign_row(const trd__lowering *l, trd__storage *v, int row)
{
    v->row = row;
    v->place = l->rows[row].place;
    l->rows[row].last = v->last;
}

/* The smallest row that is free as long as v lives and holds it, -1: none. */
static int find_row(const trd__lowering *l, const trd__storage *v)
{
    int best = -1;
    for (int i = 0; i < l->row_count; i++) {
        const trd__row *row = &l->rows[i];
        if (row->last >= v->def || v->last >= row->end || row->bytes < v->bytes) continue;
        if (best < 0 || row->bytes < l->rows[best].bytes) best = i;
    }
    return best;
}

/* Joins v to the buffer of a dying operand, or gives it a new one. The program's time begins at `begin`. */
static void assign_buffer(const trd__lowering *l, int begin, plan *p, trd__storage *v)
{
    int last = begin + (v->last < l->draft_count ? l->drafts[v->last].end : l->length - 1);
    const trd__draft *draft = &l->drafts[v->def];
    for (int i = 0; i < draft->input_count; i++) {
        if (draft->inputs[i] < 0) continue;
        trd__storage *q = trd__root_of(l, draft->inputs[i]);
        if (q->buffer < 0 && (q->row < 0 || v->last >= l->rows[q->row].end)) continue;
        if (q->taken || q->last != v->def || !can_reuse(l, draft, q, v)) continue;
        q->taken = true;
        if (q->row >= 0) {
            assign_row(l, v, q->row);
            return;
        }
        v->buffer = q->buffer;
        p->buffers[v->buffer].last = last;
        return;
    }
    int row = find_row(l, v);
    if (row >= 0) {
        assign_row(l, v, row);
        return;
    }
    v->buffer = p->count++;
    p->buffers[v->buffer] = (trd__lifetime){.bytes = v->bytes, .first = begin + draft->begin, .last = last};
}

static void assign_buffers(const trd__lowering *l, int begin, plan *p)
{
    for (int d = 0; d < l->draft_count; d++) {
        const trd__draft *draft = &l->drafts[d];
        for (int r = 0; r < draft->output_count; r++) {
            int v = draft->outputs[r];
            if (v >= 0 && !l->values[v].placed) assign_buffer(l, begin, p, &l->values[v]);
        }
        if (!draft->body) continue;
        trd__lend_rows(l, draft);
        assign_buffers(draft->body, begin + draft->begin, p);
    }
}

static size_t most_buffers(const trd__lowering *l)
{
    size_t count = (size_t)l->value_count;
    for (int d = 0; d < l->draft_count; d++)
        if (l->drafts[d].body) count += most_buffers(l->drafts[d].body);
    return count;
}

/* Accumulators that could not be taken over in place are copied to where the result will be. */
static trd_status copy_accumulators(trd__lowering *l, int d)
{
    const trd__draft *draft = &l->drafts[d];
    for (int r = 0; r < draft->output_count; r++) {
        int i = draft->updates[r];
        if (i < 0 || draft->inputs[i] < 0 || draft->outputs[r] < 0) continue;
        const trd__storage *from = &l->values[draft->inputs[i]], *to = &l->values[draft->outputs[r]];
        if (from->place.region == to->place.region && from->place.offset == to->place.offset) continue;
        TRD_TRY(add_copy(l, d, from, to->place));
    }
    return TRD_OK;
}

/* Places from the planned buffers, and the copies that they ask for. */
static trd_status settle(trd__lowering *l, const plan *p)
{
    for (int v = 0; v < l->value_count; v++) {
        trd__storage *s = &l->values[v];
        if (s->buffer >= 0)
            s->place =
                (trd__place){.region = TRD__REGION_ARENA, .offset = (size_t)p->buffers[s->buffer].offset};
        if (s->root == v) continue;
        s->place = l->values[s->root].place;
        s->place.offset += s->offset;
    }
    for (int d = 0; d < l->draft_count; d++) TRD_TRY(copy_accumulators(l, d));
    for (int v = 0; v < l->value_count; v++) {
        const trd__storage *s = &l->values[v];
        if (s->output >= 0 && !s->placed) TRD_TRY(add_copy(l, l->draft_count, s, s->output_place));
    }
    for (int d = 0; d < l->draft_count; d++)
        if (l->drafts[d].body) TRD_TRY(settle(l->drafts[d].body, p));
    return TRD_OK;
}

trd_status trd__place_values(trd__lowering *l)
{
    plan p = {.buffers = trd__alloc(most_buffers(l) + 1, sizeof *p.buffers)};
    if (!p.buffers) return TRD_NO_MEMORY;
    place_outputs(l);
    assign_buffers(l, 0, &p);
    trd__memory_report *report = &l->executable->report;
    trd_status status =
        trd__plan_memory(p.buffers, p.count, &report->arena_bytes, &report->lower_bound_bytes);
    if (!status) status = settle(l, &p);
    trd__free(p.buffers);
    return status;
}
