/* A body that is run several times: building it, its types, and its definition, the same unrolled. What the
 * body is made of is said in the header; its gradient is in repeat_gradient.c. */
#include "ops/repeat.h"

#include <inttypes.h>
#include <stdio.h>

#include "graph/passes.h"
#include "ops/repeat_parts.h"
#include "ops/rules.h"

static const struct {
    const char *name;
    trd__access access;
    bool rows; /* iteration i has row i of what the node has */
} slots[TRD__REPEAT_SLOTS] = {
    [TRD__REPEAT_CARRY] = {"carry", TRD__UPDATE, false},  [TRD__REPEAT_SHARED] = {"shared", TRD__READ, false},
    [TRD__REPEAT_STACKED] = {"stacked", TRD__READ, true}, [TRD__REPEAT_SUMS] = {"sums", TRD__UPDATE, true},
    [TRD__REPEAT_MADE] = {"made", TRD__WRITE, true},
};

const trd__repeat_attr *trd__repeat_attr_of(const trd_node *n)
{
    return n->attr;
}

const trd__program *trd__repeat_body(const trd_node *n)
{
    return n->bodies[0];
}

int trd__repeat_entries(const trd__repeat_attr *attr, trd__repeat_slot slot)
{
    const int counts[TRD__REPEAT_SLOTS] = {attr->carries, attr->shared, attr->stacked, attr->sums,
                                           attr->made};
    return counts[slot];
}

int trd__repeat_operand(const trd__repeat_attr *attr, trd__repeat_slot slot, int entry)
{
    if (slot == TRD__REPEAT_MADE) return -1;
    for (int s = 0; s < (int)slot; s++) entry += trd__repeat_entries(attr, (trd__repeat_slot)s);
    return entry;
}

int trd__repeat_result(const trd__repeat_attr *attr, trd__repeat_slot slot, int entry)
{
    if (!(slots[slot].access & TRD__WRITE)) return -1;
    for (int s = 0; s < (int)slot; s++)
        if (slots[s].access & TRD__WRITE) entry += trd__repeat_entries(attr, (trd__repeat_slot)s);
    return entry;
}

/* -- types -- */

/* What the node has where the body has an entry: the same, or rows of it. */
static trd__type outer_type(const trd__repeat_attr *attr, trd__repeat_slot slot, const trd__entry *entry)
{
    trd__type type = {.dtype = entry->dtype};
    int axes = slots[slot].rows ? 1 : 0;
    type.shape.rank = entry->shape.rank + axes;
    type.shape.dim[0] = attr->count;
    for (int i = 0; i < entry->shape.rank; i++) {
        type.shape.dim[i + axes] = entry->shape.dim[i];
        type.axes[i + axes] = entry->axes[i];
    }
    return type;
}

static trd_status check_body(const trd_node *n)
{
    const trd__repeat_attr *attr = n->attr;
    if (attr->count < 1)
        return trd__fail(TRD_INVALID_ARGUMENT, "repeat: expected at least 1 iteration, found %" PRId64,
                         attr->count);
    const trd__program *body = n->body_count == 1 ? n->bodies[0] : NULL;
    if (!body || body->slot_count != TRD__REPEAT_SLOTS)
        return trd__fail(TRD_INTERNAL, "repeat: expected a body of %d slots", TRD__REPEAT_SLOTS);
    int operands = 0;
    for (int s = 0; s < TRD__REPEAT_SLOTS; s++) {
        const trd__slot *slot = &body->slots[s];
        int entries = trd__repeat_entries(attr, (trd__repeat_slot)s);
        if (s != TRD__REPEAT_MADE) operands += entries;
        if (slot->access != slots[s].access || slot->entry_count != entries)
            return trd__fail(TRD_INTERNAL, "repeat: slot %s of the body expected %d entries, found %d",
                             slots[s].name, entries, slot->entry_count);
        for (int e = 0; e < entries && slot->access & TRD__WRITE; e++)
            if (!slot->written[e])
                return trd__fail(TRD_INVALID_ARGUMENT, "repeat: the body does not write \"%s\" of slot %s",
                                 slot->entries[e].name, slots[s].name);
    }
    if (n->input_count == operands) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT, "repeat: expected %d operands as its body has, found %d", operands,
                     n->input_count);
}

static trd_status infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(check_body(n));
    const trd__repeat_attr *attr = n->attr;
    for (int s = 0; s < TRD__REPEAT_SLOTS; s++) {
        const trd__slot *slot = &n->bodies[0]->slots[s];
        for (int e = 0; e < slot->entry_count; e++) {
            trd__type type = outer_type(attr, (trd__repeat_slot)s, &slot->entries[e]);
            int operand = trd__repeat_operand(attr, (trd__repeat_slot)s, e);
            int result = trd__repeat_result(attr, (trd__repeat_slot)s, e);
            if (operand >= 0) {
                TRD_TRY(trd__want_type(n, operand, slot->entries[e].name, type.dtype, &type.shape));
                type = *trd__operand(n, operand);
            }
            if (result >= 0) results[result] = type;
        }
    }
    return TRD_OK;
}

static int result_count(const void *attributes)
{
    const trd__repeat_attr *attr = attributes;
    return attr->carries + attr->sums + attr->made;
}

static double flops(const trd_node *n)
{
    const trd__repeat_attr *attr = n->attr;
    return (double)attr->count * trd__program_flops(n->bodies[0]);
}

static double recomputed_flops(const trd_node *n)
{
    const trd__repeat_attr *attr = n->attr;
    return (double)attr->count * trd__recomputed_flops(n->bodies[0]);
}

static void print(const trd_node *n, char *text, size_t bytes)
{
    const trd__repeat_attr *attr = n->attr;
    int used = snprintf(text, bytes, "count=%" PRId64 "%s", attr->count, attr->reverse ? " reverse" : "");
    for (int s = 0; s < TRD__REPEAT_SLOTS && used > 0 && (size_t)used < bytes; s++) {
        int entries = trd__repeat_entries(attr, (trd__repeat_slot)s);
        if (entries) used += snprintf(text + used, bytes - (size_t)used, " %s=%d", slots[s].name, entries);
    }
}

/* -- building -- */

const trd_node *trd__repeat_add(trd_builder *b, int64_t count, bool reverse, const trd_value *inputs,
                                trd__program *body)
{
    trd__repeat_attr attr = {.count = count,
                             .reverse = reverse,
                             .carries = body->slots[TRD__REPEAT_CARRY].entry_count,
                             .shared = body->slots[TRD__REPEAT_SHARED].entry_count,
                             .stacked = body->slots[TRD__REPEAT_STACKED].entry_count,
                             .sums = body->slots[TRD__REPEAT_SUMS].entry_count,
                             .made = body->slots[TRD__REPEAT_MADE].entry_count};
    int input_count = attr.carries + attr.shared + attr.stacked + attr.sums;
    trd_status status = trd_builder_status(body->builder);
    if (status == TRD_OK && result_count(&attr) > TRD__MAX_RESULTS)
        status = trd__fail(TRD_UNSUPPORTED, "repeat: expected at most %d results, found %d", TRD__MAX_RESULTS,
                           result_count(&attr));
    if (status != TRD_OK) {
        trd__builder_stick(b, status);
        trd__program_free(body);
        return NULL;
    }
    return trd__node_add_bodies(b, &trd__op_repeat, &attr, inputs, input_count, &body, 1);
}

int trd__repeat_body_slot(trd__program *body, trd__repeat_slot slot, const trd__entry *entries, int count)
{
    return trd__program_slot(body, slots[slot].name, slots[slot].access, entries, count);
}

trd__entry trd__repeat_entry(trd_builder *b, trd__repeat_slot slot, int entry, trd_value v, bool rows)
{
    const trd__type *type = trd__type_of(v);
    const char *name =
        v.node->name ? v.node->name : trd__arena_format(b->graph.arena, "%s%d", slots[slot].name, entry);
    if (!name) trd__builder_stick(b, TRD_NO_MEMORY);
    trd__entry e = {.name = name ? name : "", .dtype = type->dtype};
    int axes = rows ? 1 : 0;
    e.shape.rank = type->shape.rank - axes;
    for (int i = 0; i < e.shape.rank; i++) {
        e.shape.dim[i] = type->shape.dim[i + axes];
        e.axes[i] = type->axes[i + axes];
    }
    return e;
}

/* Adds one slot of operands to the body and asks for its leaves. */
static void add_operands(trd_builder *b, trd__program *body, trd__repeat_slot slot, int64_t count,
                         const trd_value *operands, int operand_count, trd_value *leaves)
{
    trd__entry entries[TRD__MAX_INPUTS] = {{.name = NULL}};
    for (int i = 0; i < operand_count && b->status == TRD_OK; i++) {
        bool rows = slots[slot].rows;
        if (trd_is_null(operands[i]))
            trd_builder_fail(b, TRD_INVALID_ARGUMENT, "repeat: %s operand %d expected a value, found null",
                             slots[slot].name, i);
        else if (rows &&
                 (trd_value_shape(operands[i]).rank < 1 || trd_value_shape(operands[i]).dim[0] != count))
            trd_builder_fail(b, TRD_SHAPE,
                             "repeat: stacked operand %d \"%s\" expected a leading axis of %" PRId64
                             " iterations, found %" PRId64,
                             i, operands[i].node->name ? operands[i].node->name : operands[i].node->op->name,
                             count,
                             trd_value_shape(operands[i]).rank ? trd_value_shape(operands[i]).dim[0] : 0);
        else
            entries[i] = trd__repeat_entry(b, slot, i, operands[i], rows);
    }
    if (b->status != TRD_OK) return;
    trd__repeat_body_slot(body, slot, entries, operand_count);
    for (int i = 0; i < operand_count; i++) leaves[i] = trd__program_input(body, (int)slot, i);
}

/* Binds what the body's function returned. */
static void add_outputs(trd_builder *b, trd__program *body, const trd_repeat_options *o, const trd_value *out)
{
    trd__entry entries[TRD__MAX_RESULTS] = {{.name = NULL}};
    for (int i = 0; i < o->carry_count; i++) trd__program_output(body, TRD__REPEAT_CARRY, i, out[i]);
    for (int i = 0; i < o->made_count && body->builder->status == TRD_OK; i++) {
        trd_value v = out[o->carry_count + i];
        if (trd_is_null(v))
            trd_builder_fail(body->builder, TRD_INVALID_ARGUMENT,
                             "made value %d expected a value, found null", i);
        else
            entries[i] = trd__repeat_entry(b, TRD__REPEAT_MADE, i, v, false);
    }
    if (body->builder->status != TRD_OK) return;
    trd__repeat_body_slot(body, TRD__REPEAT_MADE, entries, o->made_count);
    for (int i = 0; i < o->made_count; i++)
        trd__program_output(body, TRD__REPEAT_MADE, i, out[o->carry_count + i]);
}

static void build_body(trd_builder *b, const trd_repeat_options *o, trd__program *body)
{
    trd_value carries[TRD__MAX_INPUTS], shared[TRD__MAX_INPUTS], stacked[TRD__MAX_INPUTS];
    trd_value out[TRD__MAX_RESULTS] = {{NULL, 0}};
    add_operands(b, body, TRD__REPEAT_CARRY, o->count, o->carries, o->carry_count, carries);
    add_operands(b, body, TRD__REPEAT_SHARED, o->count, o->shared, o->shared_count, shared);
    add_operands(b, body, TRD__REPEAT_STACKED, o->count, o->stacked, o->stacked_count, stacked);
    trd__repeat_body_slot(body, TRD__REPEAT_SUMS, NULL, 0);
    if (b->status != TRD_OK) return;
    const trd_iteration iteration = {carries, shared, stacked};
    if (body->builder->status == TRD_OK) o->body(body->builder, &iteration, out, o->user);
    add_outputs(b, body, o, out);
    if (trd_builder_status(body->builder) == TRD_OK) return;
    trd__fail_in(body->builder->status, "body of a repeat");
    trd__builder_stick(b, body->builder->status);
}

static const trd_node *add_repeat(trd_builder *b, const trd_repeat_options *o)
{
    int inputs = o->carry_count + o->shared_count + o->stacked_count,
        results = o->carry_count + o->made_count;
    if (b->status != TRD_OK) return NULL;
    if (!o->body || o->carry_count < 0 || o->shared_count < 0 || o->stacked_count < 0 || o->made_count < 0) {
        trd_builder_fail(
            b, TRD_INVALID_ARGUMENT,
            "repeat: expected a body and counts of 0 or more, found %s, %d carries, %d shared, %d "
            "stacked and %d made",
            o->body ? "one" : "none", o->carry_count, o->shared_count, o->stacked_count, o->made_count);
        return NULL;
    }
    if (o->count < 1 || inputs > TRD__MAX_INPUTS || results > TRD__MAX_RESULTS) {
        trd_builder_fail(b, TRD_INVALID_ARGUMENT,
                         "repeat: expected at least 1 iteration, at most %d operands and %d results, found "
                         "%" PRId64 ", %d and %d",
                         TRD__MAX_INPUTS, TRD__MAX_RESULTS, o->count, inputs, results);
        return NULL;
    }
    trd__program *body;
    trd_status status = trd__program_create("body", &body);
    if (status != TRD_OK) {
        trd__builder_stick(b, status);
        return NULL;
    }
    trd_value shared[TRD__MAX_INPUTS];
    int shared_count = o->shared_count;
    for (int i = 0; i < shared_count; i++) shared[i] = o->shared[i];
    build_body(b, o, body);
    if (b->status == TRD_OK) trd__repeat_move_invariant(b, &body, shared, &shared_count);
    if (b->status == TRD_OK && inputs + shared_count - o->shared_count > TRD__MAX_INPUTS)
        trd_builder_fail(b, TRD_UNSUPPORTED, "repeat: too many values that no iteration changes");
    if (b->status != TRD_OK) {
        trd__program_free(body);
        return NULL;
    }
    trd_value operands[TRD__MAX_INPUTS];
    int count = 0;
    for (int i = 0; i < o->carry_count; i++) operands[count++] = o->carries[i];
    for (int i = 0; i < shared_count; i++) operands[count++] = shared[i];
    for (int i = 0; i < o->stacked_count; i++) operands[count++] = o->stacked[i];
    return trd__repeat_add(b, o->count, o->reverse, operands, body);
}

void trd_repeat(trd_builder *b, const trd_repeat_options *options, trd_value *results)
{
    const trd_node *n = add_repeat(b, options); /* results may be where the operands are */
    for (int i = 0; i < options->carry_count + options->made_count; i++) results[i] = trd__result(n, i);
}

/* -- the definition -- */

static trd_shape rows_shape(int64_t rows, const trd_shape *row)
{
    trd_shape shape = {.rank = row->rank + 1, .dim = {rows}};
    for (int i = 0; i < row->rank; i++) shape.dim[i + 1] = row->dim[i];
    return shape;
}

/* Rows one above the other, as many at a time as a concat takes. */
static trd_value stack_rows(trd_builder *b, trd_value *rows, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        trd_shape shape = trd_value_shape(rows[i]);
        rows[i] = trd_reshape(b, rows[i], rows_shape(1, &shape));
    }
    while (count > 1) {
        int64_t joined = 0;
        for (int64_t i = 0; i < count; i += TRD__CONCAT_PARTS) {
            int64_t parts = count - i < TRD__CONCAT_PARTS ? count - i : TRD__CONCAT_PARTS;
            rows[joined++] = trd_concat(b, rows + i, (int)parts, 0);
        }
        count = joined;
    }
    return rows[0];
}

/* What an expansion holds of each slot's entries: what the body reads now, and what it has written, by entry
 * or by entry and row. */
typedef struct unrolled {
    trd_value *reads[TRD__REPEAT_SLOTS], *writes[TRD__REPEAT_SLOTS], *rows[TRD__REPEAT_SLOTS];
} unrolled;

static bool reserve(trd_builder *b, const trd_node *n, unrolled *u)
{
    const trd__repeat_attr *attr = n->attr;
    for (int s = 0; s < TRD__REPEAT_SLOTS; s++) {
        size_t entries = (size_t)trd__repeat_entries(attr, (trd__repeat_slot)s) + 1;
        u->reads[s] = trd__arena_alloc(b->graph.arena, entries, sizeof(trd_value));
        u->writes[s] = trd__arena_alloc(b->graph.arena, entries, sizeof(trd_value));
        u->rows[s] = trd__arena_alloc(b->graph.arena, entries, (size_t)attr->count * sizeof(trd_value));
        if (!u->reads[s] || !u->writes[s] || !u->rows[s]) return false;
    }
    return true;
}

static void unroll(trd_builder *b, const trd_node *n, int64_t row, unrolled *u)
{
    const trd__repeat_attr *attr = n->attr;
    const trd__program *body = n->bodies[0];
    for (int s = 0; s < TRD__REPEAT_SLOTS; s++)
        for (int e = 0; e < trd__repeat_entries(attr, (trd__repeat_slot)s); e++)
            if (slots[s].rows && !trd_is_null(body->slots[s].leaves[e]))
                u->reads[s][e] =
                    trd__take_row(b, n->inputs[trd__repeat_operand(attr, (trd__repeat_slot)s, e)], row);
    const trd_value *reads[TRD__REPEAT_SLOTS];
    for (int s = 0; s < TRD__REPEAT_SLOTS; s++) reads[s] = u->reads[s];
    trd__program_inline(b, body, reads, u->writes, NULL);
    for (int s = 0; s < TRD__REPEAT_SLOTS; s++)
        for (int e = 0; e < trd__repeat_entries(attr, (trd__repeat_slot)s); e++) {
            if (s == TRD__REPEAT_CARRY) u->reads[s][e] = u->writes[s][e];
            if (slots[s].rows) u->rows[s][(int64_t)e * attr->count + row] = u->writes[s][e];
        }
}

static void expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    const trd__repeat_attr *attr = n->attr;
    unrolled u;
    if (!reserve(b, n, &u)) {
        trd__builder_stick(b, TRD_NO_MEMORY);
        return;
    }
    for (int i = 0; i < attr->carries; i++) u.reads[TRD__REPEAT_CARRY][i] = n->inputs[i];
    for (int i = 0; i < attr->shared; i++) u.reads[TRD__REPEAT_SHARED][i] = n->inputs[attr->carries + i];
    for (int64_t i = 0; i < attr->count && b->status == TRD_OK; i++)
        unroll(b, n, attr->reverse ? attr->count - 1 - i : i, &u);
    for (int s = 0; s < TRD__REPEAT_SLOTS && b->status == TRD_OK; s++)
        for (int e = 0; e < trd__repeat_entries(attr, (trd__repeat_slot)s); e++) {
            int result = trd__repeat_result(attr, (trd__repeat_slot)s, e);
            if (result < 0) continue;
            results[result] = slots[s].rows ? stack_rows(b, &u.rows[s][(int64_t)e * attr->count], attr->count)
                                            : u.reads[s][e];
        }
}

const trd_op trd__op_repeat = {.name = "repeat",
                               .min_inputs = 0,
                               .max_inputs = TRD__MAX_INPUTS,
                               .results = TRD__RESULTS_VARY,
                               .attr_size = sizeof(trd__repeat_attr),
                               .cost = TRD__COST_PRODUCT,
                               .result_count = result_count,
                               .infer = infer,
                               .split_gradient = trd__repeat_gradient,
                               .expand = expand,
                               .flops = flops,
                               .recomputed_flops = recomputed_flops,
                               .accumulates_into = trd__repeat_accumulate,
                               .print = print};
