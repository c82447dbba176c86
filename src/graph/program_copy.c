/* A program of one's own: a backend rewrites what it compiles, the caller's program stays as it is; and a
 * program's nodes in the midst of another graph. Invariant: the copy has the same nodes in the same order
 * with the same annotations, so passes see no difference. */
#include "base/alloc.h"
#include "graph/program.h"

/* Where the nodes go, and what stands for the leaves there. */
typedef struct copying {
    trd_builder *b;
    trd__program *program;          /* leaves are its inputs; NULL: leaves below */
    const trd_value *const *leaves; /* by slot and entry */
    trd_value *map;                 /* by node of the original: its copy's result 0 */
} copying;

static void annotate(trd_builder *b, const trd_node *from, const trd_node *to)
{
    if (b->status != TRD_OK) return;
    for (int r = 0; r < from->result_count; r++) trd_axes(b, trd__result(to, r), from->results[r].axes);
    if (from->name) trd_name(b, trd__result(to, 0), "%s", from->name);
    trd_node *n = b->graph.nodes[to->id];
    n->layer_boundary = from->layer_boundary;
    n->forward = from->forward;
    n->recomputed = from->recomputed;
}

static trd_value copied(const copying *c, trd_value v)
{
    trd_value to = c->map[v.node->id];
    return (trd_value){to.node, to.result + v.result};
}

/* n's bodies, copied; NULL where it has none, or with the builder's error set. */
static trd__program **copy_bodies(trd_builder *b, const trd_node *n)
{
    if (!n->body_count) return NULL;
    trd__program **bodies = trd__arena_alloc(b->graph.arena, (size_t)n->body_count, sizeof(trd__program *));
    trd_status status = bodies ? TRD_OK : TRD_NO_MEMORY;
    int made = 0;
    while (status == TRD_OK && made < n->body_count) {
        status = trd__program_copy(n->bodies[made], &bodies[made]);
        if (status == TRD_OK) made++;
    }
    if (status == TRD_OK) return bodies;
    while (made > 0) trd__program_free(bodies[--made]);
    trd__builder_stick(b, status);
    return NULL;
}

const trd_node *trd__node_clone(trd_builder *b, const trd_node *n, const trd_value *inputs)
{
    trd__program **bodies = copy_bodies(b, n);
    const trd_node *copy =
        trd__node_add_bodies(b, n->op, n->attr, inputs, n->input_count, bodies, bodies ? n->body_count : 0);
    annotate(b, n, copy);
    return copy;
}

static void copy_node(copying *c, const trd_node *n)
{
    if (n->op == &trd__op_input) {
        const trd__input_attr *attr = n->attr;
        c->map[n->id] = c->program ? trd__program_input(c->program, attr->slot, attr->entry)
                                   : c->leaves[attr->slot][attr->entry];
        if (c->program) annotate(c->b, n, c->map[n->id].node);
        return;
    }
    trd_value inputs[TRD__MAX_INPUTS] = {{NULL, 0}};
    for (int j = 0; j < n->input_count; j++)
        if (n->inputs[j].node) inputs[j] = copied(c, n->inputs[j]);
    c->map[n->id] = trd__result(trd__node_clone(c->b, n, inputs), 0);
}

static void copy_nodes(copying *c, const trd_graph *graph)
{
    c->map = trd__calloc((size_t)graph->node_count + 1, sizeof *c->map);
    if (!c->map) trd__builder_stick(c->b, TRD_NO_MEMORY);
    for (int i = 0; i < graph->node_count && c->b->status == TRD_OK; i++) copy_node(c, graph->nodes[i]);
}

static trd_status copy_into(const trd__program *from, trd__program *to)
{
    copying c = {.b = to->builder, .program = to};
    to->builder->remat = from->builder->remat;
    to->replicas = from->replicas;
    to->precision = from->precision;
    for (int s = 0; s < from->slot_count; s++)
        trd__program_slot(to, from->slots[s].name, from->slots[s].access, from->slots[s].entries,
                          from->slots[s].entry_count);
    copy_nodes(&c, &from->builder->graph);
    for (int i = 0; i < from->output_count && c.b->status == TRD_OK; i++) {
        const trd__output *o = &from->outputs[i];
        trd__program_output(to, o->slot, o->entry, copied(&c, o->value));
    }
    trd__free(c.map);
    return trd_builder_status(c.b);
}

trd_status trd__program_copy(const trd__program *program, trd__program **copy)
{
    *copy = NULL;
    TRD_TRY(trd_builder_status(program->builder));
    trd__program *to;
    TRD_TRY(trd__program_create(program->name, &to));
    trd_status status = copy_into(program, to);
    if (status == TRD_OK)
        *copy = to;
    else
        trd__program_free(to);
    return status;
}

void trd__program_inline(trd_builder *b, const trd__program *program, const trd_value *const *leaves,
                         trd_value *const *outputs, trd_value *map)
{
    if (b->status != TRD_OK) return;
    trd_status status = trd_builder_status(program->builder);
    if (status != TRD_OK) {
        trd__builder_stick(b, status);
        return;
    }
    copying c = {.b = b, .leaves = leaves};
    copy_nodes(&c, &program->builder->graph);
    for (int i = 0; i < program->output_count && b->status == TRD_OK; i++) {
        const trd__output *o = &program->outputs[i];
        outputs[o->slot][o->entry] = copied(&c, o->value);
    }
    if (map && c.map)
        for (int i = 0; i < program->builder->graph.node_count; i++) map[i] = c.map[i];
    trd__free(c.map);
}
