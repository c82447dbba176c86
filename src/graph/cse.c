/* Common subexpressions: nodes with the same op, attributes and operands become one, the earliest. Operands
 * of commutative ops are compared in either order. Copies made by remat stay apart from their originals, or
 * the pass would undo it. */
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "graph/passes.h"
#include "graph/rewrite.h"

typedef struct table {
    trd_node **slots; /* open addressing, linear probing */
    size_t mask;
} table;

static uint64_t value_key(trd_value v)
{
    return v.node ? (uint64_t)v.node->id * TRD__MAX_RESULTS + (uint64_t)v.result + 1 : 0;
}

static bool swappable(const trd_node *n)
{
    return n->input_count == 2 && n->op->flags & TRD__OP_COMMUTATIVE;
}

static uint64_t hash_node(const trd_node *n)
{
    uint64_t hash = trd__checksum(&n->op, sizeof n->op);
    hash = trd__checksum_more(hash, n->attr, n->attr ? n->op->attr_size : 0);
    if (swappable(n)) {
        uint64_t sum = value_key(n->inputs[0]) + value_key(n->inputs[1]);
        return trd__checksum_more(hash, &sum, sizeof sum);
    }
    for (int i = 0; i < n->input_count; i++) {
        uint64_t key = value_key(n->inputs[i]);
        hash = trd__checksum_more(hash, &key, sizeof key);
    }
    return hash;
}

static bool equal_inputs(const trd_node *a, const trd_node *b)
{
    if (a->input_count != b->input_count) return false;
    bool equal = true;
    for (int i = 0; i < a->input_count && equal; i++) equal = trd_same(a->inputs[i], b->inputs[i]);
    return equal ||
           (swappable(a) && trd_same(a->inputs[0], b->inputs[1]) && trd_same(a->inputs[1], b->inputs[0]));
}

static bool equal_nodes(const trd_node *a, const trd_node *b)
{
    return a->op == b->op && a->recomputed == b->recomputed && equal_inputs(a, b) &&
           (!a->attr || memcmp(a->attr, b->attr, a->op->attr_size) == 0);
}

/* The earlier equal of n, or n itself, which the table then holds. */
static trd_node *find_or_insert(table *t, trd_node *n)
{
    size_t i = (size_t)hash_node(n) & t->mask;
    for (; t->slots[i]; i = (i + 1) & t->mask)
        if (equal_nodes(t->slots[i], n)) return t->slots[i];
    return t->slots[i] = n;
}

static trd_status share(trd__rewrite *rewrite, table *t)
{
    trd_graph *graph = &rewrite->builder->graph;
    for (int i = 0; i < graph->node_count; i++) {
        trd_node *n = graph->nodes[i];
        for (int j = 0; j < n->input_count; j++) n->inputs[j] = trd__rewrite_resolve(rewrite, n->inputs[j]);
        if (n->op->flags & TRD__OP_NO_CSE || n->body_count) continue;
        trd_node *first = find_or_insert(t, n);
        if (first == n) continue;
        first->layer_boundary |= n->layer_boundary;
        for (int r = 0; r < n->result_count; r++)
            TRD_TRY(trd__rewrite_replace(rewrite, (trd_value){n, r}, (trd_value){first, r}));
    }
    return TRD_OK;
}

trd_status trd__cse(trd__program *program)
{
    TRD_TRY(trd_builder_status(program->builder));
    TRD_TRY(trd__each_body(program, trd__cse));
    size_t capacity = 64;
    while (capacity < 2 * (size_t)program->builder->graph.node_count) capacity *= 2;
    table t = {.slots = trd__calloc(capacity, sizeof(trd_node *)), .mask = capacity - 1};
    if (!t.slots) return TRD_NO_MEMORY;
    trd__rewrite rewrite;
    trd_status status = trd__rewrite_begin(program->builder, &rewrite);
    if (status == TRD_OK) status = share(&rewrite, &t);
    if (status == TRD_OK) status = trd__rewrite_apply(&rewrite, program);
    trd__rewrite_end(&rewrite);
    trd__free(t.slots);
    return status;
}
