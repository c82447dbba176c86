/* What a body computes from shared operands alone is the same in every iteration (rope tables, masks): it is
 * computed once, before the loop, and becomes a shared operand itself. Invariant: changes of shape and fills,
 * which cost nothing, stay inside, so that no operand is larger than what was computed. */
#include "base/alloc.h"
#include "graph/passes.h"
#include "ops/repeat.h"
#include "ops/repeat_parts.h"

typedef struct facts {
    bool varies;   /* with the iteration */
    bool fixed;    /* a fill or an iota, or made of those: the body's own */
    bool inside;   /* somebody in the body reads it there */
    int entry;     /* in the slot shared, where it is a new one; -1: none */
    trd_value out; /* what stands for it before the loop */
    trd_value in;  /* result 0 of what stands for it in the new body */
} facts;

typedef struct moving {
    trd_builder *b; /* around the body */
    trd__program *body;
    facts *facts;                      /* by node */
    trd_value shared[TRD__MAX_INPUTS]; /* operands: those there were, then the new ones */
    trd__entry entries[TRD__MAX_INPUTS];
    int shared_count;
} moving;

static void find_varying(moving *m)
{
    const trd_graph *graph = &m->body->builder->graph;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        facts *f = &m->facts[i];
        const trd__input_attr *leaf = n->op == &trd__op_input ? n->attr : NULL;
        f->varies = (leaf && leaf->slot != TRD__REPEAT_SHARED) || n->body_count || n->result_count > 1 ||
                    n->op->flags & TRD__OP_NO_CSE;
        f->fixed = !leaf;
        f->entry = -1;
        for (int j = 0; j < n->input_count; j++) {
            if (!n->inputs[j].node) continue;
            f->varies |= m->facts[n->inputs[j].node->id].varies;
            f->fixed &= m->facts[n->inputs[j].node->id].fixed;
        }
    }
}

/* Whether the body itself has to have node i: it varies, or costs nothing and is read there. */
static bool stays(const moving *m, int i)
{
    const trd_node *n = m->body->builder->graph.nodes[i];
    const facts *f = &m->facts[i];
    return f->varies || (f->inside && (f->fixed || n->op->cost == TRD__COST_FREE));
}

/* Whether there is something to move. */
static bool find_moved(moving *m)
{
    const trd_graph *graph = &m->body->builder->graph;
    bool moved = false;
    for (int i = 0; i < m->body->output_count; i++)
        m->facts[m->body->outputs[i].value.node->id].inside = true;
    for (int i = graph->node_count - 1; i >= 0; i--) {
        const trd_node *n = graph->nodes[i];
        moved |= m->facts[i].inside && !stays(m, i);
        for (int j = 0; j < n->input_count && stays(m, i); j++)
            if (n->inputs[j].node) m->facts[n->inputs[j].node->id].inside = true;
    }
    return moved;
}

static void add_shared(moving *m, trd_value v)
{
    if (m->shared_count == TRD__MAX_INPUTS) {
        trd_builder_fail(m->b, TRD_UNSUPPORTED, "repeat: expected at most %d shared operands",
                         TRD__MAX_INPUTS);
        return;
    }
    m->entries[m->shared_count] = trd__repeat_entry(m->b, TRD__REPEAT_SHARED, m->shared_count, v, false);
    m->shared[m->shared_count++] = v;
}

/* The nodes that do not vary, before the loop; their results that the body reads, as operands. */
static void compute_before(moving *m)
{
    const trd_graph *graph = &m->body->builder->graph;
    for (int i = 0; i < graph->node_count && m->b->status == TRD_OK; i++) {
        const trd_node *n = graph->nodes[i];
        facts *f = &m->facts[i];
        if (f->varies) continue;
        if (n->op == &trd__op_input) {
            f->out = m->shared[((const trd__input_attr *)n->attr)->entry];
            continue;
        }
        trd_value inputs[TRD__MAX_INPUTS] = {{NULL, 0}};
        for (int j = 0; j < n->input_count; j++)
            if (n->inputs[j].node) inputs[j] = m->facts[n->inputs[j].node->id].out;
        f->out = trd__result(trd__node_clone(m->b, n, inputs), 0);
        if (!f->inside || stays(m, i)) continue;
        f->entry = m->shared_count;
        if (m->b->status == TRD_OK) add_shared(m, f->out);
    }
}

static trd_value in_body(const moving *m, trd_value v)
{
    trd_value in = m->facts[v.node->id].in;
    return (trd_value){in.node, in.result + v.result};
}

static void take_node(moving *m, trd__program *to, const trd_node *n)
{
    facts *f = &m->facts[n->id];
    if (n->op == &trd__op_input) {
        const trd__input_attr *leaf = n->attr;
        f->in = trd__program_input(to, leaf->slot, leaf->entry);
    } else if (f->entry >= 0) {
        f->in = trd__program_input(to, TRD__REPEAT_SHARED, f->entry);
    } else if (stays(m, n->id)) {
        trd_value inputs[TRD__MAX_INPUTS] = {{NULL, 0}};
        for (int j = 0; j < n->input_count; j++)
            if (n->inputs[j].node) inputs[j] = in_body(m, n->inputs[j]);
        f->in = trd__result(trd__node_clone(to->builder, n, inputs), 0);
    }
}

static trd_status rebuild(moving *m, trd__program *to)
{
    const trd__program *body = m->body;
    for (int s = 0; s < TRD__REPEAT_SLOTS; s++) {
        bool shared = s == TRD__REPEAT_SHARED;
        trd__repeat_body_slot(to, (trd__repeat_slot)s, shared ? m->entries : body->slots[s].entries,
                              shared ? m->shared_count : body->slots[s].entry_count);
    }
    for (int i = 0; i < body->builder->graph.node_count && to->builder->status == TRD_OK; i++)
        take_node(m, to, body->builder->graph.nodes[i]);
    for (int i = 0; i < body->output_count && to->builder->status == TRD_OK; i++) {
        const trd__output *o = &body->outputs[i];
        trd__program_output(to, o->slot, o->entry, in_body(m, o->value));
    }
    return trd_builder_status(to->builder);
}

static trd_status move(moving *m, trd__program **body)
{
    find_varying(m);
    if (!find_moved(m)) return TRD_OK;
    compute_before(m);
    TRD_TRY(trd_builder_status(m->b));
    trd__program *to;
    TRD_TRY(trd__program_create(m->body->name, &to));
    trd_status status = rebuild(m, to);
    if (status != TRD_OK) {
        trd__program_free(to);
        return status;
    }
    trd__program_free(*body);
    *body = to;
    return TRD_OK;
}

void trd__repeat_move_invariant(trd_builder *b, trd__program **body, trd_value *shared, int *shared_count)
{
    trd_status status = trd__cse(*body);
    moving *m = trd__calloc(1, sizeof *m);
    if (status == TRD_OK && !m) status = TRD_NO_MEMORY;
    if (status == TRD_OK) {
        m->b = b;
        m->body = *body;
        m->facts = trd__calloc((size_t)m->body->builder->graph.node_count + 1, sizeof *m->facts);
        if (!m->facts) status = TRD_NO_MEMORY;
    }
    if (status == TRD_OK) {
        for (int i = 0; i < *shared_count; i++) {
            m->shared[i] = shared[i];
            m->entries[i] = m->body->slots[TRD__REPEAT_SHARED].entries[i];
        }
        m->shared_count = *shared_count;
        status = move(m, body);
        for (int i = *shared_count; i < m->shared_count; i++) shared[i] = m->shared[i];
        *shared_count = m->shared_count;
    }
    if (status != TRD_OK) trd__builder_stick(b, status);
    if (m) trd__free(m->facts);
    trd__free(m);
}
