/* Matrix products. x (..., M, K) by y (..., K, N), either stored transposed; batch axes are equal, or y has
 * rank 2 and is shared by all rows of x. An optional third operand is an accumulator the product is added
 * into without being rounded first. */
#include <stdio.h>

#include "ops/rules.h"

typedef struct dims {
    int64_t batch, m, n, k;
} dims;

/* Sizes of the product; y's inner length is checked against x's by the shape rule. */
static dims sizes(const trd__type *x, const trd__type *y, const trd__matmul_attr *attr)
{
    int rank = x->shape.rank, y_rank = y->shape.rank;
    return (dims){.batch = trd__dims_product(&x->shape, 0, rank - 2),
                  .m = x->shape.dim[rank - (attr->transpose_x ? 1 : 2)],
                  .k = x->shape.dim[rank - (attr->transpose_x ? 2 : 1)],
                  .n = y->shape.dim[y_rank - (attr->transpose_y ? 2 : 1)]};
}

static trd_status infer(const trd_node *n, trd__type *results)
{
    const trd__matmul_attr *attr = n->attr;
    TRD_TRY(trd__want_rank(n, 0, "x", TRD__FLOATS, 2));
    TRD_TRY(trd__want_rank(n, 1, "y", TRD__DTYPE_BIT(trd__operand(n, 0)->dtype), 2));
    const trd__type *x = trd__operand(n, 0), *y = trd__operand(n, 1);
    int rank = x->shape.rank;
    bool shared = y->shape.rank == 2 && rank > 2;
    dims size = sizes(x, y, attr);
    trd_shape expected = shared ? (trd_shape){.rank = 2} : x->shape;
    expected.dim[expected.rank - (attr->transpose_y ? 2 : 1)] = size.n;
    expected.dim[expected.rank - (attr->transpose_y ? 1 : 2)] = size.k;
    TRD_TRY(trd__want_type(n, 1, "y", x->dtype, &expected));
    if (shared && attr->transpose_x) return trd__fail_shape(n, "x", "no transposed operand of a shared y", x);
    if (!(TRD__FLOATS & TRD__DTYPE_BIT(attr->dtype)))
        return trd__fail(TRD_SHAPE, "matmul: expected a float result, found %s", trd_dtype_name(attr->dtype));
    results[0] = *x;
    results[0].dtype = attr->dtype;
    results[0].shape.dim[rank - 2] = size.m;
    results[0].shape.dim[rank - 1] = size.n;
    results[0].axes[rank - 2] = x->axes[rank - (attr->transpose_x ? 1 : 2)];
    results[0].axes[rank - 1] = y->axes[y->shape.rank - (attr->transpose_y ? 2 : 1)];
    if (n->input_count < 3) return TRD_OK;
    return trd__want_type(n, 2, "accumulator", attr->dtype, &results[0].shape);
}

/* Every case is one more product with operands as they are stored. A shared y sees x and dz with all leading
 * axes flattened into rows, so its gradient is one product with K = all rows. */
static void gradient(trd_builder *b, const trd_node *n, const trd_value *dzs, const bool *needs,
                     trd_value *dx)
{
    const trd__matmul_attr *attr = n->attr;
    trd_value x = n->inputs[0], y = n->inputs[1];
    bool tx = attr->transpose_x, ty = attr->transpose_y;
    trd_dtype x_dtype = trd_value_dtype(x), y_dtype = trd_value_dtype(y);
    trd_value dz = trd_cast(b, dzs[0], x_dtype);
    if (needs[0])
        dx[0] = tx ? trd_matmul(b, y, dz, ty, true, x_dtype) : trd_matmul(b, dz, y, false, !ty, x_dtype);
    if (needs[1]) {
        if (trd_value_shape(y).rank == 2 && !tx) {
            x = trd__flatten_rows(b, x);
            dz = trd__flatten_rows(b, dz);
        }
        dx[1] = ty ? trd_matmul(b, dz, x, true, tx, y_dtype) : trd_matmul(b, x, dz, !tx, false, y_dtype);
    }
    if (n->input_count > 2 && needs[2]) dx[2] = dzs[0];
}

static double flops(const trd_node *n)
{
    dims size = sizes(trd__operand(n, 0), trd__operand(n, 1), n->attr);
    return 2.0 * (double)size.batch * (double)size.m * (double)size.n * (double)size.k;
}

static bool accumulates_into(trd_builder *b, const trd_node *n, int result, trd_value accumulator,
                             trd_value *results)
{
    if (n->input_count > 2) return false;
    trd__matmul_attr attr = *(const trd__matmul_attr *)n->attr;
    attr.dtype = trd_value_dtype(accumulator);
    trd_value inputs[3] = {n->inputs[0], n->inputs[1], accumulator};
    results[result] = trd__add_node(b, n->op, &attr, inputs, 3);
    return true;
}

static void print(const trd_node *n, char *text, size_t bytes)
{
    const trd__matmul_attr *attr = n->attr;
    snprintf(text, bytes, "transpose=%d,%d", attr->transpose_x, attr->transpose_y);
}

trd_value trd_matmul(trd_builder *b, trd_value x, trd_value y, bool transpose_x, bool transpose_y,
                     trd_dtype dtype)
{
    int rank = trd_value_shape(x).rank;
    if (transpose_x && rank > 2 && trd_value_shape(y).rank == 2) {
        int permutation[TRD_MAX_RANK];
        for (int i = 0; i < rank; i++) permutation[i] = i;
        permutation[rank - 2] = rank - 1;
        permutation[rank - 1] = rank - 2;
        x = trd_transpose(b, x, permutation);
        transpose_x = false;
    }
    trd__matmul_attr attr = {transpose_x, transpose_y, dtype};
    return trd__add_node(b, &trd__op_matmul, &attr, (trd_value[]){x, y}, 2);
}

trd_value trd_linear(trd_builder *b, trd_value x, trd_value weight)
{
    trd_shape shape = trd_value_shape(x);
    if (shape.rank != 1) return trd_matmul(b, x, weight, false, true, trd_value_dtype(x));
    trd_value row = trd_matmul(b, trd__unsqueeze(b, x, 0), weight, false, true, trd_value_dtype(x));
    return trd_reshape(b, row, TRD__SHAPE(-1));
}

const trd_op trd__op_matmul = {.name = "matmul",
                               .min_inputs = 2,
                               .max_inputs = 3,
                               .results = 1,
                               .attr_size = sizeof(trd__matmul_attr),
                               .flags = TRD__OP_ALIASES,
                               .cost = TRD__COST_PRODUCT,
                               .alias_input = 2,
                               .infer = infer,
                               .gradient = gradient,
                               .flops = flops,
                               .accumulates_into = accumulates_into,
                               .print = print};
