/* The sum over the replicas of a program (graph/program.h): the one op by which they see each other. In a
 * program without replicas it is its operand, which is what it expands to. */
#include "ops/rules.h"

static trd_status infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(trd__want(n, 0, "x", TRD__NUMBERS));
    results[0] = *trd__operand(n, 0);
    return TRD_OK;
}

static void expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    (void)b;
    results[0] = n->inputs[0];
}

/* A loss is differentiated by what each replica has of it, so nothing asks for a gradient of the sum. */
const trd_op trd__op_replica_sum = {.name = "replica_sum",
                                    .min_inputs = 1,
                                    .max_inputs = 1,
                                    .results = 1,
                                    .flags = TRD__OP_NOT_DIFFERENTIABLE,
                                    .cost = TRD__COST_PRODUCT, /* never recomputed: it costs the network */
                                    .infer = infer,
                                    .expand = expand};

trd_value trd__replica_sum(trd_builder *b, trd_value x)
{
    return trd__add_node(b, &trd__op_replica_sum, NULL, &x, 1);
}
