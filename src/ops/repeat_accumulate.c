/* Accumulators inside a repeat: accumulate(accumulator, what a repeat makes) becomes a repeat that adds each
 * contribution to a row of the accumulator, so that what it would have made is never there as a whole.
 * Invariant: the contributions to a row keep their order. */
#include "base/alloc.h"
#include "graph/passes.h"
#include "ops/repeat.h"
#include "ops/repeat_parts.h"
#include "ops/rules.h"

/* The contributions of a chain accumulate(accumulate(0, first), second), in order; v alone where it is none.
 * Their number, -1: too many. */
static int contributions_of(trd_value v, trd_value *contributions)
{
    int count = 0;
    trd_value link = v;
    for (; link.node->op->flags & TRD__OP_ADDS_INTO; link = link.node->inputs[0]) {
        if (count == TRD__MAX_INPUTS) return -1;
        contributions[count++] = link.node->inputs[1];
    }
    if (!trd__is_zero(link)) {
        contributions[0] = v;
        return 1;
    }
    for (int i = 0; i < count / 2; i++) {
        trd_value first = contributions[i];
        contributions[i] = contributions[count - 1 - i];
        contributions[count - 1 - i] = first;
    }
    return count;
}

/* The slots of a body whose made entry becomes a sum, or stays one of another dtype. */
static void add_slots(trd__program *p, const trd__program *body, int made, trd_dtype dtype, bool sum)
{
    trd__entry sums[TRD__MAX_INPUTS], rows[TRD__MAX_RESULTS];
    int sum_count = 0, row_count = 0;
    for (int i = 0; i < body->slots[TRD__REPEAT_SUMS].entry_count; i++)
        sums[sum_count++] = body->slots[TRD__REPEAT_SUMS].entries[i];
    for (int i = 0; i < body->slots[TRD__REPEAT_MADE].entry_count; i++) {
        trd__entry e = body->slots[TRD__REPEAT_MADE].entries[i];
        if (i == made) e.dtype = dtype;
        if (i == made && sum)
            sums[sum_count++] = e;
        else
            rows[row_count++] = e;
    }
    for (int slot = 0; slot < TRD__REPEAT_SUMS; slot++)
        trd__repeat_body_slot(p, (trd__repeat_slot)slot, body->slots[slot].entries,
                              body->slots[slot].entry_count);
    trd__repeat_body_slot(p, TRD__REPEAT_SUMS, sums, sum_count);
    trd__repeat_body_slot(p, TRD__REPEAT_MADE, rows, row_count);
}

/* The body again, in p, with the contributions of a made entry added to a row of the accumulator, or to 0. */
static void build_accumulating(trd__program *p, const trd__program *body, int made, trd_dtype dtype, bool sum,
                               trd_value *map)
{
    trd_builder *b = p->builder;
    trd_value leaves[TRD__REPEAT_MADE][TRD__MAX_INPUTS], written[TRD__REPEAT_SLOTS][TRD__MAX_INPUTS];
    const trd_value *reads[TRD__REPEAT_SLOTS] = {NULL};
    trd_value *writes[TRD__REPEAT_SLOTS], contributions[TRD__MAX_INPUTS];
    add_slots(p, body, made, dtype, sum);
    for (int slot = 0; slot < TRD__REPEAT_SLOTS; slot++) {
        writes[slot] = written[slot];
        for (int i = 0; slot < TRD__REPEAT_MADE && i < body->slots[slot].entry_count; i++)
            if (!trd_is_null(body->slots[slot].leaves[i])) leaves[slot][i] = trd__program_input(p, slot, i);
        if (slot < TRD__REPEAT_MADE) reads[slot] = leaves[slot];
    }
    trd__program_inline(b, body, reads, writes, map);
    if (b->status != TRD_OK) return;
    const trd__entry *entry = &body->slots[TRD__REPEAT_MADE].entries[made];
    int last = body->slots[TRD__REPEAT_SUMS].entry_count, count = 0;
    for (int i = 0; i < body->output_count; i++)
        if (body->outputs[i].slot == TRD__REPEAT_MADE && body->outputs[i].entry == made)
            count = contributions_of(body->outputs[i].value, contributions);
    if (count < 0) trd_builder_fail(b, TRD_UNSUPPORTED, "repeat: too many contributions to one row");
    trd_value row =
        sum ? trd__program_input(p, TRD__REPEAT_SUMS, last) : trd_constant_fill(b, dtype, entry->shape, 0);
    for (int i = 0; i < count; i++) {
        trd_value copy = map[contributions[i].node->id];
        row = trd_accumulate(b, row, (trd_value){copy.node, copy.result + contributions[i].result});
    }
    for (int i = 0; i < body->output_count; i++) {
        int slot = body->outputs[i].slot, e = body->outputs[i].entry;
        bool moved = slot == TRD__REPEAT_MADE && e == made;
        int to = slot == TRD__REPEAT_MADE && sum && e > made ? e - 1 : e;
        trd__program_output(p, moved && sum ? TRD__REPEAT_SUMS : slot, moved && sum ? last : to,
                            moved ? row : written[slot][e]);
    }
}

static trd_status make_accumulating(const trd_node *n, int made, trd_dtype dtype, bool sum,
                                    trd__program **body)
{
    const trd__program *from = n->bodies[0];
    trd_value *map = trd__calloc((size_t)from->builder->graph.node_count + 1, sizeof *map);
    if (!map) return TRD_NO_MEMORY;
    trd_status status = trd__program_create(from->name, body);
    if (status == TRD_OK) {
        build_accumulating(*body, from, made, dtype, sum, map);
        status = trd_builder_status((*body)->builder);
        if (status == TRD_OK) status = trd__dce(*body);
        if (status != TRD_OK) trd__program_free(*body);
    }
    trd__free(map);
    return status;
}

bool trd__repeat_accumulate(trd_builder *b, const trd_node *n, int result, trd_value accumulator,
                            trd_value *results)
{
    const trd__repeat_attr *attr = n->attr;
    int made = result - attr->carries - attr->sums;
    if (made < 0 || n->input_count == TRD__MAX_INPUTS) return false;
    bool sum = !trd__is_zero(accumulator);
    trd_dtype dtype = trd_value_dtype(accumulator);
    for (int r = 0; r < n->result_count; r++) results[r] = (trd_value){n, r};
    if (!sum && dtype == n->results[result].dtype) return true; /* what it makes is the sum already */
    trd__program *body;
    trd_status status = make_accumulating(n, made, dtype, sum, &body);
    if (status != TRD_OK) {
        trd__builder_stick(b, status);
        return false;
    }
    trd_value inputs[TRD__MAX_INPUTS];
    for (int i = 0; i < n->input_count; i++) inputs[i] = n->inputs[i];
    if (sum) inputs[n->input_count] = accumulator;
    const trd_node *fused = trd__repeat_add(b, attr->count, attr->reverse, inputs, body);
    for (int r = 0; r < n->result_count; r++)
        results[r] = trd__result(fused, sum && r >= attr->carries + attr->sums && r < result ? r + 1 : r);
    if (sum) results[result] = trd__result(fused, attr->carries + attr->sums);
    return fused != NULL;
}
