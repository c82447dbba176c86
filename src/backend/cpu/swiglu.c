/* swiglu and its gradient: the variant lists and the plain kernels, which take every float dtype and work in
 * float64. */
#include "backend/cpu/swiglu.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    plan->workers = 1;
    for (int result = 0; result < n->result_count; result++) plan->in_place[result] = result + 1;
    return TRD_OK;
}

static void run_forward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__type *type = &call->node->results[0];
    size_t count = (size_t)trd__shape_count(&type->shape);
    for (size_t i = 0; i < count; i++) {
        double gate = trd__load(type->dtype, call->inputs[0], i);
        trd__store(type->dtype, call->outputs[0], i,
                   gate * sigmoid(gate) * trd__load(type->dtype, call->inputs[1], i));
    }
}

static void run_backward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__type *type = &call->node->results[0];
    size_t count = (size_t)trd__shape_count(&type->shape);
    for (size_t i = 0; i < count; i++) {
        double gate = trd__load(type->dtype, call->inputs[0], i), s = sigmoid(gate);
        double up = trd__load(type->dtype, call->inputs[1], i);
        double dy = trd__load(type->dtype, call->inputs[2], i);
        if (call->outputs[0])
            trd__store(type->dtype, call->outputs[0], i, dy * up * s * (1.0 + gate * (1.0 - s)));
        if (call->outputs[1]) trd__store(type->dtype, call->outputs[1], i, dy * gate * s);
    }
}

static const trd__cpu_kernel forward = {.name = "reference", .plan = plan, .run = run_forward};
static const trd__cpu_kernel backward = {.name = "reference", .plan = plan, .run = run_backward};
static const trd__cpu_kernel *const forward_variants[] = {&trd__swiglu_tiles, &forward, NULL};
static const trd__cpu_kernel *const backward_variants[] = {&trd__swiglu_tiles, &backward, NULL};

const trd__cpu_op trd__cpu_swiglu[] = {{.op = &trd__op_swiglu, .variants = forward_variants},
                                       {.op = &trd__op_swiglu_grad, .variants = backward_variants},
                                       {0}};
