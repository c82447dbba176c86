/* Model FLOPs of a program: the sum over its nodes. Copies made by remat do not count, because a model's
 * FLOPs are a property of the model, not of what is computed twice to save memory. */
#include "graph/passes.h"

double trd__program_flops(const trd__program *program)
{
    double total = 0;
    const trd_graph *graph = &program->builder->graph;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        if (n->op->flops && !n->recomputed) total += n->op->flops(n);
    }
    return total;
}
