/* Adding nodes: operands checked, the shape rule run, the first failure kept with everything needed to find
 * it. Invariant: a failed builder gains no node, so later calls cannot hide or repeat the first message. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/shape.h"
#include "graph/program.h"

enum { OPERANDS_TEXT = 1024, MESSAGE_TEXT = 2048, FIRST_NODES = 64, FIRST_BODIES = 4 };

void trd__builder_stick(trd_builder *b, trd_status status)
{
    if (b->status != TRD_OK) return;
    b->status = status;
    b->message = trd__strdup(trd_error_message()); /* NULL: the status alone will have to say it */
}

/* Writes "x \"name\" (2, 3) float32, ..." for the inputs of n, as many as fit. */
static void describe_operands(const trd_node *n, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n->input_count && used < bytes; i++) {
        trd_value v = n->inputs[i];
        const char *comma = i ? ", " : "";
        int wrote;
        if (trd_is_null(v)) {
            wrote = snprintf(text + used, bytes - used, "%snull", comma);
        } else {
            char shape[TRD__SHAPE_TEXT];
            const trd__type *type = trd__type_of(v);
            const char *name = v.node->name ? v.node->name : v.node->op->name;
            wrote = snprintf(text + used, bytes - used, "%s%s %s %s", comma, name,
                             trd__shape_text(&type->shape, shape), trd_dtype_name(type->dtype));
        }
        if (wrote < 0) return;
        used += (size_t)wrote;
    }
}

/* Completes the message of a shape rule with the op and its operands, and makes it stick. */
static const trd_node *refuse(trd_builder *b, const trd_node *n, trd_status status)
{
    char message[MESSAGE_TEXT], operands[OPERANDS_TEXT];
    snprintf(message, sizeof message, "%s", trd_error_message());
    describe_operands(n, operands, sizeof operands);
    size_t length = strlen(n->op->name);
    bool named = strncmp(message, n->op->name, length) == 0 && message[length] == ':';
    trd__fail(status, "%s%s%s [operands: %s]", named ? "" : n->op->name, named ? "" : ": ", message,
              operands);
    trd__builder_stick(b, status);
    return NULL;
}

static trd_status check_operands(const trd_builder *b, const trd_node *n)
{
    const trd_op *op = n->op;
    if (n->input_count < op->min_inputs || n->input_count > op->max_inputs)
        return trd__fail(TRD_INVALID_ARGUMENT, "%s: expected %d to %d operands, found %d", op->name,
                         op->min_inputs, op->max_inputs, n->input_count);
    for (int i = 0; i < n->input_count; i++) {
        bool optional = i < 32 && (op->optional_inputs >> i & 1u);
        if (trd_is_null(n->inputs[i]) && !optional)
            return trd__fail(TRD_INVALID_ARGUMENT, "%s: operand %d expected a value, found null", op->name,
                             i);
        if (!trd_is_null(n->inputs[i]) && !trd__owns(b, n->inputs[i]))
            return trd__fail(
                TRD_INVALID_ARGUMENT,
                "%s: operand %d expected a value of the graph that is being built, found one of "
                "another graph; a body takes values of the graph around it as carries, shared or "
                "stacked operands",
                op->name, i);
    }
    return TRD_OK;
}

static bool reserve(trd_graph *graph)
{
    if (graph->node_count < graph->node_capacity) return true;
    int capacity = graph->node_capacity ? 2 * graph->node_capacity : FIRST_NODES;
    trd_node **nodes = trd__realloc(graph->nodes, (size_t)capacity, sizeof(trd_node *));
    if (!nodes) return false;
    graph->nodes = nodes;
    graph->node_capacity = capacity;
    return true;
}

static trd_node *make_node(trd_graph *graph, const trd_op *op, const void *attr, const trd_value *inputs,
                           int input_count)
{
    int result_count = op->results == TRD__RESULTS_VARY ? op->result_count(attr) : op->results;
    trd_node *n = trd__arena_alloc(graph->arena, 1, sizeof *n);
    trd_value *copies = trd__arena_alloc(graph->arena, (size_t)input_count + 1, sizeof *copies);
    trd__type *results = trd__arena_alloc(graph->arena, (size_t)result_count + 1, sizeof *results);
    void *attributes = op->attr_size ? trd__arena_alloc(graph->arena, 1, op->attr_size) : NULL;
    if (!n || !copies || !results || (op->attr_size && !attributes) || !reserve(graph)) return NULL;
    if (input_count) memcpy(copies, inputs, (size_t)input_count * sizeof *copies);
    if (op->attr_size) memcpy(attributes, attr, op->attr_size);
    *n = (trd_node){.op = op,
                    .attr = attributes,
                    .inputs = copies,
                    .input_count = input_count,
                    .results = results,
                    .result_count = result_count,
                    .id = graph->node_count};
    return n;
}

/* Makes body the builder's, or frees it. */
static bool own_body(trd_builder *b, trd__program *body)
{
    if (b->body_count == b->body_capacity) {
        int capacity = b->body_capacity ? 2 * b->body_capacity : FIRST_BODIES;
        trd__program **larger = trd__realloc(b->bodies, (size_t)capacity, sizeof(trd__program *));
        if (!larger) {
            trd__program_free(body);
            return false;
        }
        b->bodies = larger;
        b->body_capacity = capacity;
    }
    b->bodies[b->body_count++] = body;
    return true;
}

static bool own_bodies(trd_builder *b, trd__program *const *bodies, int count)
{
    bool owned = true;
    for (int i = 0; i < count; i++) owned &= own_body(b, bodies[i]);
    return owned;
}

const trd_node *trd__node_add_bodies(trd_builder *b, const trd_op *op, const void *attr,
                                     const trd_value *inputs, int input_count, trd__program *const *bodies,
                                     int body_count)
{
    bool owned = own_bodies(b, bodies, body_count);
    if (b->status != TRD_OK) return NULL;
    const trd_node probe = {.op = op, .inputs = (trd_value *)(uintptr_t)inputs, .input_count = input_count};
    trd_status status = check_operands(b, &probe);
    if (status != TRD_OK) return refuse(b, &probe, status);
    trd_node *n = owned ? make_node(&b->graph, op, attr, inputs, input_count) : NULL;
    if (n && body_count) n->bodies = trd__arena_alloc(b->graph.arena, (size_t)body_count, sizeof bodies[0]);
    if (!n || (body_count && !n->bodies)) {
        trd__builder_stick(b, TRD_NO_MEMORY);
        return NULL;
    }
    for (int i = 0; i < body_count; i++) n->bodies[i] = bodies[i];
    n->body_count = body_count;
    status = op->infer(n, n->results);
    if (status != TRD_OK) return refuse(b, n, status);
    b->graph.nodes[b->graph.node_count++] = n;
    return n;
}

const trd_node *trd__node_add(trd_builder *b, const trd_op *op, const void *attr, const trd_value *inputs,
                              int input_count)
{
    return trd__node_add_bodies(b, op, attr, inputs, input_count, NULL, 0);
}

trd_value trd__add_node(trd_builder *b, const trd_op *op, const void *attr, const trd_value *inputs,
                        int input_count)
{
    return trd__result(trd__node_add(b, op, attr, inputs, input_count), 0);
}

trd_node *trd__node_copy(trd_builder *b, const trd_node *n)
{
    trd_graph *graph = &b->graph;
    trd_node *copy = trd__arena_alloc(graph->arena, 1, sizeof *copy);
    trd_value *inputs = trd__arena_alloc(graph->arena, (size_t)n->input_count + 1, sizeof *inputs);
    if (!copy || !inputs || !reserve(graph)) {
        trd__builder_stick(b, TRD_NO_MEMORY);
        return NULL;
    }
    if (n->input_count) memcpy(inputs, n->inputs, (size_t)n->input_count * sizeof *inputs);
    *copy = *n;
    copy->inputs = inputs;
    copy->id = graph->node_count;
    graph->nodes[graph->node_count++] = copy;
    return copy;
}

trd_status trd__fail_shape(const trd_node *n, const char *operand, const char *expected,
                           const trd__type *found)
{
    char shape[TRD__SHAPE_TEXT];
    return trd__fail(TRD_SHAPE, "%s: operand \"%s\" expected %s, found %s %s", n->op->name, operand, expected,
                     trd__shape_text(&found->shape, shape), trd_dtype_name(found->dtype));
}
