/* silu(gate) * up, elementwise (Shazeer 2020). With s = sigmoid(gate): dup = dy gate s,
 * dgate = dy up s (1 + gate (1 - s)). */
#include "ops/rules.h"

static trd_status infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(trd__want(n, 0, "gate", TRD__FLOATS));
    const trd__type *gate = trd__operand(n, 0);
    TRD_TRY(trd__want_type(n, 1, "up", gate->dtype, &gate->shape));
    results[0] = *gate;
    return TRD_OK;
}

static trd_status grad_infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(infer(n, results));
    TRD_TRY(trd__want_type(n, 2, "dy", results[0].dtype, &results[0].shape));
    results[1] = *trd__operand(n, 1);
    return TRD_OK;
}

static void gradient(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs, trd_value *dx)
{
    trd_value inputs[3] = {n->inputs[0], n->inputs[1], dy[0]};
    const trd_node *grad = trd__node_add(b, &trd__op_swiglu_grad, NULL, inputs, 3);
    for (int i = 0; i < 2; i++)
        if (needs[i]) dx[i] = trd__result(grad, i);
}

static void expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    trd_dtype dtype = n->results[0].dtype, wide = trd__compute_dtype(dtype);
    trd_value gate = trd_cast(b, n->inputs[0], wide), up = trd_cast(b, n->inputs[1], wide);
    trd_value silu = trd_mul(b, gate, trd_sigmoid(b, gate));
    results[0] = trd_cast(b, trd_mul(b, silu, up), dtype);
}

static void grad_expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    trd_dtype dtype = n->results[0].dtype, wide = trd__compute_dtype(dtype);
    trd_value gate = trd_cast(b, n->inputs[0], wide), up = trd_cast(b, n->inputs[1], wide);
    trd_value dy = trd_cast(b, n->inputs[2], wide), one = trd_scalar(b, wide, 1);
    trd_value s = trd_sigmoid(b, gate);
    trd_value slope = trd_mul(b, s, trd_add(b, one, trd_mul(b, gate, trd_sub(b, one, s))));
    results[0] = trd_cast(b, trd_mul(b, trd_mul(b, dy, up), slope), dtype);
    results[1] = trd_cast(b, trd_mul(b, dy, trd_mul(b, gate, s)), dtype);
}

trd_value trd_swiglu(trd_builder *b, trd_value gate, trd_value up)
{
    return trd__add_node(b, &trd__op_swiglu, NULL, (trd_value[]){gate, up}, 2);
}

const trd_op trd__op_swiglu = {.name = "swiglu",
                               .min_inputs = 2,
                               .max_inputs = 2,
                               .results = 1,
                               .flags = TRD__OP_ELEMENTWISE,
                               .cost = TRD__COST_CHEAP,
                               .infer = infer,
                               .gradient = gradient,
                               .expand = expand};

const trd_op trd__op_swiglu_grad = {.name = "swiglu_grad",
                                    .min_inputs = 3,
                                    .max_inputs = 3,
                                    .results = 2,
                                    .flags = TRD__OP_ELEMENTWISE,
                                    .cost = TRD__COST_CHEAP,
                                    .infer = grad_infer,
                                    .expand = grad_expand};
