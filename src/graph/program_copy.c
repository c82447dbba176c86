/* A program of one's own: a backend rewrites what it compiles, the caller's program stays as it is.
 * Invariant: the copy has the same nodes in the same order with the same annotations, so passes see no
 * difference. */
#include "base/alloc.h"
#include "graph/program.h"

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

static const trd_node *copy_node(trd__program *to, const trd_node *n, const trd_node *const *map)
{
    trd_value inputs[TRD__MAX_INPUTS] = {{NULL, 0}};
    for (int j = 0; j < n->input_count; j++)
        if (n->inputs[j].node) inputs[j] = (trd_value){map[n->inputs[j].node->id], n->inputs[j].result};
    const trd_node *copy = NULL;
    if (n->op == &trd__op_input) {
        const trd__input_attr *attr = n->attr;
        copy = trd__program_input(to, attr->slot, attr->entry).node;
    } else {
        copy = trd__node_add(to->builder, n->op, n->attr, inputs, n->input_count);
    }
    annotate(to->builder, n, copy);
    return copy;
}

static trd_status copy_into(const trd__program *from, trd__program *to)
{
    trd_builder *b = to->builder;
    const trd_graph *graph = &from->builder->graph;
    const trd_node **map = trd__alloc((size_t)graph->node_count + 1, sizeof(trd_node *));
    if (!map) return TRD_NO_MEMORY;
    to->replicas = from->replicas;
    for (int s = 0; s < from->slot_count; s++)
        trd__program_slot(to, from->slots[s].name, from->slots[s].access, from->slots[s].entries,
                          from->slots[s].entry_count);
    for (int i = 0; i < graph->node_count && b->status == TRD_OK; i++)
        map[i] = copy_node(to, graph->nodes[i], map);
    for (int i = 0; i < from->output_count && b->status == TRD_OK; i++) {
        const trd__output *o = &from->outputs[i];
        trd__program_output(to, o->slot, o->entry, (trd_value){map[o->value.node->id], o->value.result});
    }
    trd__free(map);
    return trd_builder_status(b);
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
