/* Moves late work forward: what was added after the first `kept` nodes comes as early as its operands allow,
 * so that a value made for it alone (a gradient) dies where it is made. Only an elementwise node of outputs,
 * which live to the end anyway, comes as late as its users allow: a widened gradient does not wait in memory
 * for the norm. Invariant: the new content of an entry that is updated in place comes behind the earlier
 * readers of the old content, so no copy of it is needed; the first `kept` nodes keep their order, and so do
 * nodes that want the same place. */
#include <limits.h>

#include "base/alloc.h"
#include "graph/passes.h"

typedef struct hoisting {
    int *place;  /* by node: the kept node behind which it comes */
    int *last;   /* by node: the latest place of those that read it so far */
    int *old;    /* by node: the leaf whose entry it replaces, -1: none */
    int *first;  /* by node: the earliest place of those late ones that read it, INT_MAX: none does */
    int *output; /* by node: whether it is one */
    int *start;  /* by place, of the sorted list */
    trd_node **sorted;
} hoisting;

static trd_status reserve(hoisting *h, size_t nodes)
{
    h->place = trd__calloc(6 * nodes + 6, sizeof *h->place);
    h->sorted = trd__alloc(nodes + 1, sizeof(trd_node *));
    if (!h->place || !h->sorted) return TRD_NO_MEMORY;
    h->last = h->place + nodes + 1;
    h->old = h->last + nodes + 1;
    h->first = h->old + nodes + 1;
    h->output = h->first + nodes + 1;
    h->start = h->output + nodes + 1;
    return TRD_OK;
}

static void find_replaced(const trd__program *program, hoisting *h)
{
    for (int i = 0; i < program->builder->graph.node_count; i++) {
        h->old[i] = -1;
        h->first[i] = INT_MAX;
    }
    for (int i = 0; i < program->output_count; i++) {
        const trd__output *o = &program->outputs[i];
        h->output[o->value.node->id] = 1;
        trd_value old = program->slots[o->slot].leaves[o->entry];
        if (!trd_is_null(old)) h->old[o->value.node->id] = old.node->id;
    }
}

static int later(int a, int b)
{
    return a > b ? a : b;
}

static void find_places(const trd_graph *graph, int kept, hoisting *h)
{
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        int place = i < kept ? i : 0;
        for (int j = 0; j < n->input_count; j++)
            if (i >= kept && n->inputs[j].node) place = later(place, h->place[n->inputs[j].node->id]);
        if (i >= kept && h->old[i] >= 0) place = later(place, h->last[h->old[i]]);
        h->place[i] = place;
        for (int j = 0; j < n->input_count; j++) {
            if (!n->inputs[j].node) continue;
            int *last = &h->last[n->inputs[j].node->id];
            *last = later(*last, place);
        }
    }
}

static bool may_wait(const hoisting *h, const trd_node *n)
{
    if (!(n->op->flags & TRD__OP_ELEMENTWISE) || h->output[n->id] || h->first[n->id] == INT_MAX) return false;
    for (int j = 0; j < n->input_count; j++)
        if (!n->inputs[j].node || n->inputs[j].node->op->flags & TRD__OP_LEAF ||
            !h->output[n->inputs[j].node->id])
            return false;
    return true;
}

/* From the back, so that a node's users have their places. */
static void put_off(const trd_graph *graph, int kept, hoisting *h)
{
    for (int i = graph->node_count - 1; i >= kept; i--) {
        const trd_node *n = graph->nodes[i];
        if (may_wait(h, n)) h->place[i] = h->first[i];
        for (int j = 0; j < n->input_count; j++) {
            if (!n->inputs[j].node) continue;
            int *first = &h->first[n->inputs[j].node->id];
            if (h->place[i] < *first) *first = h->place[i];
        }
    }
}

/* Nodes by place, otherwise in the order they had: a counting sort. */
static void reorder(trd_graph *graph, hoisting *h)
{
    int count = graph->node_count;
    for (int i = 0; i < count; i++) h->start[h->place[i] + 1]++;
    for (int i = 0; i < count; i++) h->start[i + 1] += h->start[i];
    for (int i = 0; i < count; i++) h->sorted[h->start[h->place[i]]++] = graph->nodes[i];
    for (int i = 0; i < count; i++) {
        graph->nodes[i] = h->sorted[i];
        graph->nodes[i]->id = i;
    }
}

trd_status trd__hoist(trd__program *program, int kept)
{
    TRD_TRY(trd_builder_status(program->builder));
    trd_graph *graph = &program->builder->graph;
    hoisting h = {0};
    trd_status status = reserve(&h, (size_t)graph->node_count);
    if (status == TRD_OK) {
        find_replaced(program, &h);
        find_places(graph, kept, &h);
        put_off(graph, kept, &h);
        reorder(graph, &h);
    }
    trd__free(h.sorted);
    trd__free(h.place);
    return status;
}
