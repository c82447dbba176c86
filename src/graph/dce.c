/* Dead code elimination: one sweep backwards over the topological order marks what the outputs depend on, one
 * forwards drops the rest. Leaves that go are forgotten, so asking for the input again adds a fresh one. */
#include "base/alloc.h"
#include "graph/passes.h"

static void mark(const trd__program *program, bool *live)
{
    const trd_graph *graph = &program->builder->graph;
    for (int i = 0; i < program->output_count; i++) live[program->outputs[i].value.node->id] = true;
    for (int i = graph->node_count - 1; i >= 0; i--) {
        const trd_node *n = graph->nodes[i];
        for (int j = 0; live[i] && j < n->input_count; j++)
            if (n->inputs[j].node) live[n->inputs[j].node->id] = true;
    }
}

trd_status trd__dce(trd__program *program)
{
    TRD_TRY(trd_builder_status(program->builder));
    trd_graph *graph = &program->builder->graph;
    bool *live = trd__calloc((size_t)graph->node_count + 1, sizeof *live);
    if (!live) return TRD_NO_MEMORY;
    mark(program, live);
    for (int s = 0; s < program->slot_count; s++)
        for (int e = 0; e < program->slots[s].entry_count; e++) {
            trd_value *leaf = &program->slots[s].leaves[e];
            if (!trd_is_null(*leaf) && !live[leaf->node->id]) *leaf = (trd_value){NULL, 0};
        }
    int kept = 0;
    for (int i = 0; i < graph->node_count; i++) {
        if (!live[i]) continue;
        graph->nodes[kept] = graph->nodes[i];
        graph->nodes[kept]->id = kept;
        kept++;
    }
    graph->node_count = kept;
    trd__free(live);
    return trd__each_body(program, trd__dce);
}
