/* Replaces ops a backend has no kernel for by their definitions in plainer ops, until only ops it keeps (or
 * ops without a definition) are left, in bodies too. What an expansion adds inherits the node's name,
 * or without one the op's, and its part. */
#include "base/shape.h"
#include "graph/passes.h"
#include "graph/rewrite.h"

enum { MAX_ROUNDS = 8 };

static trd_status check_result(const trd_node *n, int r, trd_value result)
{
    if (!trd_is_null(result)) {
        const trd__type *want = &n->results[r], *have = trd__type_of(result);
        if (want->dtype == have->dtype && trd__shape_equal(&want->shape, &have->shape)) return TRD_OK;
    }
    return trd__fail(TRD_INTERNAL, "expanding %s: result %d has another type than the op's own", n->op->name,
                     r);
}

static trd_status expand_node(trd__rewrite *rewrite, const trd_node *n)
{
    trd_builder *b = rewrite->builder;
    trd_graph *graph = &b->graph;
    trd_value results[TRD__MAX_RESULTS] = {{NULL, 0}};
    int begin = graph->node_count;
    n->op->expand(b, n, results);
    TRD_TRY(trd_builder_status(b));
    for (int i = begin; i < graph->node_count; i++) {
        trd_node *added = graph->nodes[i];
        added->forward = n->forward;
        added->recomputed |= n->recomputed;
        if (!added->name) added->name = n->name ? n->name : n->op->name;
    }
    for (int r = 0; r < n->result_count; r++) {
        TRD_TRY(check_result(n, r, results[r]));
        TRD_TRY(trd__rewrite_replace(rewrite, (trd_value){n, r}, results[r]));
    }
    if (n->layer_boundary) trd_layer_boundary(b, results[0]);
    return TRD_OK;
}

static trd_status expand_round(trd__program *program, bool (*keep)(const trd_node *n, void *user), void *user,
                               bool *changed)
{
    trd_graph *graph = &program->builder->graph;
    trd__rewrite rewrite;
    trd_status status = trd__rewrite_begin(program->builder, &rewrite);
    *changed = false;
    for (int i = 0; status == TRD_OK && i < rewrite.count; i++) {
        const trd_node *n = graph->nodes[i];
        if (!n->op->expand || keep(n, user)) continue;
        status = expand_node(&rewrite, n);
        *changed = true;
    }
    if (status == TRD_OK && *changed) status = trd__rewrite_apply(&rewrite, program);
    trd__rewrite_end(&rewrite);
    return status;
}

trd_status trd__expand(trd__program *program, bool (*keep)(const trd_node *n, void *user), void *user)
{
    TRD_TRY(trd_builder_status(program->builder));
    bool changed = true;
    for (int round = 0; changed; round++) {
        if (round == MAX_ROUNDS)
            return trd__fail(TRD_INTERNAL, "expanding program %s: an op's definition leads back to itself",
                             program->name);
        TRD_TRY(expand_round(program, keep, user, &changed));
    }
    const trd_graph *graph = &program->builder->graph;
    for (int i = 0; i < graph->node_count; i++)
        for (int body = 0; body < graph->nodes[i]->body_count; body++)
            TRD_TRY(trd__expand(graph->nodes[i]->bodies[body], keep, user));
    return TRD_OK;
}
