/* Replacement maps and the stable topological rebuild; see the header. Invariant: while a rewrite is open,
 * nodes[i]->id == i for old and new nodes alike, so per-node state is a plain array. */
#include "graph/rewrite.h"

#include "base/alloc.h"

trd_status trd__rewrite_begin(trd_builder *b, trd__rewrite *rewrite)
{
    *rewrite = (trd__rewrite){.builder = b, .count = b->graph.node_count};
    rewrite->map = trd__calloc((size_t)rewrite->count + 1, sizeof *rewrite->map);
    return rewrite->map ? TRD_OK : TRD_NO_MEMORY;
}

void trd__rewrite_end(trd__rewrite *rewrite)
{
    trd__free(rewrite->map);
    rewrite->map = NULL;
}

trd_status trd__rewrite_replace(trd__rewrite *rewrite, trd_value from, trd_value to)
{
    if (trd_same(from, to)) return TRD_OK;
    trd_value **slot = &rewrite->map[from.node->id];
    if (!*slot) {
        *slot =
            trd__arena_alloc(rewrite->builder->graph.arena, (size_t)from.node->result_count, sizeof **slot);
        if (!*slot) return TRD_NO_MEMORY;
    }
    (*slot)[from.result] = to;
    return TRD_OK;
}

trd_value trd__rewrite_resolve(const trd__rewrite *rewrite, trd_value v)
{
    while (!trd_is_null(v) && v.node->id < rewrite->count && rewrite->map[v.node->id]) {
        trd_value to = rewrite->map[v.node->id][v.result];
        if (trd_is_null(to)) break;
        v = to;
    }
    return v;
}

static bool search(const trd__rewrite *rewrite, trd_value v, const trd_node *target, unsigned char *seen,
                   const trd_node **stack)
{
    int depth = 0;
    stack[depth++] = trd__rewrite_resolve(rewrite, v).node;
    while (depth > 0) {
        const trd_node *n = stack[--depth];
        if (n == target) return true;
        for (int i = 0; i < n->input_count; i++) {
            const trd_node *input = trd__rewrite_resolve(rewrite, n->inputs[i]).node;
            if (!input || seen[input->id]) continue;
            seen[input->id] = 1;
            stack[depth++] = input;
        }
    }
    return false;
}

trd_status trd__rewrite_depends(const trd__rewrite *rewrite, trd_value v, const trd_node *target,
                                bool *depends)
{
    *depends = v.node == target;
    if (v.node->input_count == 0) return TRD_OK;
    size_t count = (size_t)rewrite->builder->graph.node_count + 1;
    unsigned char *seen = trd__calloc(count, 1);
    const trd_node **stack = trd__alloc(count, sizeof(trd_node *));
    trd_status status = seen && stack ? TRD_OK : TRD_NO_MEMORY;
    if (status == TRD_OK) *depends = search(rewrite, v, target, seen, stack);
    trd__free(stack);
    trd__free(seen);
    return status;
}

/* State of the rebuild. A frame of the explicit stack is a node and the next of its inputs to visit. */
typedef struct sorter {
    trd_graph *graph;
    trd_node **order;
    int emitted;
    unsigned char *state; /* by id: 0 new, 1 on the stack, 2 emitted */
    int *stack, *next;
} sorter;

static trd_status emit(sorter *s, int root)
{
    if (s->state[root]) return TRD_OK;
    int depth = 0;
    s->stack[0] = root;
    s->next[root] = 0;
    s->state[root] = 1;
    while (depth >= 0) {
        trd_node *n = s->graph->nodes[s->stack[depth]];
        if (s->next[n->id] == n->input_count) {
            s->state[n->id] = 2;
            s->order[s->emitted++] = n;
            depth--;
            continue;
        }
        const trd_node *input = n->inputs[s->next[n->id]++].node;
        if (!input || s->state[input->id] == 2) continue;
        if (s->state[input->id] == 1)
            return trd__fail(TRD_INTERNAL, "rewriting the graph: %s depends on its own result through %s",
                             input->op->name, n->op->name);
        s->state[input->id] = 1;
        s->next[input->id] = 0;
        s->stack[++depth] = input->id;
    }
    return TRD_OK;
}

static bool fully_replaced(const trd__rewrite *rewrite, const trd_node *n)
{
    if (n->id >= rewrite->count || !rewrite->map[n->id]) return false;
    for (int r = 0; r < n->result_count; r++)
        if (trd_is_null(rewrite->map[n->id][r])) return false;
    return true;
}

/* Emits n, or what stands for it. */
static trd_status emit_in_place(const trd__rewrite *rewrite, sorter *s, const trd_node *n)
{
    if (n->id < rewrite->count && rewrite->map[n->id]) {
        for (int r = 0; r < n->result_count; r++) {
            trd_value to = trd__rewrite_resolve(rewrite, (trd_value){n, r});
            if (to.node != n) TRD_TRY(emit(s, to.node->id));
        }
    }
    return fully_replaced(rewrite, n) ? TRD_OK : emit(s, n->id);
}

static trd_status rebuild(const trd__rewrite *rewrite)
{
    trd_graph *graph = &rewrite->builder->graph;
    size_t count = (size_t)graph->node_count + 1;
    sorter s = {.graph = graph,
                .order = trd__alloc(count, sizeof *s.order),
                .state = trd__calloc(count, sizeof *s.state),
                .stack = trd__alloc(count, sizeof *s.stack),
                .next = trd__alloc(count, sizeof *s.next)};
    trd_status status = s.order && s.state && s.stack && s.next ? TRD_OK : TRD_NO_MEMORY;
    for (int i = 0; status == TRD_OK && i < graph->node_count; i++)
        status = emit_in_place(rewrite, &s, graph->nodes[i]);
    if (status == TRD_OK) {
        for (int i = 0; i < s.emitted; i++) s.order[i]->id = i;
        trd__free(graph->nodes);
        graph->nodes = s.order;
        graph->node_count = s.emitted;
        graph->node_capacity = (int)count;
        s.order = NULL;
    }
    trd__free(s.next);
    trd__free(s.stack);
    trd__free(s.state);
    trd__free(s.order);
    return status;
}

static void resolve_program(const trd__rewrite *rewrite, trd__program *program)
{
    for (int i = 0; i < program->output_count; i++)
        program->outputs[i].value = trd__rewrite_resolve(rewrite, program->outputs[i].value);
    for (int i = 0; i < program->slot_count; i++)
        for (int e = 0; e < program->slots[i].entry_count; e++)
            program->slots[i].leaves[e] = trd__rewrite_resolve(rewrite, program->slots[i].leaves[e]);
}

trd_status trd__rewrite_apply(trd__rewrite *rewrite, trd__program *program)
{
    trd_graph *graph = &rewrite->builder->graph;
    for (int i = 0; i < graph->node_count; i++) {
        trd_node *n = graph->nodes[i];
        for (int j = 0; j < n->input_count; j++) n->inputs[j] = trd__rewrite_resolve(rewrite, n->inputs[j]);
    }
    if (program) resolve_program(rewrite, program);
    trd_status status = rebuild(rewrite);
    trd__rewrite_end(rewrite);
    return status;
}
