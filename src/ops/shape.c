/* Ops that move elements without computing: reshape, transpose, broadcast, slice, pad, concat. The builders
 * return x itself where nothing would change. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ops/rules.h"

/* Attributes of reshape and broadcast with every byte defined. */
static trd__shape_attr shape_attr(trd_shape shape)
{
    trd__shape_attr attr;
    memset(&attr, 0, sizeof attr);
    int rank = shape.rank < 0 ? 0 : shape.rank > TRD_MAX_RANK ? TRD_MAX_RANK : shape.rank;
    attr.shape.rank = shape.rank;
    memcpy(attr.shape.dim, shape.dim, (size_t)rank * sizeof *shape.dim);
    return attr;
}

static void shape_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__shape_attr *attr = n->attr;
    char shape[TRD__SHAPE_TEXT];
    snprintf(text, bytes, "shape=%s", trd__shape_text(&attr->shape, shape));
}

/* -- reshape -- */

/* Leading axes that stay the same keep their names. */
static trd_status reshape_infer(const trd_node *n, trd__type *results)
{
    const trd__shape_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "x", TRD__ANY));
    const trd__type *x = trd__operand(n, 0);
    if (attr->shape.rank < 0 || attr->shape.rank > TRD_MAX_RANK ||
        trd__shape_count(&attr->shape) != trd__shape_count(&x->shape)) {
        char text[TRD__SHAPE_TEXT];
        return trd__fail_shape_of(n, "x", x, "as many elements as the new shape %s has",
                                  trd__shape_text(&attr->shape, text));
    }
    results[0] = trd__plain_type(x->dtype, &attr->shape);
    for (int i = 0; i < x->shape.rank && i < attr->shape.rank && x->shape.dim[i] == attr->shape.dim[i]; i++)
        results[0].axes[i] = x->axes[i];
    return TRD_OK;
}

static void reshape_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                             trd_value *dx)
{
    (void)needs;
    dx[0] = trd_reshape(b, dz[0], trd__operand(n, 0)->shape);
}

trd_value trd_reshape(trd_builder *b, trd_value x, trd_shape shape)
{
    trd_shape from = trd_value_shape(x);
    int64_t known = 1;
    int open = -1;
    for (int i = 0; i < shape.rank && i < TRD_MAX_RANK; i++) {
        if (shape.dim[i] < 0 && open < 0)
            open = i;
        else
            known *= shape.dim[i];
    }
    if (open >= 0 && known > 0) shape.dim[open] = trd__shape_count(&from) / known;
    if (!trd_is_null(x) && trd__shape_equal(&from, &shape)) return x;
    trd__shape_attr attr = shape_attr(shape);
    return trd__add_node(b, &trd__op_reshape, &attr, &x, 1);
}

const trd_op trd__op_reshape = {.name = "reshape",
                                .min_inputs = 1,
                                .max_inputs = 1,
                                .results = 1,
                                .attr_size = sizeof(trd__shape_attr),
                                .cost = TRD__COST_FREE,
                                .infer = reshape_infer,
                                .gradient = reshape_gradient,
                                .print = shape_print};

/* -- transpose -- */

static trd_status transpose_infer(const trd_node *n, trd__type *results)
{
    const trd__transpose_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "x", TRD__ANY));
    const trd__type *x = trd__operand(n, 0);
    results[0] = *x;
    unsigned seen = 0;
    for (int i = 0; i < x->shape.rank; i++) {
        int from = attr->permutation[i];
        if (from < 0 || from >= x->shape.rank || seen >> from & 1u)
            return trd__fail_shape_of(n, "x", x, "a permutation of its axes, which %d at place %d breaks",
                                      from, i);
        seen |= 1u << from;
        results[0].shape.dim[i] = x->shape.dim[from];
        results[0].axes[i] = x->axes[from];
    }
    return TRD_OK;
}

static void transpose_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                               trd_value *dx)
{
    (void)needs;
    const trd__transpose_attr *attr = n->attr;
    int inverse[TRD_MAX_RANK] = {0};
    for (int i = 0; i < n->results[0].shape.rank; i++) inverse[attr->permutation[i]] = i;
    dx[0] = trd_transpose(b, dz[0], inverse);
}

static void transpose_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__transpose_attr *attr = n->attr;
    size_t used = (size_t)snprintf(text, bytes, "permutation=");
    for (int i = 0; i < n->results[0].shape.rank && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%d", i ? "," : "", attr->permutation[i]);
}

trd_value trd_transpose(trd_builder *b, trd_value x, const int *permutation)
{
    int rank = trd_value_shape(x).rank;
    trd__transpose_attr attr = {{0}};
    bool moved = false;
    for (int i = 0; i < rank; i++) {
        attr.permutation[i] = permutation[i];
        moved = moved || permutation[i] != i;
    }
    if (!trd_is_null(x) && !moved) return x;
    return trd__add_node(b, &trd__op_transpose, &attr, &x, 1);
}

const trd_op trd__op_transpose = {.name = "transpose",
                                  .min_inputs = 1,
                                  .max_inputs = 1,
                                  .results = 1,
                                  .attr_size = sizeof(trd__transpose_attr),
                                  .cost = TRD__COST_CHEAP,
                                  .infer = transpose_infer,
                                  .gradient = transpose_gradient,
                                  .print = transpose_print};

/* -- broadcast -- */

static trd_status broadcast_infer(const trd_node *n, trd__type *results)
{
    const trd__shape_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "x", TRD__ANY));
    const trd__type *x = trd__operand(n, 0);
    int lead = attr->shape.rank - x->shape.rank;
    bool fits = lead >= 0 && attr->shape.rank <= TRD_MAX_RANK && trd__shape_count(&attr->shape) >= 0;
    for (int i = 0; fits && i < x->shape.rank; i++)
        fits = x->shape.dim[i] == 1 || x->shape.dim[i] == attr->shape.dim[lead + i];
    if (!fits) {
        char text[TRD__SHAPE_TEXT];
        return trd__fail_shape_of(n, "x", x, "a shape that broadcasts to %s",
                                  trd__shape_text(&attr->shape, text));
    }
    results[0] = trd__plain_type(x->dtype, &attr->shape);
    for (int i = 0; i < x->shape.rank; i++)
        if (x->shape.dim[i] == attr->shape.dim[lead + i]) results[0].axes[lead + i] = x->axes[i];
    return TRD_OK;
}

static void broadcast_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                               trd_value *dx)
{
    (void)needs;
    const trd__type *x = trd__operand(n, 0);
    const trd_shape *wide = &n->results[0].shape;
    int lead = wide->rank - x->shape.rank;
    unsigned repeated = (1u << lead) - 1;
    for (int i = 0; i < x->shape.rank; i++)
        if (x->shape.dim[i] != wide->dim[lead + i]) repeated |= 1u << (lead + i);
    dx[0] = trd_reshape(b, trd_reduce_sum(b, dz[0], repeated, false, x->dtype), x->shape);
}

trd_value trd_broadcast(trd_builder *b, trd_value x, trd_shape shape)
{
    trd_shape from = trd_value_shape(x);
    if (!trd_is_null(x) && trd__shape_equal(&from, &shape)) return x;
    trd__shape_attr attr = shape_attr(shape);
    return trd__add_node(b, &trd__op_broadcast, &attr, &x, 1);
}

const trd_op trd__op_broadcast = {.name = "broadcast",
                                  .min_inputs = 1,
                                  .max_inputs = 1,
                                  .results = 1,
                                  .attr_size = sizeof(trd__shape_attr),
                                  .cost = TRD__COST_FREE,
                                  .infer = broadcast_infer,
                                  .gradient = broadcast_gradient,
                                  .print = shape_print};

/* -- slice -- */

static trd_status slice_infer(const trd_node *n, trd__type *results)
{
    const trd__slice_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "x", TRD__ANY));
    const trd__type *x = trd__operand(n, 0);
    if (attr->axis < 0 || attr->axis >= x->shape.rank || attr->begin < 0 || attr->end < attr->begin ||
        attr->end > x->shape.dim[attr->axis])
        return trd__fail_shape_of(n, "x", x, "an axis %" PRId64 " that holds [%" PRId64 ", %" PRId64 ")",
                                  attr->axis, attr->begin, attr->end);
    results[0] = *x;
    results[0].shape.dim[attr->axis] = attr->end - attr->begin;
    return TRD_OK;
}

static void slice_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                           trd_value *dx)
{
    (void)needs;
    const trd__slice_attr *attr = n->attr;
    int64_t length = trd__operand(n, 0)->shape.dim[attr->axis];
    dx[0] = trd_pad(b, dz[0], (int)attr->axis, attr->begin, length - attr->end, 0);
}

static void slice_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__slice_attr *attr = n->attr;
    snprintf(text, bytes, "axis=%" PRId64 " begin=%" PRId64 " end=%" PRId64, attr->axis, attr->begin,
             attr->end);
}

trd_value trd_slice(trd_builder *b, trd_value x, int axis, int64_t begin, int64_t end)
{
    trd_shape shape = trd_value_shape(x);
    if (axis >= 0 && axis < shape.rank && begin == 0 && end == shape.dim[axis]) return x;
    return trd__add_node(b, &trd__op_slice, &(trd__slice_attr){axis, begin, end}, &x, 1);
}

const trd_op trd__op_slice = {.name = "slice",
                              .min_inputs = 1,
                              .max_inputs = 1,
                              .results = 1,
                              .attr_size = sizeof(trd__slice_attr),
                              .cost = TRD__COST_CHEAP,
                              .infer = slice_infer,
                              .gradient = slice_gradient,
                              .print = slice_print};

/* -- pad -- */

static trd_status pad_infer(const trd_node *n, trd__type *results)
{
    const trd__pad_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "x", TRD__ANY));
    const trd__type *x = trd__operand(n, 0);
    if (attr->axis < 0 || attr->axis >= x->shape.rank || attr->before < 0 || attr->after < 0)
        return trd__fail_shape_of(n, "x", x,
                                  "an axis %" PRId64 " to pad by %" PRId64 " and %" PRId64 ", none negative",
                                  attr->axis, attr->before, attr->after);
    results[0] = *x;
    results[0].shape.dim[attr->axis] += attr->before + attr->after;
    return TRD_OK;
}

static void pad_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                         trd_value *dx)
{
    (void)needs;
    const trd__pad_attr *attr = n->attr;
    int64_t length = trd__operand(n, 0)->shape.dim[attr->axis];
    dx[0] = trd_slice(b, dz[0], (int)attr->axis, attr->before, attr->before + length);
}

static void pad_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__pad_attr *attr = n->attr;
    snprintf(text, bytes, "axis=%" PRId64 " before=%" PRId64 " after=%" PRId64 " value=%g", attr->axis,
             attr->before, attr->after, attr->value);
}

trd_value trd_pad(trd_builder *b, trd_value x, int axis, int64_t before, int64_t after, double value)
{
    if (before == 0 && after == 0) return x;
    return trd__add_node(b, &trd__op_pad, &(trd__pad_attr){axis, before, after, value}, &x, 1);
}

const trd_op trd__op_pad = {.name = "pad",
                            .min_inputs = 1,
                            .max_inputs = 1,
                            .results = 1,
                            .attr_size = sizeof(trd__pad_attr),
                            .cost = TRD__COST_CHEAP,
                            .infer = pad_infer,
                            .gradient = pad_gradient,
                            .print = pad_print};

/* -- concat -- */

static trd_status concat_infer(const trd_node *n, trd__type *results)
{
    const trd__concat_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "part 0", TRD__ANY));
    const trd__type *first = trd__operand(n, 0);
    if (attr->axis < 0 || attr->axis >= first->shape.rank)
        return trd__fail_shape_of(n, "part 0", first, "an axis %d", attr->axis);
    results[0] = *first;
    for (int i = 1; i < n->input_count; i++) {
        char name[24];
        snprintf(name, sizeof name, "part %d", i);
        TRD_TRY(trd__want(n, i, name, TRD__ANY));
        trd_shape shape = first->shape;
        const trd_shape *part = &trd__operand(n, i)->shape;
        if (part->rank == shape.rank) shape.dim[attr->axis] = part->dim[attr->axis];
        TRD_TRY(trd__want_type(n, i, name, first->dtype, &shape));
        results[0].shape.dim[attr->axis] += shape.dim[attr->axis];
    }
    return TRD_OK;
}

static void concat_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                            trd_value *dx)
{
    const trd__concat_attr *attr = n->attr;
    int64_t begin = 0;
    for (int i = 0; i < n->input_count; i++) {
        int64_t end = begin + trd__operand(n, i)->shape.dim[attr->axis];
        if (needs[i]) dx[i] = trd_slice(b, dz[0], attr->axis, begin, end);
        begin = end;
    }
}

static void concat_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__concat_attr *attr = n->attr;
    snprintf(text, bytes, "axis=%d", attr->axis);
}

trd_value trd_concat(trd_builder *b, const trd_value *parts, int count, int axis)
{
    if (count == 1 && axis >= 0 && axis < trd_value_shape(parts[0]).rank) return parts[0];
    return trd__add_node(b, &trd__op_concat, &(trd__concat_attr){axis}, parts, count);
}

const trd_op trd__op_concat = {.name = "concat",
                               .min_inputs = 1,
                               .max_inputs = TRD__CONCAT_PARTS,
                               .results = 1,
                               .attr_size = sizeof(trd__concat_attr),
                               .cost = TRD__COST_CHEAP,
                               .infer = concat_infer,
                               .gradient = concat_gradient,
                               .print = concat_print};
