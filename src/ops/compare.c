/* Comparisons, a table row each, and select. As with the binary ops, nodes take operands of one shape and the
 * builders broadcast. */
#include "ops/rules.h"

/* X(op, builder, dtypes, flags) */
#define COMPARISONS(X)                                                                                       \
    X(equal, trd_equal, TRD__ANY, TRD__OP_COMMUTATIVE)                                                       \
    X(not_equal, trd_not_equal, TRD__ANY, TRD__OP_COMMUTATIVE)                                               \
    X(less, trd_less, TRD__NUMBERS, 0)                                                                       \
    X(less_equal, trd_less_equal, TRD__NUMBERS, 0)                                                           \
    X(greater, trd_greater, TRD__NUMBERS, 0)                                                                 \
    X(greater_equal, trd_greater_equal, TRD__NUMBERS, 0)

static trd_status infer_truth(const trd_node *n, trd__type *results, unsigned dtypes)
{
    TRD_TRY(trd__infer_pair(n, results, dtypes));
    results[0].dtype = TRD_BOOL;
    return TRD_OK;
}

#define DEFINE_COMPARISON(op_name, builder, dtypes, flag_set)                                                \
    static trd_status op_name##_infer(const trd_node *n, trd__type *results)                                 \
    {                                                                                                        \
        return infer_truth(n, results, dtypes);                                                              \
    }                                                                                                        \
    trd_value builder(trd_builder *b, trd_value x, trd_value y)                                              \
    {                                                                                                        \
        return trd__add_pair(b, &trd__op_##op_name, x, y);                                                   \
    }                                                                                                        \
    const trd_op trd__op_##op_name = {.name = #op_name,                                                      \
                                      .min_inputs = 2,                                                       \
                                      .max_inputs = 2,                                                       \
                                      .results = 1,                                                          \
                                      .flags =                                                               \
                                          TRD__OP_ELEMENTWISE | TRD__OP_NOT_DIFFERENTIABLE | (flag_set),     \
                                      .cost = TRD__COST_CHEAP,                                               \
                                      .infer = op_name##_infer};
COMPARISONS(DEFINE_COMPARISON)

static trd_status select_infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(trd__want(n, 1, "x", TRD__ANY));
    const trd__type *x = trd__operand(n, 1);
    TRD_TRY(trd__want_type(n, 0, "condition", TRD_BOOL, &x->shape));
    TRD_TRY(trd__want_type(n, 2, "y", x->dtype, &x->shape));
    results[0] = *x;
    return TRD_OK;
}

/* The side that was not chosen gets exactly 0: no product with a mask, which would turn its NaN into ours. */
static void select_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                            trd_value *dx)
{
    trd_value condition = n->inputs[0], zero = trd_scalar(b, trd_value_dtype(dz[0]), 0);
    if (needs[1]) dx[1] = trd_select(b, condition, dz[0], zero);
    if (needs[2]) dx[2] = trd_select(b, condition, zero, dz[0]);
}

trd_value trd_select(trd_builder *b, trd_value condition, trd_value x, trd_value y)
{
    trd_value operands[3] = {condition, x, y};
    trd__broadcast_together(b, operands, 3);
    return trd__add_node(b, &trd__op_select, NULL, operands, 3);
}

const trd_op trd__op_select = {.name = "select",
                               .min_inputs = 3,
                               .max_inputs = 3,
                               .results = 1,
                               .flags = TRD__OP_ELEMENTWISE,
                               .cost = TRD__COST_CHEAP,
                               .infer = select_infer,
                               .gradient = select_gradient};
