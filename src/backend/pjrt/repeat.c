/* Lowering of repeat: one while loop. It carries the iteration's number, the carries, the accumulators and
 * the stacked results; shared and stacked operands are seen from outside. Rows are taken and put with a
 * dynamic index, which XLA does in place. Invariant: names inside end with the loop's scope, so none is used
 * twice. */
#include "ops/repeat.h"

#include <inttypes.h>

#include "backend/pjrt/emit.h"

/* The loop's values, in the order in which they are carried. */
typedef struct loop {
    const trd__repeat_attr *attr;
    const trd__program *body;
    int count;                            /* carried, the iteration's number among them */
    trd__hlo start[TRD__MAX_RESULTS + 1]; /* before the first iteration */
    trd__hlo inside[TRD__MAX_RESULTS + 1];
    trd__hlo row, zero; /* indices of the iteration's row */
} loop;

/* Place of a written entry among what is carried. */
static int place_of(const loop *l, trd__repeat_slot slot, int entry)
{
    return 1 + trd__repeat_result(l->attr, slot, entry);
}

static void find_starts(trd__emitter *e, const trd_node *n, loop *l)
{
    const trd_shape scalar = {0};
    l->start[0] = trd__hlo_fill(e, TRD_I32, &scalar, 0);
    for (int slot = 0; slot < TRD__REPEAT_SLOTS; slot++)
        for (int i = 0; i < trd__repeat_entries(l->attr, (trd__repeat_slot)slot); i++) {
            int operand = trd__repeat_operand(l->attr, (trd__repeat_slot)slot, i);
            int result = trd__repeat_result(l->attr, (trd__repeat_slot)slot, i);
            if (result < 0) continue;
            const trd__type *type = &n->results[result];
            l->start[1 + result] = operand >= 0 ? trd__hlo_operand(e, n, operand)
                                                : trd__hlo_fill(e, type->dtype, &type->shape, 0);
        }
    l->count = 1 + n->result_count;
}

/* `%loop_7:3 = stablehlo.while(%loop_7.i = %start, ...) : types` and the condition. */
static void emit_head(trd__emitter *e, const char *name, loop *l)
{
    trd__emit_text(e, "%*s%s:%d = stablehlo.while(", e->indent, "", name, l->count);
    for (int i = 0; i < l->count; i++) {
        l->inside[i] = l->start[i];
        l->inside[i].name = trd__hlo_text(e, "%s.in%d", name, i);
        trd__emit_text(e, "%s%s = %s", i ? ", " : "", l->inside[i].name, l->start[i].name);
    }
    trd__emit_text(e, ") : ");
    for (int i = 0; i < l->count; i++) trd__emit_text(e, "%s%s", i ? ", " : "", l->start[i].type);
    trd__emit_text(e, "\n%*scond {\n", e->indent, "");
}

static void emit_condition(trd__emitter *e, const loop *l)
{
    const trd_shape scalar = {0};
    trd__hlo pair[2] = {l->inside[0], trd__hlo_fill(e, TRD_I32, &scalar, (double)l->attr->count)};
    trd__hlo more =
        trd__emit(e, TRD_BOOL, &scalar, pair, 2, "stablehlo.compare LT, %s, %s", pair[0].name, pair[1].name);
    trd__emit_text(e, "%*sstablehlo.return %s : %s\n", e->indent, "", more.name, more.type);
}

/* The iteration's row of x, which is (count, ...). */
static trd__hlo take_row(trd__emitter *e, const loop *l, trd__hlo x)
{
    trd_shape one = x.shape, row = {.rank = x.shape.rank - 1};
    one.dim[0] = 1;
    for (int i = 0; i < row.rank; i++) row.dim[i] = x.shape.dim[i + 1];
    trd__hlo operands[TRD_MAX_RANK + 1] = {x, l->row};
    for (int i = 1; i < x.shape.rank; i++) operands[i + 1] = l->zero;
    trd__hlo slice =
        trd__emit(e, x.dtype, &one, operands, x.shape.rank + 1, "stablehlo.dynamic_slice %s, sizes = [%s]",
                  trd__hlo_names(e, operands, x.shape.rank + 1), trd__hlo_list(e, one.dim, one.rank));
    return trd__hlo_reshape(e, slice, &row);
}

static trd__hlo put_row(trd__emitter *e, const loop *l, trd__hlo x, trd__hlo row)
{
    trd_shape one = x.shape;
    one.dim[0] = 1;
    trd__hlo operands[TRD_MAX_RANK + 2] = {x, trd__hlo_reshape(e, row, &one), l->row};
    for (int i = 1; i < x.shape.rank; i++) operands[i + 2] = l->zero;
    return trd__emit(e, x.dtype, &x.shape, operands, x.shape.rank + 2, "stablehlo.dynamic_update_slice %s",
                     trd__hlo_names(e, operands, x.shape.rank + 2));
}

static void find_row(trd__emitter *e, loop *l)
{
    const trd_shape scalar = {0};
    l->zero = trd__hlo_fill(e, TRD_I32, &scalar, 0);
    l->row = l->inside[0];
    if (!l->attr->reverse) return;
    trd__hlo pair[2] = {trd__hlo_fill(e, TRD_I32, &scalar, (double)(l->attr->count - 1)), l->inside[0]};
    l->row = trd__emit_elementwise(e, "subtract", pair, 2);
}

/* What the body's leaf of an entry reads. outer: the node's operand behind it. */
static trd__hlo read_entry(trd__emitter *e, const loop *l, trd__repeat_slot slot, int entry, trd__hlo outer)
{
    switch (slot) {
    case TRD__REPEAT_CARRY:
        return l->inside[place_of(l, slot, entry)];
    case TRD__REPEAT_SHARED:
        return outer;
    case TRD__REPEAT_SUMS:
        return take_row(e, l, l->inside[place_of(l, slot, entry)]);
    default:
        return take_row(e, l, outer);
    }
}

/* Lines of the body's nodes. next: what the iteration hands on. */
static trd_status emit_body(trd__emitter *e, const trd_node *n, const loop *l, trd__hlo *next)
{
    const trd_graph *graph = &l->body->builder->graph;
    trd__emitter around = *e;
    TRD_TRY(trd__emit_tables(e, graph));
    for (int slot = 0; slot < TRD__REPEAT_MADE; slot++)
        for (int i = 0; i < l->body->slots[slot].entry_count; i++) {
            trd_value leaf = l->body->slots[slot].leaves[i];
            if (trd_is_null(leaf)) continue;
            int operand = trd__repeat_operand(l->attr, (trd__repeat_slot)slot, i);
            trd_value outer = n->inputs[operand];
            e->values[leaf.node->id][0] =
                read_entry(e, l, (trd__repeat_slot)slot, i, around.values[outer.node->id][outer.result]);
        }
    around.lines = e->lines;
    e->scope = trd__hlo_text(e, "%s$%d", around.scope, n->id);
    TRD_TRY(trd__emit_nodes(e, graph));
    for (int i = 0; i < l->body->output_count; i++) {
        const trd__output *o = &l->body->outputs[i];
        next[place_of(l, (trd__repeat_slot)o->slot, o->entry)] =
            e->values[o->value.node->id][o->value.result];
    }
    e->values = around.values;
    e->kept = around.kept;
    e->scope = around.scope;
    e->node = around.node;
    e->name = around.name;
    e->lines = around.lines;
    return e->status;
}

/* The next number, the carries, and what is stacked with the row put in. */
static void emit_next(trd__emitter *e, const loop *l, trd__hlo *next)
{
    const trd_shape scalar = {0};
    trd__hlo pair[2] = {l->inside[0], trd__hlo_fill(e, TRD_I32, &scalar, 1)};
    next[0] = trd__emit_elementwise(e, "add", pair, 2);
    for (int i = 1 + l->attr->carries; i < l->count; i++) next[i] = put_row(e, l, l->inside[i], next[i]);
    trd__emit_text(e, "%*sstablehlo.return %s : ", e->indent, "", trd__hlo_names(e, next, l->count));
    for (int i = 0; i < l->count; i++) trd__emit_text(e, "%s%s", i ? ", " : "", next[i].type);
    trd__emit_text(e, "\n");
}

static void lower_repeat(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    loop l = {.attr = n->attr, .body = trd__repeat_body(n)};
    trd__hlo next[TRD__MAX_RESULTS + 1] = {{.name = NULL}};
    const char *name = e->name;
    e->name = trd__hlo_text(e, "%s.at", name); /* the loop itself has the node's name */
    find_starts(e, n, &l);
    emit_head(e, name, &l);
    e->indent += 2;
    emit_condition(e, &l);
    trd__emit_text(e, "%*s} do {\n", e->indent - 2, "");
    find_row(e, &l);
    trd_status status = emit_body(e, n, &l, next);
    if (status != TRD_OK) {
        e->status = status;
        return;
    }
    emit_next(e, &l, next);
    e->indent -= 2;
    trd__emit_text(e, "%*s} loc(\"%s\")\n", e->indent, "", trd__hlo_word(e, n->name ? n->name : n->op->name));
    for (int i = 0; i < n->result_count; i++) {
        results[i] = l.start[i + 1];
        results[i].name = trd__hlo_text(e, "%s#%d", name, i + 1);
    }
}

const trd__pjrt_op trd__pjrt_repeat[] = {{.op = &trd__op_repeat, .lower = lower_repeat}, {0}};
