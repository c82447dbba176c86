/* Readable text of a program, a node a line: result, op, operands, attributes, type, name; then the outputs.
 * A node's bodies follow it, indented. Equal programs print equal text. */
#include "base/shape.h"
#include "graph/passes.h"

enum { ATTRIBUTES_TEXT = 256 };

static void print_value(trd_value v, FILE *stream)
{
    if (trd_is_null(v))
        fputs("null", stream);
    else if (v.node->result_count == 1)
        fprintf(stream, "%%%d", v.node->id);
    else
        fprintf(stream, "%%%d.%d", v.node->id, v.result);
}

static void print_type(const trd__type *type, FILE *stream)
{
    char shape[TRD__SHAPE_TEXT];
    fprintf(stream, "%s %s", trd_dtype_name(type->dtype), trd__shape_text(&type->shape, shape));
}

static void print_node(const trd_node *n, int indent, FILE *stream)
{
    fprintf(stream, "%*s  %%%d = %s(", indent, "", n->id, n->op->name);
    for (int i = 0; i < n->input_count; i++) {
        if (i) fputs(", ", stream);
        print_value(n->inputs[i], stream);
    }
    fputc(')', stream);
    if (n->op->print) {
        char text[ATTRIBUTES_TEXT] = "";
        n->op->print(n, text, sizeof text);
        if (text[0]) fprintf(stream, " {%s}", text);
    }
    for (int r = 0; r < n->result_count; r++) {
        fputs(r ? ", " : " : ", stream);
        print_type(&n->results[r], stream);
    }
    if (n->name) fprintf(stream, " \"%s\"", n->name);
    if (n->layer_boundary) fputs(" [boundary]", stream);
    if (n->recomputed) fputs(" [recomputed]", stream);
    fputc('\n', stream);
}

/* indent: spaces before each line. */
static void print_program(const trd__program *program, int indent, FILE *stream)
{
    const trd_graph *graph = &program->builder->graph;
    fprintf(stream, "%*sprogram %s: %d nodes", indent, "", program->name, graph->node_count);
    if (program->replicas > 1) fprintf(stream, ", %lld replicas", (long long)program->replicas);
    fputc('\n', stream);
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        print_node(n, indent, stream);
        for (int body = 0; body < n->body_count; body++) print_program(n->bodies[body], indent + 4, stream);
    }
    for (int i = 0; i < program->output_count; i++) {
        const trd__output *output = &program->outputs[i];
        const trd__slot *slot = &program->slots[output->slot];
        fprintf(stream, "%*s  %s.%s <- ", indent, "", slot->name, slot->entries[output->entry].name);
        print_value(output->value, stream);
        fputc('\n', stream);
    }
}

void trd__program_print(const trd__program *program, FILE *stream)
{
    print_program(program, 0, stream);
}
