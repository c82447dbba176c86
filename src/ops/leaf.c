/* Leaves: constants of one value, and counting. The input leaf belongs to the graph (graph/program.h). */
#include <stdio.h>
#include <string.h>

#include "ops/rules.h"

static trd_status check_shape(const trd_node *n, const trd_shape *shape)
{
    if (shape->rank >= 0 && shape->rank <= TRD_MAX_RANK && trd__shape_count(shape) >= 0) return TRD_OK;
    return trd__fail(TRD_SHAPE, "%s: expected a shape of at most %d axes whose element count fits 63 bits",
                     n->op->name, TRD_MAX_RANK);
}

static trd_status constant_infer(const trd_node *n, trd__type *results)
{
    const trd__constant_attr *attr = n->attr;
    TRD_TRY(check_shape(n, &attr->shape));
    results[0] = trd__plain_type(attr->dtype, &attr->shape);
    return TRD_OK;
}

static void constant_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__constant_attr *attr = n->attr;
    snprintf(text, bytes, "value=%g", attr->value);
}

const trd_op trd__op_constant = {.name = "constant",
                                 .results = 1,
                                 .attr_size = sizeof(trd__constant_attr),
                                 .flags = TRD__OP_LEAF | TRD__OP_NOT_DIFFERENTIABLE,
                                 .infer = constant_infer,
                                 .print = constant_print};

/* The shape as plain bytes: dims beyond the rank are 0, so equal shapes have equal attributes. */
static trd_shape clean(trd_shape shape)
{
    int rank = shape.rank < 0 ? 0 : shape.rank > TRD_MAX_RANK ? TRD_MAX_RANK : shape.rank;
    trd_shape result = trd__leading(&shape, rank);
    result.rank = shape.rank;
    return result;
}

trd_value trd_constant_fill(trd_builder *b, trd_dtype dtype, trd_shape shape, double value)
{
    trd__constant_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.dtype = dtype;
    attr.value = value;
    shape = clean(shape);
    memcpy(&attr.shape, &shape, sizeof shape);
    return trd__add_node(b, &trd__op_constant, &attr, NULL, 0);
}

trd_value trd_scalar(trd_builder *b, trd_dtype dtype, double value)
{
    return trd_constant_fill(b, dtype, trd__shape_scalar(), value);
}

static trd_status iota_infer(const trd_node *n, trd__type *results)
{
    const trd__iota_attr *attr = n->attr;
    TRD_TRY(check_shape(n, &attr->shape));
    if (attr->axis < 0 || attr->axis >= attr->shape.rank)
        return trd__fail(TRD_SHAPE, "iota: expected an axis below the rank %d, found %d", attr->shape.rank,
                         attr->axis);
    if (!(TRD__NUMBERS & TRD__DTYPE_BIT(attr->dtype)))
        return trd__fail(TRD_SHAPE, "iota: expected int32 or a float dtype, found %s",
                         trd_dtype_name(attr->dtype));
    results[0] = trd__plain_type(attr->dtype, &attr->shape);
    return TRD_OK;
}

static void iota_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__iota_attr *attr = n->attr;
    snprintf(text, bytes, "axis=%d", attr->axis);
}

const trd_op trd__op_iota = {.name = "iota",
                             .results = 1,
                             .attr_size = sizeof(trd__iota_attr),
                             .flags = TRD__OP_LEAF | TRD__OP_NOT_DIFFERENTIABLE,
                             .infer = iota_infer,
                             .print = iota_print};

trd_value trd_iota(trd_builder *b, trd_dtype dtype, trd_shape shape, int axis)
{
    trd__iota_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.dtype = dtype;
    attr.axis = axis;
    shape = clean(shape);
    memcpy(&attr.shape, &shape, sizeof shape);
    return trd__add_node(b, &trd__op_iota, &attr, NULL, 0);
}
