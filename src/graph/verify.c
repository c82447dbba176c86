/* Checks what every pass must leave true: topological order, types that the shape rules still give, and
 * outputs that fit the entries they write. */
#include <string.h>

#include "base/shape.h"
#include "graph/passes.h"

static bool same_type(const trd__type *a, const trd__type *b)
{
    return a->dtype == b->dtype && trd__shape_equal(&a->shape, &b->shape);
}

static trd_status verify_value(const trd_graph *graph, trd_value v, int before, const char *user)
{
    int id = v.node->id;
    if (id < 0 || id >= graph->node_count || graph->nodes[id] != v.node)
        return trd__fail(TRD_INTERNAL, "verifying the graph: %s uses %s, which is not in the graph", user,
                         v.node->op->name);
    if (id >= before)
        return trd__fail(TRD_INTERNAL, "verifying the graph: %s uses node %d (%s), which comes after it",
                         user, id, v.node->op->name);
    if (v.result < 0 || v.result >= v.node->result_count)
        return trd__fail(TRD_INTERNAL, "verifying the graph: %s uses result %d of %s, which has %d", user,
                         v.result, v.node->op->name, v.node->result_count);
    return TRD_OK;
}

static trd_status verify_node(const trd_graph *graph, const trd_node *n)
{
    for (int i = 0; i < n->input_count; i++)
        if (n->inputs[i].node) TRD_TRY(verify_value(graph, n->inputs[i], n->id, n->op->name));
    trd__type types[TRD__MAX_RESULTS];
    memset(types, 0, sizeof types);
    TRD_TRY(n->op->infer(n, types));
    for (int r = 0; r < n->result_count; r++) {
        if (same_type(&types[r], &n->results[r])) continue;
        char expected[TRD__SHAPE_TEXT], found[TRD__SHAPE_TEXT];
        return trd__fail(
            TRD_INTERNAL, "verifying the graph: node %d (%s): result %d expected %s %s, found %s %s", n->id,
            n->op->name, r, trd__shape_text(&types[r].shape, expected), trd_dtype_name(types[r].dtype),
            trd__shape_text(&n->results[r].shape, found), trd_dtype_name(n->results[r].dtype));
    }
    return TRD_OK;
}

static trd_status verify_output(const trd__program *program, const trd__output *output)
{
    const trd_graph *graph = &program->builder->graph;
    const trd__slot *slot = &program->slots[output->slot];
    const trd__entry *entry = &slot->entries[output->entry];
    TRD_TRY(verify_value(graph, output->value, graph->node_count, entry->name));
    const trd__type *type = trd__type_of(output->value);
    trd_shape shape = trd__program_shape(program, entry);
    if (type->dtype != entry->dtype || !trd__shape_equal(&type->shape, &shape))
        return trd__fail(TRD_INTERNAL, "verifying program %s: output \"%s\" does not fit its entry",
                         program->name, entry->name);
    return TRD_OK;
}

static trd_status verify_body(trd__program *body)
{
    return trd__verify(body);
}

trd_status trd__verify(const trd__program *program)
{
    TRD_TRY(trd_builder_status(program->builder));
    const trd_graph *graph = &program->builder->graph;
    for (int i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i]->id != i)
            return trd__fail(TRD_INTERNAL, "verifying the graph: node %d carries the number %d", i,
                             graph->nodes[i]->id);
        TRD_TRY(verify_node(graph, graph->nodes[i]));
    }
    TRD_TRY(trd__each_body(program, verify_body));
    for (int i = 0; i < program->output_count; i++) TRD_TRY(verify_output(program, &program->outputs[i]));
    return TRD_OK;
}
