/* The gradient of repeat. The body is differentiated once, in a scratch program: the forward nodes first,
 * then what reverse mode adds, from the cotangents of the carries and of the made rows. Rematerialization
 * decides what the later part computes again. Then the scratch program is cut in two: the forward body also
 * makes each value that the later part still reads (the residuals), stacked; the backward body runs the
 * other way. It carries the cotangents of the carries and the sums of those of shared operands, reads
 * residuals by rows, and makes the cotangents of stacked operands. Invariant: contributions to a row meet in
 * the order in which the unrolled graph has them. */
#include "ops/repeat_parts.h"

#include "base/alloc.h"
#include "base/dtype.h"
#include "graph/passes.h"
#include "ops/repeat.h"
#include "ops/rules.h"

/* Slots of the scratch program; the first three are the body's. */
enum { COTANGENTS = TRD__REPEAT_STACKED + 1, RUNNING, FORWARD, GRADIENTS };
enum { READS = RUNNING + 1 };

/* The values of one group of entries, and which of the node's they belong to. */
typedef struct group {
    trd__entry entry[TRD__MAX_RESULTS];
    trd_value value[TRD__MAX_RESULTS];
    int of[TRD__MAX_RESULTS];
    int count;
} group;

typedef struct splitting {
    trd_builder *b;
    const trd_node *n;
    const trd__repeat_attr *attr;
    const trd_value *dy;
    const bool *needs;
    trd__program *scratch;
    bool reached[TRD__MAX_RESULTS]; /* by carry: a cotangent flows through it */
    trd_value *leaves[READS];       /* of the scratch program, by slot and entry */
    trd_value *carries, *made;      /* what the body writes, in the scratch program */
    /* Of the backward body. Values are the scratch program's; of: number of the entry on the node. */
    group carry, running, rows, residuals;
    int cotangent_of_made[TRD__MAX_RESULTS]; /* entry in the slot of cotangents, -1: none */
    bool used[READS][TRD__MAX_INPUTS];       /* leaves that the later part reads, by slot and entry */
    group plan[COTANGENTS];                  /* what the backward body reads, by its slots */
    trd_value operands[COTANGENTS][TRD__MAX_RESULTS];
} splitting;

static void add(splitting *s, group *g, const trd__entry *entry, trd_value value, int of)
{
    if (g->count == TRD__MAX_RESULTS) {
        trd_builder_fail(
            s->b, TRD_UNSUPPORTED,
            "repeat: expected a gradient of at most %d values an iteration; remat_policy full keeps "
            "the fewest",
            TRD__MAX_RESULTS);
        return;
    }
    g->entry[g->count] = *entry;
    g->value[g->count] = value;
    g->of[g->count++] = of;
}

static const trd__entry *entry_of(const splitting *s, trd__repeat_slot slot, int entry)
{
    return &s->n->bodies[0]->slots[slot].entries[entry];
}

/* The cotangent of an entry, which is of its type. */
static void add_cotangent(splitting *s, group *g, trd__repeat_slot slot, int entry, trd_value value)
{
    trd__entry e = *entry_of(s, slot, entry);
    const char *name = trd__arena_format(s->b->graph.arena, "d_%s", e.name);
    if (!name) trd__builder_stick(s->b, TRD_NO_MEMORY);
    e.name = name ? name : "";
    add(s, g, &e, value, entry);
}

static bool needed(const splitting *s, trd__repeat_slot slot, int entry)
{
    return s->needs[trd__repeat_operand(s->attr, slot, entry)];
}

/* -- the scratch program -- */

static trd_value *values(splitting *s, int count)
{
    trd_value *v = trd__arena_alloc(s->b->graph.arena, (size_t)count + 1, sizeof *v);
    if (!v) trd__builder_stick(s->b, TRD_NO_MEMORY);
    return v;
}

/* Adds a slot that is read, and asks for all of it. */
static void add_leaves(splitting *s, const char *name, const trd__entry *entries, int count)
{
    trd__program *p = s->scratch;
    int slot = trd__program_slot(p, name, TRD__READ, entries, count);
    s->leaves[slot < 0 ? 0 : slot] = values(s, count);
    for (int i = 0; i < count && s->b->status == TRD_OK && slot >= 0; i++)
        s->leaves[slot][i] = trd__program_input(p, slot, i);
}

/* Cotangents of reached carries, then of the made rows that have one; and a sum for each shared operand. */
static void add_cotangents(splitting *s)
{
    const trd_value null = {NULL, 0};
    group cotangents = {.count = 0}, running = {.count = 0};
    for (int i = 0; i < s->attr->carries; i++)
        if (s->reached[i]) add_cotangent(s, &cotangents, TRD__REPEAT_CARRY, i, null);
    for (int i = 0; i < s->attr->made; i++) {
        bool given = !trd_is_null(s->dy[trd__repeat_result(s->attr, TRD__REPEAT_MADE, i)]);
        s->cotangent_of_made[i] = given ? cotangents.count : -1;
        if (given) add_cotangent(s, &cotangents, TRD__REPEAT_MADE, i, null);
    }
    for (int i = 0; i < s->attr->shared; i++)
        if (needed(s, TRD__REPEAT_SHARED, i)) add_cotangent(s, &running, TRD__REPEAT_SHARED, i, null);
    add_leaves(s, "cotangents", cotangents.entry, cotangents.count);
    add_leaves(s, "running", running.entry, running.count);
}

static void build_forward(splitting *s)
{
    const trd__program *body = s->n->bodies[0];
    trd_value *writes[TRD__REPEAT_SLOTS] = {NULL};
    const trd_value *reads[TRD__REPEAT_SLOTS] = {NULL};
    for (int slot = 0; slot < COTANGENTS; slot++) {
        add_leaves(s, body->slots[slot].name, body->slots[slot].entries, body->slots[slot].entry_count);
        reads[slot] = s->leaves[slot];
    }
    add_cotangents(s);
    writes[TRD__REPEAT_CARRY] = s->carries = values(s, s->attr->carries);
    writes[TRD__REPEAT_MADE] = s->made = values(s, s->attr->made);
    if (s->b->status == TRD_OK) trd__program_inline(s->scratch->builder, body, reads, writes, NULL);
}

static int add_seeds(const splitting *s, trd__seed *seeds)
{
    int count = 0;
    for (int i = 0; i < s->attr->carries; i++)
        if (s->reached[i]) {
            seeds[count] = (trd__seed){s->carries[i], s->leaves[COTANGENTS][count]};
            count++;
        }
    for (int i = 0; i < s->attr->made; i++)
        if (s->cotangent_of_made[i] >= 0)
            seeds[count++] = (trd__seed){s->made[i], s->leaves[COTANGENTS][s->cotangent_of_made[i]]};
    return count;
}

/* Differentiates the body. Sums of shared operands and rows of stacked ones are chains that begin with what
 * is there, or with 0. */
static trd_status differentiate_body(splitting *s, trd__differentiate *differentiate)
{
    trd_builder *b = s->scratch->builder;
    trd__seed seeds[TRD__MAX_RESULTS];
    trd__gradient asked[TRD__MAX_INPUTS] = {{.result = {NULL, 0}}};
    int count = 0, running = 0;
    for (int i = 0; i < s->attr->carries; i++)
        if (trd__dtype_is_float(entry_of(s, TRD__REPEAT_CARRY, i)->dtype))
            asked[count++].of = s->leaves[TRD__REPEAT_CARRY][i];
    for (int i = 0; i < s->attr->shared; i++)
        if (needed(s, TRD__REPEAT_SHARED, i))
            asked[count++] = (trd__gradient){.of = s->leaves[TRD__REPEAT_SHARED][i],
                                             .accumulator = s->leaves[RUNNING][running++]};
    for (int i = 0; i < s->attr->stacked; i++) {
        const trd__entry *e = entry_of(s, TRD__REPEAT_STACKED, i);
        if (needed(s, TRD__REPEAT_STACKED, i))
            asked[count++] = (trd__gradient){.of = s->leaves[TRD__REPEAT_STACKED][i],
                                             .accumulator = trd_constant_fill(b, e->dtype, e->shape, 0)};
    }
    TRD_TRY(differentiate(b, seeds, add_seeds(s, seeds), asked, count));
    count = running = 0;
    for (int i = 0; i < s->attr->carries; i++)
        if (trd__dtype_is_float(entry_of(s, TRD__REPEAT_CARRY, i)->dtype))
            add_cotangent(s, &s->carry, TRD__REPEAT_CARRY, i, asked[count++].result);
    for (int slot = TRD__REPEAT_SHARED; slot <= TRD__REPEAT_STACKED; slot++)
        for (int i = 0; i < trd__repeat_entries(s->attr, (trd__repeat_slot)slot); i++) {
            if (!needed(s, (trd__repeat_slot)slot, i)) continue;
            const trd__gradient *g = &asked[count++];
            if (trd_same(g->result, g->accumulator)) continue;
            add_cotangent(s, slot == TRD__REPEAT_SHARED ? &s->running : &s->rows, (trd__repeat_slot)slot, i,
                          g->result);
        }
    return trd_builder_status(s->b);
}

/* Marks carries through which a cotangent flows to the iteration before. Whether there are new ones. */
static bool reach_more(splitting *s)
{
    bool more = false;
    for (int i = 0; i < s->carry.count; i++) {
        int carry = s->carry.of[i];
        if (s->reached[carry] || trd_is_null(s->carry.value[i])) continue;
        s->reached[carry] = more = true;
    }
    return more;
}

/* Keeps the reached carries, with a 0 where an iteration hands no cotangent on. */
static void keep_reached(splitting *s)
{
    group all = s->carry;
    s->carry.count = 0;
    for (int i = 0; i < all.count; i++) {
        const trd__entry *e = &all.entry[i];
        if (!s->reached[all.of[i]]) continue;
        trd_value v = all.value[i];
        if (trd_is_null(v)) v = trd_constant_fill(s->scratch->builder, e->dtype, e->shape, 0);
        add(s, &s->carry, e, v, all.of[i]);
    }
}

/* Makes the values outputs, so that passes keep them, and reads them again behind the passes. */
static trd_status run_passes(splitting *s)
{
    trd__program *p = s->scratch;
    const group *const gradients[] = {&s->carry, &s->running, &s->rows};
    group outputs = {.count = 0}, wanted = {.count = 0};
    for (int i = 0; i < s->attr->carries; i++)
        add(s, &outputs, entry_of(s, TRD__REPEAT_CARRY, i), s->carries[i], i);
    for (int i = 0; i < s->attr->made; i++) add(s, &outputs, entry_of(s, TRD__REPEAT_MADE, i), s->made[i], i);
    for (int g = 0; g < 3; g++)
        for (int i = 0; i < gradients[g]->count; i++)
            add(s, &wanted, &gradients[g]->entry[i], gradients[g]->value[i], i);
    TRD_TRY(trd_builder_status(s->b));
    trd__program_slot(p, "forward", TRD__WRITE, outputs.entry, outputs.count);
    trd__program_slot(p, "gradients", TRD__WRITE, wanted.entry, wanted.count);
    for (int i = 0; i < outputs.count; i++)
        trd__program_output(p, FORWARD, i, trd__autodiff_current(p->builder, outputs.value[i]));
    for (int i = 0; i < wanted.count; i++) trd__program_output(p, GRADIENTS, i, wanted.value[i]);
    TRD_TRY(trd_builder_status(p->builder));
    TRD_TRY(trd__remat_body(p, s->b->remat));
    for (int i = 0; i < s->attr->carries; i++) s->carries[i] = p->outputs[i].value;
    for (int i = 0; i < s->attr->made; i++) s->made[i] = p->outputs[s->attr->carries + i].value;
    const trd__output *output = p->outputs + outputs.count;
    for (int i = 0; i < s->carry.count; i++) s->carry.value[i] = output++->value;
    for (int i = 0; i < s->running.count; i++) s->running.value[i] = output++->value;
    for (int i = 0; i < s->rows.count; i++) s->rows.value[i] = output++->value;
    return TRD_OK;
}

/* One attempt with the carries that are known to be reached. */
static trd_status make_scratch(splitting *s, trd__differentiate *differentiate)
{
    trd__program_free(s->scratch);
    s->scratch = NULL;
    s->carry.count = s->running.count = s->rows.count = 0;
    TRD_TRY(trd__program_create("gradient", &s->scratch));
    s->scratch->builder->remat = s->b->remat;
    build_forward(s);
    TRD_TRY(trd_builder_status(s->b));
    TRD_TRY(trd_builder_status(s->scratch->builder));
    return differentiate_body(s, differentiate);
}

/* -- cutting it -- */

/* A half of the scratch program: where its values are in the half's own. */
typedef struct half {
    trd__program *program;
    trd_value **map; /* by node and result */
} half;

static bool is_early(const trd_node *n)
{
    return n->forward && !(n->op->flags & TRD__OP_LEAF);
}

static const trd__input_attr *leaf_of(trd_value v)
{
    return v.node->op == &trd__op_input ? v.node->attr : NULL;
}

/* Whether the later part reads v as a row that the earlier part made. */
static bool is_residual(trd_value v)
{
    const trd__input_attr *leaf = leaf_of(v);
    return is_early(v.node) || (leaf && leaf->slot == TRD__REPEAT_CARRY);
}

static void note_use(splitting *s, trd_value v)
{
    const trd__input_attr *leaf = leaf_of(v);
    if (leaf && leaf->slot != TRD__REPEAT_CARRY) s->used[leaf->slot][leaf->entry] = true;
    if (!is_residual(v)) return;
    for (int i = 0; i < s->residuals.count; i++)
        if (trd_same(s->residuals.value[i], v)) return;
    trd__entry e = trd__repeat_entry(s->b, TRD__REPEAT_MADE, s->attr->made + s->residuals.count, v, false);
    add(s, &s->residuals, &e, v, 0);
}

/* Residuals, and the leaves that the later part reads itself. */
static void find_uses(splitting *s)
{
    const trd_graph *graph = &s->scratch->builder->graph;
    const group *const gradients[] = {&s->carry, &s->running, &s->rows};
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        for (int j = 0; j < n->input_count && !is_early(n); j++)
            if (n->inputs[j].node) note_use(s, n->inputs[j]);
    }
    for (int g = 0; g < 3; g++)
        for (int i = 0; i < gradients[g]->count; i++) note_use(s, gradients[g]->value[i]);
}

static trd_status half_init(half *h, const splitting *s)
{
    const trd_graph *graph = &s->scratch->builder->graph;
    TRD_TRY(trd__program_create("body", &h->program));
    h->map =
        trd__arena_alloc(h->program->builder->graph.arena, (size_t)graph->node_count + 1, sizeof *h->map);
    for (int i = 0; h->map && i < graph->node_count; i++) {
        h->map[i] = trd__arena_alloc(h->program->builder->graph.arena,
                                     (size_t)graph->nodes[i]->result_count + 1, sizeof **h->map);
        if (!h->map[i]) return TRD_NO_MEMORY;
    }
    return h->map ? TRD_OK : TRD_NO_MEMORY;
}

static void take_node(half *h, const trd_node *n)
{
    trd_value inputs[TRD__MAX_INPUTS] = {{NULL, 0}};
    for (int j = 0; j < n->input_count; j++)
        if (n->inputs[j].node) inputs[j] = h->map[n->inputs[j].node->id][n->inputs[j].result];
    const trd_node *copy = trd__node_clone(h->program->builder, n, inputs);
    for (int r = 0; r < n->result_count; r++) h->map[n->id][r] = trd__result(copy, r);
}

static trd_value taken(const half *h, trd_value v)
{
    return h->map[v.node->id][v.result];
}

/* The nodes of one half, in order. Leaves that it reads are mapped already. */
static void take_nodes(half *h, const splitting *s, bool early)
{
    const trd_graph *graph = &s->scratch->builder->graph;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        bool leaf = n->op->flags & TRD__OP_LEAF;
        if (n->op != &trd__op_input && (leaf || is_early(n) == early)) take_node(h, n);
    }
}

/* The forward body: as it was, with residuals behind what it made. */
static trd_status make_forward(splitting *s, half *h)
{
    TRD_TRY(half_init(h, s));
    trd__program *p = h->program;
    const trd__program *body = s->n->bodies[0];
    group made = {.count = 0};
    for (int i = 0; i < s->attr->made; i++) add(s, &made, entry_of(s, TRD__REPEAT_MADE, i), s->made[i], i);
    for (int i = 0; i < s->residuals.count; i++)
        add(s, &made, &s->residuals.entry[i], s->residuals.value[i], i);
    TRD_TRY(trd_builder_status(s->b));
    for (int slot = 0; slot < TRD__REPEAT_MADE; slot++)
        trd__repeat_body_slot(p, (trd__repeat_slot)slot, body->slots[slot].entries,
                              body->slots[slot].entry_count);
    trd__repeat_body_slot(p, TRD__REPEAT_MADE, made.entry, made.count);
    for (int slot = 0; slot < COTANGENTS; slot++)
        for (int i = 0; i < body->slots[slot].entry_count; i++) {
            trd_value leaf = s->scratch->slots[slot].leaves[i];
            if (!trd_is_null(leaf)) h->map[leaf.node->id][0] = trd__program_input(p, slot, i);
        }
    take_nodes(h, s, true);
    for (int i = 0; i < s->attr->carries; i++)
        trd__program_output(p, TRD__REPEAT_CARRY, i, taken(h, s->carries[i]));
    for (int i = 0; i < made.count; i++) trd__program_output(p, TRD__REPEAT_MADE, i, taken(h, made.value[i]));
    TRD_TRY(trd_builder_status(p->builder));
    return trd__dce(p);
}

/* Adds entry to a slot of the backward body: where scratch value v is read there, and the operand behind it.
 */
static void plan_leaf(splitting *s, trd__repeat_slot slot, const trd__entry *entry, trd_value v,
                      trd_value operand)
{
    int place = s->plan[slot].count;
    add(s, &s->plan[slot], entry, v, 0);
    if (s->plan[slot].count > place) s->operands[slot][place] = operand;
}

static trd_value zeros(splitting *s, const trd__entry *e)
{
    return trd_constant_fill(s->b, e->dtype, e->shape, 0);
}

static void plan_carries(splitting *s)
{
    for (int i = 0; i < s->carry.count; i++) {
        trd_value dy = s->dy[s->carry.of[i]];
        plan_leaf(s, TRD__REPEAT_CARRY, &s->carry.entry[i], s->scratch->slots[COTANGENTS].leaves[i],
                  trd_is_null(dy) ? zeros(s, &s->carry.entry[i]) : dy);
    }
    int leaf = 0, kept = 0;
    for (int i = 0; i < s->attr->shared; i++) {
        if (!needed(s, TRD__REPEAT_SHARED, i)) continue;
        if (kept < s->running.count && s->running.of[kept] == i) {
            const trd__entry *e = &s->running.entry[kept++];
            plan_leaf(s, TRD__REPEAT_CARRY, e, s->scratch->slots[RUNNING].leaves[leaf], zeros(s, e));
        }
        leaf++;
    }
}

static void plan_operands(splitting *s, trd__repeat_slot slot)
{
    for (int i = 0; i < trd__repeat_entries(s->attr, slot); i++)
        if (s->used[slot][i])
            plan_leaf(s, slot, entry_of(s, slot, i), s->scratch->slots[slot].leaves[i],
                      s->n->inputs[trd__repeat_operand(s->attr, slot, i)]);
}

/* What a backward iteration reads by rows: stacked operands, residuals, cotangents of made rows. */
static void plan_rows(splitting *s, const trd_node *forward)
{
    plan_operands(s, TRD__REPEAT_STACKED);
    for (int i = 0; i < s->residuals.count; i++)
        plan_leaf(s, TRD__REPEAT_STACKED, &s->residuals.entry[i], s->residuals.value[i],
                  trd__result(forward, trd__repeat_result(trd__repeat_attr_of(forward), TRD__REPEAT_MADE,
                                                          s->attr->made + i)));
    const trd__slot *cotangents = &s->scratch->slots[COTANGENTS];
    for (int i = 0; i < s->attr->made; i++) {
        int leaf = s->cotangent_of_made[i];
        if (leaf >= 0 && s->used[COTANGENTS][leaf])
            plan_leaf(s, TRD__REPEAT_STACKED, &cotangents->entries[leaf], cotangents->leaves[leaf],
                      s->dy[trd__repeat_result(s->attr, TRD__REPEAT_MADE, i)]);
    }
}

static trd_status make_backward(splitting *s, half *h)
{
    TRD_TRY(half_init(h, s));
    trd__program *p = h->program;
    for (int slot = 0; slot < COTANGENTS; slot++)
        trd__repeat_body_slot(p, (trd__repeat_slot)slot, s->plan[slot].entry, s->plan[slot].count);
    trd__repeat_body_slot(p, TRD__REPEAT_SUMS, NULL, 0);
    trd__repeat_body_slot(p, TRD__REPEAT_MADE, s->rows.entry, s->rows.count);
    for (int slot = 0; slot < COTANGENTS; slot++)
        for (int i = 0; i < s->plan[slot].count; i++) {
            trd_value v = s->plan[slot].value[i];
            if (!trd_is_null(v)) h->map[v.node->id][v.result] = trd__program_input(p, slot, i);
        }
    take_nodes(h, s, false);
    for (int i = 0; i < s->carry.count; i++)
        trd__program_output(p, TRD__REPEAT_CARRY, i, taken(h, s->carry.value[i]));
    for (int i = 0; i < s->running.count; i++)
        trd__program_output(p, TRD__REPEAT_CARRY, s->carry.count + i, taken(h, s->running.value[i]));
    for (int i = 0; i < s->rows.count; i++)
        trd__program_output(p, TRD__REPEAT_MADE, i, taken(h, s->rows.value[i]));
    TRD_TRY(trd_builder_status(p->builder));
    return trd__dce(p);
}

/* The backward node's results are the cotangents. */
static void hand_out(const splitting *s, const trd_node *backward, trd_value *dx)
{
    int result = 0;
    for (int i = 0; i < s->carry.count; i++, result++)
        if (needed(s, TRD__REPEAT_CARRY, s->carry.of[i]))
            dx[trd__repeat_operand(s->attr, TRD__REPEAT_CARRY, s->carry.of[i])] =
                trd__result(backward, result);
    for (int i = 0; i < s->running.count; i++, result++)
        dx[trd__repeat_operand(s->attr, TRD__REPEAT_SHARED, s->running.of[i])] =
            trd__result(backward, result);
    for (int i = 0; i < s->rows.count; i++, result++)
        dx[trd__repeat_operand(s->attr, TRD__REPEAT_STACKED, s->rows.of[i])] = trd__result(backward, result);
}

/* Adds a half as a repeat. Its program is the node's from here on. */
static const trd_node *add_half(splitting *s, half *h, bool reverse, const trd_value *inputs,
                                const char *suffix)
{
    const trd_node *n = trd__repeat_add(s->b, s->attr->count, reverse, inputs, h->program);
    h->program = NULL;
    if (n && s->n->name) trd_name(s->b, trd__result(n, 0), "%s%s", s->n->name, suffix);
    return n;
}

static trd_status add_forward(splitting *s, const trd_node **forward)
{
    half h = {NULL, NULL};
    trd_status status = make_forward(s, &h);
    if (status != TRD_OK) {
        trd__program_free(h.program);
        return status;
    }
    *forward = add_half(s, &h, s->attr->reverse, s->n->inputs, "");
    for (int r = 0; *forward && r < s->n->result_count; r++)
        trd_axes(s->b, trd__result(*forward, r), s->n->results[r].axes);
    return trd_builder_status(s->b);
}

static trd_status add_backward(splitting *s, const trd_node *forward, trd_value *dx)
{
    trd_value inputs[COTANGENTS * TRD__MAX_RESULTS];
    int count = 0;
    plan_carries(s);
    plan_operands(s, TRD__REPEAT_SHARED);
    plan_rows(s, forward);
    TRD_TRY(trd_builder_status(s->b));
    half h = {NULL, NULL};
    trd_status status = make_backward(s, &h);
    if (status != TRD_OK) {
        trd__program_free(h.program);
        return status;
    }
    for (int slot = 0; slot < COTANGENTS; slot++)
        for (int i = 0; i < s->plan[slot].count; i++) inputs[count++] = s->operands[slot][i];
    const trd_node *backward = add_half(s, &h, !s->attr->reverse, inputs, ".gradient");
    TRD_TRY(trd_builder_status(s->b));
    hand_out(s, backward, dx);
    return TRD_OK;
}

static trd_status split(splitting *s, trd__differentiate *differentiate, trd_value *results, trd_value *dx)
{
    if (s->attr->sums)
        return trd__fail(TRD_UNSUPPORTED, "repeat: expected no accumulator inside to differentiate through");
    for (int i = 0; i < s->attr->carries; i++) s->reached[i] = !trd_is_null(s->dy[i]);
    do {
        TRD_TRY(make_scratch(s, differentiate));
    } while (reach_more(s));
    keep_reached(s);
    TRD_TRY(run_passes(s));
    find_uses(s);
    TRD_TRY(trd_builder_status(s->b));
    const trd_node *forward;
    TRD_TRY(add_forward(s, &forward));
    for (int r = 0; r < s->n->result_count; r++) results[r] = trd__result(forward, r);
    return add_backward(s, forward, dx);
}

void trd__repeat_gradient(trd_builder *b, const trd_node *n, trd__differentiate *differentiate,
                          const trd_value *dy, const bool *needs, trd_value *results, trd_value *dx)
{
    splitting *s = trd__calloc(1, sizeof *s);
    trd_status status = TRD_NO_MEMORY;
    if (s) {
        s->b = b;
        s->n = n;
        s->attr = n->attr;
        s->dy = dy;
        s->needs = needs;
        status = split(s, differentiate, results, dx);
        trd__program_free(s->scratch);
    }
    if (status != TRD_OK) trd__builder_stick(b, status);
    trd__free(s);
}
