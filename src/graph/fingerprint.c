/* A number for what a program computes and is bound to: ops by name, attributes, operands, types, logical
 * axes, slots and outputs. No pointer and no node name goes in, so it is the same in every process. */
#include <string.h>

#include "base/checksum.h"
#include "graph/passes.h"

static uint64_t add_text(uint64_t hash, const char *text)
{
    return text ? trd__checksum_more(hash, text, strlen(text) + 1) : trd__checksum_more(hash, "\1", 2);
}

static uint64_t add_int(uint64_t hash, int64_t value)
{
    return trd__checksum_more(hash, &value, sizeof value);
}

static uint64_t add_type(uint64_t hash, trd_dtype dtype, const trd_shape *shape, const char *const *axes)
{
    hash = add_int(hash, (int64_t)dtype);
    hash = add_int(hash, shape->rank);
    for (int i = 0; i < shape->rank; i++) {
        hash = add_int(hash, shape->dim[i]);
        hash = add_text(hash, axes[i]);
    }
    return hash;
}

static uint64_t add_value(uint64_t hash, trd_value v)
{
    hash = add_int(hash, v.node ? v.node->id : -1);
    return add_int(hash, v.result);
}

static uint64_t add_node(uint64_t hash, const trd_node *n)
{
    hash = add_text(hash, n->op->name);
    if (n->attr) hash = trd__checksum_more(hash, n->attr, n->op->attr_size);
    hash = add_int(hash, n->input_count);
    for (int i = 0; i < n->input_count; i++) hash = add_value(hash, n->inputs[i]);
    for (int r = 0; r < n->result_count; r++)
        hash = add_type(hash, n->results[r].dtype, &n->results[r].shape, n->results[r].axes);
    for (int i = 0; i < n->body_count; i++) {
        uint64_t body = trd__program_fingerprint(n->bodies[i]);
        hash = trd__checksum_more(hash, &body, sizeof body);
    }
    return hash;
}

static uint64_t add_slot(uint64_t hash, const trd__slot *slot)
{
    hash = add_text(hash, slot->name);
    hash = add_int(hash, (int64_t)slot->access);
    hash = add_int(hash, slot->entry_count);
    for (int e = 0; e < slot->entry_count; e++) {
        const trd__entry *entry = &slot->entries[e];
        hash = add_text(hash, entry->name);
        hash = add_type(hash, entry->dtype, &entry->shape, entry->axes);
        hash = add_int(hash, entry->over_data);
        hash = add_int(hash, (int64_t)entry->replica);
    }
    return hash;
}

uint64_t trd__program_fingerprint(const trd__program *program)
{
    const trd_graph *graph = &program->builder->graph;
    uint64_t hash = add_int(0, program->replicas > 1 ? program->replicas : 1);
    hash = add_int(hash, (int64_t)program->precision);
    for (int i = 0; i < program->slot_count; i++) hash = add_slot(hash, &program->slots[i]);
    for (int i = 0; i < graph->node_count; i++) hash = add_node(hash, graph->nodes[i]);
    for (int i = 0; i < program->output_count; i++) {
        const trd__output *output = &program->outputs[i];
        hash = add_value(hash, output->value);
        hash = add_int(hash, output->slot);
        hash = add_int(hash, output->entry);
    }
    return hash;
}
