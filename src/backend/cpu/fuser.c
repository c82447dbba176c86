/* The fuser: which elementwise nodes and full reductions share one pass over memory.
 *
 * Going through the graph in order, a node joins the units of the operands it would otherwise read back from
 * memory, and the unit that last read the same operand, unless a path through another step leads from one to
 * the other. Cheap expressions of one slot entry and scalars (a gradient times the step's scale) are never
 * stored but recomputed by whoever reads them. Broadcasts are loads with strides. Units are then put in an
 * order that keeps each close to where its last member stood. */
#include "backend/cpu/fuser.h"

#include "base/alloc.h"

enum { WINDOW = 512, INLINE_OPS = 6 };

int64_t trd__unit_elements(const trd_node *n)
{
    return trd__shape_count(&trd__type_of(n->inputs[n->input_count - 1])->shape);
}

static bool is_root(const trd__lowering *l, const trd_node *n)
{
    return l->values[l->first_value[n->id]].root == l->first_value[n->id];
}

static bool is_elementwise(const trd__fusion *f, const trd_node *n)
{
    if (!(n->op->flags & TRD__OP_ELEMENTWISE) || n->result_count != 1 || n->input_count > 3) return false;
    if (n->op != &trd__op_cast && !trd__tile_find(f->tiles, n->op)) return false;
    if (!is_root(f->l, n) || !trd__tile_takes(n->results[0].dtype)) return false;
    for (int i = 0; i < n->input_count; i++)
        if (!trd__tile_takes(trd__type_of(n->inputs[i])->dtype)) return false;
    return true;
}

static bool is_reduction(const trd_node *n)
{
    if (n->op != &trd__op_sum_squares && n->op != &trd__op_reduce_sum) return false;
    const trd__type *x = trd__type_of(n->inputs[0]);
    if (!trd__tile_takes(x->dtype) || trd__shape_count(&x->shape) < 2) return false;
    return n->op == &trd__op_sum_squares ||
           ((const trd__reduce_attr *)n->attr)->axes_mask == (1u << x->shape.rank) - 1;
}

static bool is_fused(const trd__fusion *f, const trd_node *n)
{
    return f->elementwise[n->id] || f->reduction[n->id];
}

static bool is_broadcast(const trd__lowering *l, const trd_node *n)
{
    return n->op == &trd__op_broadcast && is_root(l, n);
}

trd__read trd__read_of(const trd__fusion *f, trd_value v)
{
    const trd__lowering *l = f->l;
    const trd__storage *s = &l->values[trd__value_number(l, v)], *root = &l->values[s->root];
    const trd_node *n = root->value.node;
    bool whole = s->offset == 0 && s->bytes == root->bytes;
    if (root->constant)
        return (trd__read){.kind = TRD__READ_CONSTANT, .value = ((const trd__constant_attr *)n->attr)->value};
    if (whole && is_broadcast(l, n)) {
        trd_value source = n->inputs[0];
        const trd__storage *from = trd__root_of(l, trd__value_number(l, source));
        if (from->constant)
            return (trd__read){.kind = TRD__READ_CONSTANT,
                               .value = ((const trd__constant_attr *)from->value.node->attr)->value};
        bool scalar = trd__shape_count(&trd__type_of(source)->shape) == 1;
        return (trd__read){scalar ? TRD__READ_SCALAR : TRD__READ_STRIDED, source, n, 0};
    }
    if (whole && f->elementwise[n->id]) return (trd__read){TRD__READ_NODE, v, n, 0};
    return (trd__read){TRD__READ_FULL, v, NULL, 0};
}

static int root_number(const trd__fusion *f, trd_value v)
{
    return f->l->values[trd__value_number(f->l, v)].root;
}

/* -- Uses and inlining -- */

static void count_reads(trd__fusion *f, const trd_node *n)
{
    for (int i = 0; i < n->input_count; i++) {
        if (!n->inputs[i].node || trd__starts_from_zero(f->l, n, i)) continue;
        if (!is_fused(f, n)) {
            f->stored_uses[root_number(f, n->inputs[i])]++;
            continue;
        }
        trd__read read = trd__read_of(f, n->inputs[i]);
        if (read.kind == TRD__READ_NODE)
            f->register_uses[root_number(f, n->inputs[i])]++;
        else if (read.kind != TRD__READ_CONSTANT)
            f->stored_uses[root_number(f, read.source)]++;
    }
}

/* Consumers first: a broadcast that no one needs in memory reads nothing itself. */
static void count_uses(trd__fusion *f)
{
    const trd__lowering *l = f->l;
    for (int i = 0; i < l->program->output_count; i++)
        f->stored_uses[root_number(f, l->program->outputs[i].value)]++;
    for (int i = l->graph->node_count - 1; i >= 0; i--) {
        const trd_node *n = l->graph->nodes[i];
        if (!is_root(l, n) || (is_broadcast(l, n) && f->stored_uses[l->first_value[i]] == 0)) continue;
        count_reads(f, n);
    }
}

/* What inlining n would cost: ops, and the one slot entry it may load. */
typedef struct expression {
    int ops;  /* 0: cannot be inlined */
    int leaf; /* value number, -1: none yet */
} expression;

static bool is_cheap(const trd_op *op)
{
    static const trd_op *const cheap[] = {&trd__op_neg,  &trd__op_abs,    &trd__op_square,    &trd__op_add,
                                          &trd__op_sub,  &trd__op_mul,    &trd__op_max,       &trd__op_min,
                                          &trd__op_cast, &trd__op_select, &trd__op_is_finite, &trd__op_not};
    for (size_t i = 0; i < sizeof cheap / sizeof *cheap; i++)
        if (cheap[i] == op) return true;
    return false;
}

static expression expression_of(const trd__fusion *f, const expression *known, const trd_node *n)
{
    static const expression no = {0, -1};
    expression e = {1, -1};
    if (!f->elementwise[n->id] || !is_cheap(n->op)) return no;
    for (int i = 0; i < n->input_count; i++) {
        trd__read read = trd__read_of(f, n->inputs[i]);
        int leaf = -1;
        if (read.kind == TRD__READ_NODE) {
            if (known[read.node->id].ops == 0) return no;
            e.ops += known[read.node->id].ops;
            leaf = known[read.node->id].leaf;
        } else if (read.kind == TRD__READ_FULL || read.kind == TRD__READ_STRIDED) {
            leaf = trd__value_number(f->l, read.source);
            if (!trd__root_of(f->l, leaf)->leaf) return no;
        }
        if (leaf >= 0 && e.leaf >= 0 && leaf != e.leaf) return no;
        if (leaf >= 0) e.leaf = leaf;
    }
    return e.ops <= INLINE_OPS ? e : no;
}

static trd_status choose_inlined(trd__fusion *f)
{
    const trd_graph *graph = f->l->graph;
    expression *known = trd__calloc((size_t)graph->node_count + 1, sizeof *known);
    if (!known) return TRD_NO_MEMORY;
    for (int i = 0; i < graph->node_count; i++) {
        if (f->stored_uses[f->l->first_value[i]] > 0) continue;
        known[i] = expression_of(f, known, graph->nodes[i]);
        f->inlined[i] = known[i].ops > 0;
    }
    trd__free(known);
    return TRD_OK;
}

/* -- Units -- */

static trd_status push(trd__fusion *f, int unit)
{
    if (f->stack_count == f->stack_capacity) {
        int capacity = f->stack_capacity ? 2 * f->stack_capacity : 256;
        int *larger = trd__realloc(f->stack, (size_t)capacity, sizeof *larger);
        if (!larger) return TRD_NO_MEMORY;
        f->stack = larger;
        f->stack_capacity = capacity;
    }
    f->stack[f->stack_count++] = unit;
    return TRD_OK;
}

static trd_status push_producer(trd__fusion *f, trd_value v)
{
    int unit = f->unit[f->l->values[root_number(f, v)].value.node->id];
    return unit >= 0 ? push(f, unit) : TRD_OK;
}

/* Pushes the units whose results n reads, through what is inlined in it. Reads of members of its own unit
 * from registers are none; the same from memory is one, and makes a unit depend on itself. */
static trd_status push_dependencies(trd__fusion *f, const trd_node *n, int a, int b)
{
    for (int i = 0; i < n->input_count; i++) {
        if (!n->inputs[i].node || trd__starts_from_zero(f->l, n, i)) continue;
        if (!is_fused(f, n)) {
            TRD_TRY(push_producer(f, n->inputs[i]));
            continue;
        }
        trd__read read = trd__read_of(f, n->inputs[i]);
        if (read.kind == TRD__READ_CONSTANT) continue;
        if (read.kind == TRD__READ_NODE && f->inlined[read.node->id]) {
            TRD_TRY(push_dependencies(f, read.node, a, b));
            continue;
        }
        int unit = read.kind == TRD__READ_NODE ? f->unit[read.node->id] : -1;
        bool within = unit >= 0 && (unit == a || unit == b);
        if (!within) TRD_TRY(push_producer(f, read.source));
    }
    return TRD_OK;
}

static trd_status push_unit_dependencies(trd__fusion *f, int unit, int a, int b)
{
    const trd__unit *u = &f->units[unit];
    for (int id = u->min; id <= u->max; id++)
        if (f->unit[id] == unit) TRD_TRY(push_dependencies(f, f->l->graph->nodes[id], a, b));
    return TRD_OK;
}

/* Sets *reaches when a path through other steps leads from unit a or b back to a or b. */
static trd_status find_path(trd__fusion *f, int a, int b, bool *reaches)
{
    /* Nothing before floor leads back behind it: no unit has members on both sides. */
    int floor = f->units[a].min < f->units[b].min ? f->units[a].min : f->units[b].min;
    while (f->span[floor] < floor) floor = f->span[floor];
    f->stack_count = 0;
    f->stamp++;
    *reaches = false;
    TRD_TRY(push_unit_dependencies(f, a, a, b));
    TRD_TRY(push_unit_dependencies(f, b, a, b));
    while (f->stack_count > 0) {
        int unit = f->stack[--f->stack_count];
        if (unit == a || unit == b) {
            *reaches = true;
            return TRD_OK;
        }
        trd__unit *u = &f->units[unit];
        if (u->stamp == f->stamp || u->max < floor) continue;
        u->stamp = f->stamp;
        TRD_TRY(push_unit_dependencies(f, unit, -1, -1));
    }
    return TRD_OK;
}

/* Reads of memory (an upper bound) and results in memory that a and b together would have. */
typedef struct demand {
    int reads, results;
} demand;

static void count_demand(const trd__fusion *f, const trd_node *n, int a, int b, int *register_reads,
                         demand *d)
{
    for (int i = 0; i < n->input_count; i++) {
        trd__read read = trd__read_of(f, n->inputs[i]);
        if (read.kind == TRD__READ_NODE && f->inlined[read.node->id]) {
            count_demand(f, read.node, a, b, register_reads, d);
        } else if (read.kind == TRD__READ_NODE &&
                   (f->unit[read.node->id] == a || f->unit[read.node->id] == b)) {
            if (f->stored_uses[f->l->first_value[read.node->id]] == 0) ++*register_reads;
        } else {
            d->reads++;
        }
    }
}

static bool fits(const trd__fusion *f, int a, int b)
{
    const trd__unit *ua = &f->units[a], *ub = &f->units[b];
    int min = ua->min < ub->min ? ua->min : ub->min, max = ua->max > ub->max ? ua->max : ub->max;
    if (max - min > WINDOW || ua->members + ub->members > TRD__UNIT_MEMBERS) return false;
    demand d = {0, 0};
    int register_uses = 0, register_reads = 0;
    for (int id = min; id <= max; id++) {
        if (f->unit[id] != a && f->unit[id] != b) continue;
        int root = f->l->first_value[id];
        count_demand(f, f->l->graph->nodes[id], a, b, &register_reads, &d);
        if (f->reduction[id] || f->stored_uses[root] > 0) d.results++;
        register_uses += f->stored_uses[root] > 0 ? 0 : f->register_uses[root];
    }
    /* Every register use that is not served inside may be a result of its own. */
    int open = register_uses - register_reads;
    return d.reads <= TRD__UNIT_READS && d.results + (open > 0 ? open : 0) <= TRD__KERNEL_RESULTS;
}

static trd_status try_union(trd__fusion *f, int into, int from)
{
    if (!fits(f, into, from)) return TRD_OK;
    bool reaches;
    TRD_TRY(find_path(f, into, from, &reaches));
    if (reaches) return TRD_OK;
    trd__unit *a = &f->units[into], *b = &f->units[from];
    for (int id = b->min; id <= b->max; id++)
        if (f->unit[id] == from) f->unit[id] = into;
    a->members += b->members;
    if (b->min < a->min) a->min = b->min;
    if (b->max > a->max) a->max = b->max;
    b->members = 0;
    for (int id = a->min + 1; id <= a->max; id++)
        if (f->span[id] > a->min) f->span[id] = a->min;
    return TRD_OK;
}

/* Remembers member's unit as the newest that loads what n reads in full. */
static void note_reads(trd__fusion *f, const trd_node *member, const trd_node *n)
{
    for (int i = 0; i < n->input_count; i++) {
        trd__read read = trd__read_of(f, n->inputs[i]);
        if (read.kind == TRD__READ_NODE && f->inlined[read.node->id])
            note_reads(f, member, read.node);
        else if (read.kind == TRD__READ_FULL)
            f->reader[root_number(f, read.source)] = f->unit[member->id];
    }
}

/* Joins the unit of member with those that could hand n, member or inlined in it, an operand. */
static trd_status join_operands(trd__fusion *f, const trd_node *member, const trd_node *n)
{
    for (int i = 0; i < n->input_count; i++) {
        trd__read read = trd__read_of(f, n->inputs[i]);
        int unit = f->unit[member->id], other = -1;
        if (read.kind == TRD__READ_NODE && f->inlined[read.node->id]) {
            TRD_TRY(join_operands(f, member, read.node));
            continue;
        }
        int root = read.kind == TRD__READ_CONSTANT ? -1 : root_number(f, read.source);
        if (read.kind == TRD__READ_NODE)
            other = f->unit[read.node->id];
        else if (read.kind == TRD__READ_FULL)
            other = f->reader[root];
        if (other >= 0 && f->units[other].members == 0) other = -1;
        if (other >= 0 && other != unit && f->units[other].fused &&
            trd__unit_elements(f->l->graph->nodes[f->units[other].min]) == trd__unit_elements(member))
            TRD_TRY(try_union(f, other, unit));
    }
    return TRD_OK;
}

static bool runs_as_step(const trd__fusion *f, const trd_node *n)
{
    const trd__storage *s = &f->l->values[f->l->first_value[n->id]];
    if (s->leaf || s->placed || !is_root(f->l, n) || f->inlined[n->id]) return false;
    if (s->constant || is_broadcast(f->l, n)) return f->stored_uses[s->root] > 0;
    return true;
}

static trd_status form_units(trd__fusion *f)
{
    const trd_graph *graph = f->l->graph;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        f->unit[i] = -1;
        f->span[i] = i;
        if (!runs_as_step(f, n)) continue;
        f->unit[i] = f->unit_count;
        f->units[f->unit_count++] = (trd__unit){.min = i, .max = i, .members = 1, .fused = is_fused(f, n)};
        if (!is_fused(f, n)) continue;
        TRD_TRY(join_operands(f, n, n));
        note_reads(f, n, n);
    }
    return TRD_OK;
}

/* -- Order -- */

static trd_status make_draft(trd__fusion *f, int unit)
{
    f->units[unit].emitted = true;
    if (f->units[unit].fused) return trd__build_group(f, unit);
    return trd__draft_node(f->l, f->l->graph->nodes[f->units[unit].min]);
}

/* Drafts unit after everything it depends on. The stack holds units whose turn has come but for that. */
static trd_status emit(trd__fusion *f, int unit)
{
    f->stack_count = 0;
    TRD_TRY(push(f, unit));
    while (f->stack_count > 0) {
        int top = f->stack[f->stack_count - 1], height = f->stack_count;
        if (f->units[top].emitted) {
            f->stack_count--;
            continue;
        }
        TRD_TRY(push_unit_dependencies(f, top, top, top));
        int kept = height;
        for (int i = height; i < f->stack_count; i++)
            if (!f->units[f->stack[i]].emitted) f->stack[kept++] = f->stack[i];
        f->stack_count = kept;
        if (kept > height) continue;
        f->stack_count = height - 1;
        TRD_TRY(make_draft(f, top));
    }
    return TRD_OK;
}

static trd_status make_drafts(trd__fusion *f)
{
    for (int i = 0; i < f->l->graph->node_count; i++) {
        int unit = f->unit[i];
        if (unit >= 0 && f->units[unit].max == i && !f->units[unit].emitted) TRD_TRY(emit(f, unit));
    }
    return TRD_OK;
}

static trd_status allocate(trd__fusion *f)
{
    size_t nodes = (size_t)f->l->graph->node_count + 1, values = (size_t)f->l->value_count + 1;
    f->unit = trd__calloc(nodes, sizeof *f->unit);
    f->elementwise = trd__calloc(nodes, sizeof *f->elementwise);
    f->reduction = trd__calloc(nodes, sizeof *f->reduction);
    f->inlined = trd__calloc(nodes, sizeof *f->inlined);
    f->units = trd__calloc(nodes, sizeof *f->units);
    f->stored_uses = trd__calloc(values, sizeof *f->stored_uses);
    f->register_uses = trd__calloc(values, sizeof *f->register_uses);
    f->span = trd__calloc(nodes, sizeof *f->span);
    f->reader = trd__alloc(values, sizeof *f->reader);
    if (!f->unit || !f->elementwise || !f->reduction || !f->inlined || !f->units || !f->stored_uses ||
        !f->register_uses || !f->reader || !f->span)
        return TRD_NO_MEMORY;
    for (size_t v = 0; v < values; v++) f->reader[v] = -1;
    return TRD_OK;
}

trd_status trd__fuse(trd__lowering *l)
{
    trd__fusion f = {.l = l, .tiles = trd__tiles_for(l->info->isa)};
    trd_status status = allocate(&f);
    for (int i = 0; !status && !l->info->reference_only && i < l->graph->node_count; i++) {
        f.elementwise[i] = is_elementwise(&f, l->graph->nodes[i]);
        f.reduction[i] = is_reduction(l->graph->nodes[i]);
    }
    if (!status) count_uses(&f);
    if (!status) status = choose_inlined(&f);
    if (!status) status = form_units(&f);
    if (!status) status = make_drafts(&f);
    trd__free(f.stack);
    trd__free(f.reader);
    trd__free(f.span);
    trd__free(f.register_uses);
    trd__free(f.stored_uses);
    trd__free(f.units);
    trd__free(f.inlined);
    trd__free(f.reduction);
    trd__free(f.elementwise);
    trd__free(f.unit);
    return status;
}
