/* The leaf that reads one entry of a program's slot. Its type travels in the attributes, so that the shape
 * rule needs no program; axes are annotated from the entry after the node is added. */
#include <stdio.h>

#include "graph/program.h"

static trd_status infer(const trd_node *n, trd__type *results)
{
    const trd__input_attr *attr = n->attr;
    results[0].dtype = attr->dtype;
    results[0].shape = attr->shape;
    return TRD_OK;
}

static void print(const trd_node *n, char *text, size_t bytes)
{
    const trd__input_attr *attr = n->attr;
    snprintf(text, bytes, "slot=%d entry=%d", attr->slot, attr->entry);
}

const trd_op trd__op_input = {.name = "input",
                              .results = 1,
                              .attr_size = sizeof(trd__input_attr),
                              .flags = TRD__OP_LEAF,
                              .cost = TRD__COST_FREE,
                              .infer = infer,
                              .print = print};
