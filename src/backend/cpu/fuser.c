/* The order of steps and the fusion of elementwise nodes. */
#include "backend/cpu/lower.h"

static bool needs_step(const trd__lowering *l, const trd_node *n)
{
    const trd__storage *first = &l->values[l->first_value[n->id]];
    if (first->leaf || first->root != l->first_value[n->id] || first->placed) return false;
    for (int r = 0; r < n->result_count; r++)
        if (first[r].uses > 0) return true;
    return false;
}

trd_status trd__fuse(trd__lowering *l)
{
    for (int i = 0; i < l->graph->node_count; i++)
        if (needs_step(l, l->graph->nodes[i])) TRD_TRY(trd__draft_node(l, l->graph->nodes[i]));
    return TRD_OK;
}
