/* Model FLOPs of a program: the sum over its nodes. Copies made by remat do not count, because a model's
 * FLOPs are a property of the model, not of what is computed twice to save memory. */
#include "base/shape.h"
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

static double copy_flops(const trd_node *n)
{
    double elements = 0;
    if (n->op->flops) return n->op->flops(n);
    for (int r = 0; r < n->result_count && n->op->cost != TRD__COST_FREE; r++)
        elements += (double)trd__shape_count(&n->results[r].shape);
    return elements;
}

double trd__recomputed_flops(const trd__program *program)
{
    double total = 0;
    const trd_graph *graph = &program->builder->graph;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        if (n->recomputed) total += copy_flops(n);
        if (n->op->recomputed_flops) total += n->op->recomputed_flops(n);
    }
    return total;
}
