/* Operand checks and small compositions; see the header. */
#include "ops/rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const trd__type *trd__operand(const trd_node *n, int i)
{
    return i < n->input_count && n->inputs[i].node ? trd__type_of(n->inputs[i]) : NULL;
}

trd_status trd__fail_shape_of(const trd_node *n, const char *operand, const trd__type *found,
                              const char *format, ...)
{
    char expected[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(expected, sizeof expected, format, arguments);
    va_end(arguments);
    return trd__fail_shape(n, operand, expected, found);
}

/* "float32 or bfloat16" for the message. */
static void dtypes_text(unsigned dtypes, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int d = 0; d < TRD_DTYPE_COUNT && used < bytes; d++)
        if (dtypes & TRD__DTYPE_BIT(d))
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? " or " : "",
                                     trd_dtype_name((trd_dtype)d));
}

trd_status trd__want(const trd_node *n, int i, const char *name, unsigned dtypes)
{
    const trd__type *type = trd__operand(n, i);
    if (dtypes & TRD__DTYPE_BIT(type->dtype)) return TRD_OK;
    char text[128];
    dtypes_text(dtypes, text, sizeof text);
    return trd__fail_shape(n, name, text, type);
}

trd_status trd__want_rank(const trd_node *n, int i, const char *name, unsigned dtypes, int min_rank)
{
    TRD_TRY(trd__want(n, i, name, dtypes));
    const trd__type *type = trd__operand(n, i);
    if (type->shape.rank >= min_rank) return TRD_OK;
    return trd__fail_shape_of(n, name, type, "rank %d or more", min_rank);
}

trd_status trd__want_type(const trd_node *n, int i, const char *name, trd_dtype dtype, const trd_shape *shape)
{
    TRD_TRY(trd__want(n, i, name, TRD__ANY));
    const trd__type *type = trd__operand(n, i);
    if (type->dtype == dtype && trd__shape_equal(&type->shape, shape)) return TRD_OK;
    char text[TRD__SHAPE_TEXT];
    return trd__fail_shape_of(n, name, type, "%s %s", trd_dtype_name(dtype), trd__shape_text(shape, text));
}

trd_shape trd__leading(const trd_shape *shape, int rank)
{
    return trd__shape_of(rank, shape->dim);
}

int64_t trd__dims_product(const trd_shape *shape, int begin, int end)
{
    int64_t product = 1;
    for (int i = begin; i < end; i++) product *= shape->dim[i];
    return product;
}

trd__type trd__plain_type(trd_dtype dtype, const trd_shape *shape)
{
    return (trd__type){.dtype = dtype, .shape = *shape};
}

trd_dtype trd__compute_dtype(trd_dtype d)
{
    return d == TRD_F64 ? TRD_F64 : TRD_F32;
}

bool trd__is_zero(trd_value v)
{
    return v.node->op == &trd__op_constant && ((const trd__constant_attr *)v.node->attr)->value == 0;
}

/* Widens `common` to hold shape too; false if they do not broadcast. */
static bool join_shapes(trd_shape *common, const trd_shape *shape)
{
    const trd_shape *wide = common->rank >= shape->rank ? common : shape;
    trd_shape joined = *wide;
    for (int i = 1; i <= wide->rank; i++) {
        int64_t a = i <= common->rank ? common->dim[common->rank - i] : 1;
        int64_t c = i <= shape->rank ? shape->dim[shape->rank - i] : 1;
        if (a != c && a != 1 && c != 1) return false;
        joined.dim[wide->rank - i] = a == 1 ? c : a;
    }
    *common = joined;
    return true;
}

void trd__broadcast_together(trd_builder *b, trd_value *operands, int count)
{
    trd_shape common = trd_value_shape(operands[0]);
    for (int i = 0; i < count; i++) {
        trd_shape shape = trd_value_shape(operands[i]);
        if (trd_is_null(operands[i]) || !join_shapes(&common, &shape)) return;
    }
    for (int i = 0; i < count; i++) operands[i] = trd_broadcast(b, operands[i], common);
}

trd_value trd__add_pair(trd_builder *b, const trd_op *op, trd_value x, trd_value y)
{
    trd_value operands[2] = {x, y};
    trd__broadcast_together(b, operands, 2);
    return trd__add_node(b, op, NULL, operands, 2);
}

trd_status trd__infer_pair(const trd_node *n, trd__type *results, unsigned dtypes)
{
    TRD_TRY(trd__want(n, 0, "x", dtypes));
    const trd__type *x = trd__operand(n, 0);
    TRD_TRY(trd__want_type(n, 1, "y", x->dtype, &x->shape));
    results[0] = *x;
    return TRD_OK;
}

trd_value trd__times(trd_builder *b, trd_value x, double c)
{
    return trd_mul(b, x, trd_scalar(b, trd_value_dtype(x), c));
}

trd_value trd__flatten_rows(trd_builder *b, trd_value x)
{
    trd_shape shape = trd_value_shape(x);
    int64_t columns = shape.rank ? shape.dim[shape.rank - 1] : 1;
    return trd_reshape(b, x, TRD__SHAPE(trd__dims_product(&shape, 0, shape.rank - 1), columns));
}

trd_value trd__unsqueeze(trd_builder *b, trd_value x, int axis)
{
    trd_shape shape = trd_value_shape(x);
    if (shape.rank >= TRD_MAX_RANK)
        return trd_builder_fail(b, TRD_SHAPE, "a new axis: expected rank below %d", TRD_MAX_RANK);
    memmove(shape.dim + axis + 1, shape.dim + axis, (size_t)(shape.rank - axis) * sizeof *shape.dim);
    shape.dim[axis] = 1;
    shape.rank++;
    return trd_reshape(b, x, shape);
}

trd_value trd__take_row(trd_builder *b, trd_value x, int64_t i)
{
    trd_shape shape = trd_value_shape(x), row = {.rank = shape.rank - 1};
    for (int d = 0; d < row.rank; d++) row.dim[d] = shape.dim[d + 1];
    return trd_reshape(b, trd_slice(b, x, 0, i, i + 1), row);
}

trd_value trd__sum_last(trd_builder *b, trd_value x)
{
    int rank = trd_value_shape(x).rank;
    return trd_reduce_sum(b, x, rank ? 1u << (rank - 1) : 0, true, trd_value_dtype(x));
}

trd_value trd__mean_last(trd_builder *b, trd_value x)
{
    trd_shape shape = trd_value_shape(x);
    int64_t length = shape.rank ? shape.dim[shape.rank - 1] : 1;
    return trd__times(b, trd__sum_last(b, x), 1.0 / (double)(length ? length : 1));
}

trd_value trd__mask(trd_builder *b, trd_value condition, trd_value x)
{
    if (trd_is_null(condition)) return x;
    return trd_select(b, condition, x, trd_scalar(b, trd_value_dtype(x), 0));
}
