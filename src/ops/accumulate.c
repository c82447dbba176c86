/* accumulator + x in the accumulator's dtype, rounded once. Where x is a product the pass fuse_accumulate
 * moves the accumulator into it, so no temporary of the parameter's size exists. */
#include "ops/rules.h"

static trd_status infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(trd__want(n, 0, "accumulator", TRD__FLOATS));
    TRD_TRY(trd__want(n, 1, "x", TRD__FLOATS));
    TRD_TRY(trd__want_type(n, 1, "x", trd__operand(n, 1)->dtype, &trd__operand(n, 0)->shape));
    results[0] = *trd__operand(n, 0);
    return TRD_OK;
}

static void gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs, trd_value *dx)
{
    if (needs[0]) dx[0] = dz[0];
    if (needs[1]) dx[1] = trd_cast(b, dz[0], trd__operand(n, 1)->dtype);
}

trd_value trd_accumulate(trd_builder *b, trd_value accumulator, trd_value x)
{
    return trd__add_node(b, &trd__op_accumulate, NULL, (trd_value[]){accumulator, x}, 2);
}

const trd_op trd__op_accumulate = {.name = "accumulate",
                                   .min_inputs = 2,
                                   .max_inputs = 2,
                                   .results = 1,
                                   .flags = TRD__OP_ELEMENTWISE | TRD__OP_ALIASES | TRD__OP_ADDS_INTO,
                                   .cost = TRD__COST_CHEAP,
                                   .alias_input = 0,
                                   .infer = infer,
                                   .gradient = gradient};
