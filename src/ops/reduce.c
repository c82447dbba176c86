/* Reductions. Axes are a bit mask; float sums are kept in float64 and rounded once to the result's dtype. */
#include <stdio.h>

#include "ops/rules.h"

/* The operand's shape without the reduced axes, or with them as 1. Axis names of kept axes carry over. */
static trd_status infer_reduced(const trd_node *n, trd__type *results, unsigned dtypes)
{
    const trd__reduce_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "x", dtypes));
    const trd__type *x = trd__operand(n, 0);
    if (attr->axes_mask >> x->shape.rank)
        return trd__fail_shape_of(n, "x", x, "an operand whose rank covers the axes 0x%x", attr->axes_mask);
    results[0] = (trd__type){.dtype = attr->dtype};
    for (int i = 0; i < x->shape.rank; i++) {
        bool reduced = attr->axes_mask >> i & 1u;
        if (reduced && !attr->keep_dims) continue;
        int axis = results[0].shape.rank++;
        results[0].shape.dim[axis] = reduced ? 1 : x->shape.dim[i];
        results[0].axes[axis] = reduced ? NULL : x->axes[i];
    }
    return TRD_OK;
}

static trd_status reduce_sum_infer(const trd_node *n, trd__type *results)
{
    return infer_reduced(n, results, TRD__ANY);
}

static trd_status reduce_max_infer(const trd_node *n, trd__type *results)
{
    return infer_reduced(n, results, TRD__NUMBERS);
}

/* v, of a reduction's result shape, spread over the operand's shape again. */
static trd_value spread(trd_builder *b, const trd_node *n, trd_value v)
{
    const trd__reduce_attr *attr = n->attr;
    trd_shape shape = trd__operand(n, 0)->shape, kept = shape;
    for (int i = 0; i < shape.rank; i++)
        if (attr->axes_mask >> i & 1u) kept.dim[i] = 1;
    return trd_broadcast(b, trd_reshape(b, v, kept), shape);
}

static void reduce_sum_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                                trd_value *dx)
{
    (void)needs;
    trd_dtype dtype = trd__operand(n, 0)->dtype;
    if (TRD__FLOATS & TRD__DTYPE_BIT(dtype)) dx[0] = spread(b, n, trd_cast(b, dz[0], dtype));
}

/* The cotangent goes to the largest element; equal ones share it. */
static void reduce_max_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                                trd_value *dx)
{
    (void)needs;
    const trd__reduce_attr *attr = n->attr;
    trd_dtype dtype = trd_value_dtype(dz[0]);
    trd_value largest = trd_equal(b, n->inputs[0], spread(b, n, (trd_value){n, 0}));
    trd_value ties = trd_reduce_sum(b, largest, attr->axes_mask, attr->keep_dims, dtype);
    dx[0] = trd__mask(b, largest, spread(b, n, trd_div(b, dz[0], ties)));
}

static void reduce_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__reduce_attr *attr = n->attr;
    snprintf(text, bytes, "axes=0x%x keep_dims=%d", attr->axes_mask, attr->keep_dims);
}

static trd_value reduce(trd_builder *b, const trd_op *op, trd_value x, unsigned axes_mask, bool keep_dims,
                        trd_dtype dtype)
{
    trd__reduce_attr attr = {axes_mask, keep_dims, dtype};
    return trd__add_node(b, op, &attr, &x, 1);
}

trd_value trd_reduce_sum(trd_builder *b, trd_value x, unsigned axes_mask, bool keep_dims, trd_dtype dtype)
{
    return reduce(b, &trd__op_reduce_sum, x, axes_mask, keep_dims, dtype);
}

trd_value trd_reduce_max(trd_builder *b, trd_value x, unsigned axes_mask, bool keep_dims)
{
    return reduce(b, &trd__op_reduce_max, x, axes_mask, keep_dims, trd_value_dtype(x));
}

trd_value trd_sum_all(trd_builder *b, trd_value x)
{
    trd_dtype dtype = trd_value_dtype(x);
    if (dtype == TRD_BF16 || dtype == TRD_F16) dtype = TRD_F32;
    if (dtype == TRD_BOOL) dtype = TRD_I32;
    return trd_reduce_sum(b, x, (1u << trd_value_shape(x).rank) - 1, false, dtype);
}

static trd_status sum_squares_infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(trd__want(n, 0, "x", TRD__FLOATS));
    results[0] = (trd__type){.dtype = TRD_F64};
    return TRD_OK;
}

trd_value trd_sum_squares(trd_builder *b, trd_value x)
{
    return trd__add_node(b, &trd__op_sum_squares, NULL, &x, 1);
}

const trd_op trd__op_reduce_sum = {.name = "reduce_sum",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .results = 1,
                                   .attr_size = sizeof(trd__reduce_attr),
                                   .cost = TRD__COST_CHEAP,
                                   .infer = reduce_sum_infer,
                                   .gradient = reduce_sum_gradient,
                                   .print = reduce_print};

const trd_op trd__op_reduce_max = {.name = "reduce_max",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .results = 1,
                                   .attr_size = sizeof(trd__reduce_attr),
                                   .cost = TRD__COST_CHEAP,
                                   .infer = reduce_max_infer,
                                   .gradient = reduce_max_gradient,
                                   .print = reduce_print};

const trd_op trd__op_sum_squares = {.name = "sum_squares",
                                    .min_inputs = 1,
                                    .max_inputs = 1,
                                    .results = 1,
                                    .flags = TRD__OP_NOT_DIFFERENTIABLE,
                                    .cost = TRD__COST_CHEAP,
                                    .infer = sum_squares_infer};
