/* Lowering of repeat: the body becomes drafts like those of any program, once, and the loop around its steps
 * says how often they run. Its arena is part of the program's; carries and sums are updated where the results
 * are kept.
 *
 * Invariant: the buffers of a repeat's operands and results are distinct from all that its body computes in
 * while it runs, so an iteration sees what the one before left in them and nothing else. */
#include "ops/repeat.h"

#include "backend/cpu/lower.h"
#include "base/alloc.h"

const trd__cpu_op trd__cpu_repeat[] = {{0}}; /* no kernel: a loop */

/* Rows of a made result that nobody reads are not made. */
static void drop_unused(const trd__lowering *l, const trd_node *n, trd__program *body)
{
    int kept = 0;
    for (int i = 0; i < body->output_count; i++) {
        const trd__output *o = &body->outputs[i];
        int r = trd__repeat_result(trd__repeat_attr_of(n), (trd__repeat_slot)o->slot, o->entry);
        if (o->slot == TRD__REPEAT_MADE && l->values[l->first_value[n->id] + r].uses == 0) continue;
        body->outputs[kept++] = *o;
    }
    body->output_count = kept;
}

static trd_status draft_body(const trd__lowering *l, trd__draft *d)
{
    const trd__repeat_attr *attr = trd__repeat_attr_of(d->node);
    trd__cpu_loop *loop = trd__arena_alloc(l->arena, 1, sizeof *loop);
    trd__lowering *body = trd__arena_alloc(l->arena, 1, sizeof *body);
    trd__row *rows = trd__arena_alloc(l->arena, (size_t)(attr->stacked + attr->made) + 1, sizeof *rows);
    if (!loop || !body || !rows) return TRD_NO_MEMORY;
    *loop = (trd__cpu_loop){.count = attr->count, .reverse = attr->reverse};
    *body = (trd__lowering){.info = l->info,
                            .log = l->log,
                            .executable = l->executable,
                            .arena = l->arena,
                            .loop = loop,
                            .rows = rows,
                            .program = d->node->bodies[0],
                            .graph = &d->node->bodies[0]->builder->graph};
    d->body = body;
    drop_unused(l, d->node, body->program);
    return trd__draft_program(body);
}

trd_status trd__draft_repeat(trd__lowering *l, const trd_node *n)
{
    const trd__repeat_attr *attr = trd__repeat_attr_of(n);
    trd__draft *d = trd__draft_add(l, n, n->input_count, n->result_count);
    if (!d) return TRD_NO_MEMORY;
    for (int i = 0; i < n->input_count; i++) d->inputs[i] = trd__value_number(l, n->inputs[i]);
    for (int r = 0; r < n->result_count; r++) d->outputs[r] = l->first_value[n->id] + r;
    for (int e = 0; e < attr->made; e++) {
        int r = trd__repeat_result(attr, TRD__REPEAT_MADE, e);
        if (l->values[d->outputs[r]].uses == 0) d->outputs[r] = -1;
    }
    static const trd__repeat_slot updated[] = {TRD__REPEAT_CARRY, TRD__REPEAT_SUMS};
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < trd__repeat_entries(attr, updated[s]); e++) {
            int r = trd__repeat_result(attr, updated[s], e);
            d->updates[r] = trd__repeat_operand(attr, updated[s], e);
            d->reuse[r * d->input_count + d->updates[r]] = true;
        }
    return draft_body(l, d);
}

/* Whether operand i of the repeat d is all of a buffer that dies there, and no other operand's. */
static bool is_last_use(const trd__lowering *l, const trd__draft *d, int i)
{
    const trd__storage *operand = &l->values[d->inputs[i]], *root = trd__root_of(l, d->inputs[i]);
    if (root->buffer < 0 || root->taken || l->drafts + root->last != d || operand->bytes != root->bytes)
        return false;
    for (int j = 0; j < d->input_count; j++)
        if (j != i && trd__root_of(l, d->inputs[j]) == root) return false;
    return true;
}

static int lend(trd__lowering *body, trd__repeat_slot slot, int entry, int last, int end)
{
    int place = body->first_entry[slot] + entry;
    body->rows[body->row_count] =
        (trd__row){.place = {.region = TRD__REGION_ENTRY + place},
                   .bytes = trd__entry_bytes(&body->program->slots[slot].entries[entry]),
                   .last = last,
                   .end = end};
    /* Elsewhere a row of narrow elements may begin where a wide one must not. */
    return body->rows[body->row_count].bytes % TRD__ALIGNMENT ? -1 : body->row_count++;
}

/* The first draft that writes the made entry, the draft count if none does before the end. */
static int first_write(const trd__lowering *body, int entry)
{
    int first = body->draft_count;
    for (int v = 0; v < body->value_count; v++) {
        const trd__storage *s = &body->values[v];
        if (s->placed && s->place.region == TRD__REGION_ENTRY + body->first_entry[TRD__REPEAT_MADE] + entry &&
            s->def < first)
            first = s->def;
    }
    return first;
}

void trd__lend_rows(const trd__lowering *l, const trd__draft *d)
{
    trd__lowering *body = d->body;
    const trd__repeat_attr *attr = trd__repeat_attr_of(d->node);
    const trd_value *leaves = body->program->slots[TRD__REPEAT_STACKED].leaves;
    for (int e = 0; e < attr->stacked; e++) {
        if (trd_is_null(leaves[e])) continue;
        if (!is_last_use(l, d, trd__repeat_operand(attr, TRD__REPEAT_STACKED, e))) continue;
        trd__storage *leaf = &body->values[trd__value_number(body, leaves[e])];
        leaf->row = lend(body, TRD__REPEAT_STACKED, e, leaf->last, body->draft_count + 1);
    }
    for (int e = 0; e < attr->made; e++)
        if (d->outputs[trd__repeat_result(attr, TRD__REPEAT_MADE, e)] >= 0)
            lend(body, TRD__REPEAT_MADE, e, -1, first_write(body, e));
}

void trd__bind_body(const trd__lowering *l, const trd__draft *d)
{
    const trd__repeat_attr *attr = trd__repeat_attr_of(d->node);
    const trd__lowering *body = d->body;
    for (int s = 0; s < TRD__REPEAT_SLOTS; s++) {
        const trd__slot *slot = &body->program->slots[s];
        bool whole = s == TRD__REPEAT_CARRY || s == TRD__REPEAT_SHARED;
        for (int e = 0; e < slot->entry_count; e++) {
            int r = trd__repeat_result(attr, (trd__repeat_slot)s, e);
            int value = r >= 0 ? d->outputs[r] : d->inputs[trd__repeat_operand(attr, (trd__repeat_slot)s, e)];
            trd__place place = trd__place_bound(l, value);
            place.stride = whole ? 0 : trd__entry_bytes(&slot->entries[e]);
            body->entries[body->first_entry[s] + e] = place;
        }
    }
}
