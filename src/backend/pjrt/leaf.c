/* Lowering of the leaves. An input is an argument of @main, which the frame writes. */
#include "backend/pjrt/emit.h"

static void lower_constant(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    const trd__constant_attr *attr = n->attr;
    results[0] = trd__hlo_fill(e, attr->dtype, &attr->shape, attr->value);
}

static void lower_iota(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    const trd__iota_attr *attr = n->attr;
    results[0] = trd__hlo_iota(e, attr->dtype, &attr->shape, attr->axis);
}

const trd__pjrt_op trd__pjrt_leaf[] = {
    {.op = &trd__op_constant, .lower = lower_constant}, {.op = &trd__op_iota, .lower = lower_iota}, {0}};
