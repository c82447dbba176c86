/* Moves accumulators into the ops that form contributions: accumulate(acc, x) with x a result of n and used
 * nowhere else becomes n with acc as an operand, so no contribution is ever a tensor of its own. The chain of
 * an accumulator keeps its order. */
#include "base/alloc.h"
#include "graph/passes.h"
#include "graph/rewrite.h"

/* Uses of each value by nodes and outputs. */
typedef struct usage {
    int *first; /* by node: number of its result 0 among all values */
    int *uses;  /* by value number */
} usage;

static int *uses_of(const usage *u, trd_value v)
{
    return &u->uses[u->first[v.node->id] + v.result];
}

static trd_status count_uses(const trd__program *program, usage *u)
{
    const trd_graph *graph = &program->builder->graph;
    int values = 0;
    u->first = trd__alloc((size_t)graph->node_count + 1, sizeof *u->first);
    if (!u->first) return TRD_NO_MEMORY;
    for (int i = 0; i < graph->node_count; i++) {
        u->first[i] = values;
        values += graph->nodes[i]->result_count;
    }
    u->uses = trd__calloc((size_t)values + 1, sizeof *u->uses);
    if (!u->uses) return TRD_NO_MEMORY;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        for (int j = 0; j < n->input_count; j++)
            if (n->inputs[j].node) ++*uses_of(u, n->inputs[j]);
    }
    for (int i = 0; i < program->output_count; i++) ++*uses_of(u, program->outputs[i].value);
    return TRD_OK;
}

static trd_status fuse(trd__rewrite *rewrite, const usage *u, const trd_node *accumulate)
{
    trd_builder *b = rewrite->builder;
    const trd_node *contributor = accumulate->inputs[1].node; /* which may stand for another one by now */
    trd_value x = trd__rewrite_resolve(rewrite, accumulate->inputs[1]);
    trd_value accumulator = trd__rewrite_resolve(rewrite, accumulate->inputs[0]);
    const trd_node *n = x.node;
    if (!n->op->accumulates_into || *uses_of(u, accumulate->inputs[1]) != 1) return TRD_OK;
    bool cyclic = false;
    if (n->result_count > 1) TRD_TRY(trd__rewrite_depends(rewrite, accumulator, n, &cyclic));
    if (cyclic) return TRD_OK;

    trd_value results[TRD__MAX_RESULTS] = {{NULL, 0}};
    int begin = b->graph.node_count;
    bool done = n->op->accumulates_into(b, n, x.result, accumulator, results);
    TRD_TRY(trd_builder_status(b));
    if (!done) return TRD_OK;
    for (int i = begin; i < b->graph.node_count; i++) {
        b->graph.nodes[i]->recomputed = n->recomputed;
        b->graph.nodes[i]->name = n->name;
    }
    for (int r = 0; r < contributor->result_count; r++) {
        trd_value now = trd__rewrite_resolve(rewrite, (trd_value){contributor, r});
        TRD_TRY(trd__rewrite_replace(rewrite, (trd_value){contributor, r}, results[now.result]));
    }
    return trd__rewrite_replace(rewrite, (trd_value){accumulate, 0}, accumulate->inputs[1]);
}

trd_status trd__fuse_accumulate(trd__program *program)
{
    TRD_TRY(trd_builder_status(program->builder));
    TRD_TRY(trd__dce(program)); /* a dead use would hide a contribution's only one */
    const trd_graph *graph = &program->builder->graph;
    usage u = {NULL, NULL};
    trd__rewrite rewrite;
    trd_status status = trd__rewrite_begin(program->builder, &rewrite);
    if (status == TRD_OK) status = count_uses(program, &u);
    for (int i = 0; status == TRD_OK && i < rewrite.count; i++)
        if (graph->nodes[i]->op->flags & TRD__OP_ADDS_INTO) status = fuse(&rewrite, &u, graph->nodes[i]);
    if (status == TRD_OK) status = trd__rewrite_apply(&rewrite, program);
    trd__rewrite_end(&rewrite);
    trd__free(u.uses);
    trd__free(u.first);
    if (status == TRD_OK) status = trd__dce(program); /* a node that took in several was made for each */
    return status == TRD_OK ? trd__each_body(program, trd__fuse_accumulate) : status;
}
