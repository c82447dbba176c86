/* Ops with computed indices. Indices are int32 and must be in range: whoever makes them checks them (token
 * ids are checked on the host, where the message can name the position). */
#include <inttypes.h>
#include <stdio.h>

#include "ops/rules.h"

static void rows_print(const trd_node *n, char *text, size_t bytes)
{
    const trd__rows_attr *attr = n->attr;
    snprintf(text, bytes, "rows=%" PRId64, attr->rows);
}

/* -- gather_rows -- */

static trd_status gather_rows_infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(trd__want_rank(n, 0, "table", TRD__ANY, 2));
    TRD_TRY(trd__want(n, 1, "ids", TRD__INT32));
    const trd__type *table = trd__operand(n, 0), *ids = trd__operand(n, 1);
    if (table->shape.rank != 2) return trd__fail_shape(n, "table", "rank 2, (V, C)", table);
    if (ids->shape.rank >= TRD_MAX_RANK) return trd__fail_shape(n, "ids", "a rank below 8", ids);
    results[0] = *ids;
    results[0].dtype = table->dtype;
    results[0].shape.dim[results[0].shape.rank] = table->shape.dim[1];
    results[0].axes[results[0].shape.rank++] = table->axes[1];
    return TRD_OK;
}

static void gather_rows_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                                 trd_value *dx)
{
    if (needs[0]) dx[0] = trd_scatter_add_rows(b, n->inputs[1], dz[0], trd__operand(n, 0)->shape.dim[0]);
}

/* Rows of a converted table are converted rows: the table is never converted as a whole, and its gradient is
 * scattered in its own dtype. */
trd_value trd_gather_rows(trd_builder *b, trd_value table, trd_value ids)
{
    if (!trd_is_null(table) && table.node->op == &trd__op_cast)
        return trd_cast(b, trd_gather_rows(b, table.node->inputs[0], ids), trd_value_dtype(table));
    return trd__add_node(b, &trd__op_gather_rows, NULL, (trd_value[]){table, ids}, 2);
}

const trd_op trd__op_gather_rows = {.name = "gather_rows",
                                    .min_inputs = 2,
                                    .max_inputs = 2,
                                    .results = 1,
                                    .cost = TRD__COST_CHEAP,
                                    .infer = gather_rows_infer,
                                    .gradient = gather_rows_gradient};

/* -- scatter_add_rows -- */

static trd_status scatter_add_rows_infer(const trd_node *n, trd__type *results)
{
    const trd__rows_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "ids", TRD__INT32));
    TRD_TRY(trd__want_rank(n, 1, "updates", TRD__NUMBERS, 1));
    const trd__type *ids = trd__operand(n, 0), *updates = trd__operand(n, 1);
    int64_t columns = updates->shape.dim[updates->shape.rank - 1];
    trd_shape expected = ids->shape;
    expected.dim[expected.rank++] = columns;
    TRD_TRY(trd__want_type(n, 1, "updates", updates->dtype, &expected));
    if (attr->rows < 0)
        return trd__fail(TRD_SHAPE, "scatter_add_rows: expected a row count, found %" PRId64, attr->rows);
    trd_shape shape = TRD__SHAPE(attr->rows, columns);
    results[0] = trd__plain_type(updates->dtype, &shape);
    results[0].axes[1] = updates->axes[updates->shape.rank - 1];
    if (n->input_count < 3) return TRD_OK;
    TRD_TRY(trd__want(n, 2, "accumulator", TRD__NUMBERS));
    TRD_TRY(trd__want_type(n, 2, "accumulator", trd__operand(n, 2)->dtype, &shape));
    results[0] = *trd__operand(n, 2);
    return TRD_OK;
}

static void scatter_add_rows_gradient(trd_builder *b, const trd_node *n, const trd_value *dz,
                                      const bool *needs, trd_value *dx)
{
    if (needs[1]) dx[1] = trd_cast(b, trd_gather_rows(b, dz[0], n->inputs[0]), trd__operand(n, 1)->dtype);
    if (n->input_count > 2 && needs[2]) dx[2] = dz[0];
}

static bool scatter_add_rows_accumulates(trd_builder *b, const trd_node *n, int result, trd_value accumulator,
                                         trd_value *results)
{
    if (n->input_count > 2) return false;
    trd_value inputs[3] = {n->inputs[0], n->inputs[1], accumulator};
    results[result] = trd__add_node(b, n->op, n->attr, inputs, 3);
    return true;
}

trd_value trd_scatter_add_rows(trd_builder *b, trd_value ids, trd_value updates, int64_t rows)
{
    return trd__add_node(b, &trd__op_scatter_add_rows, &(trd__rows_attr){rows}, (trd_value[]){ids, updates},
                         2);
}

const trd_op trd__op_scatter_add_rows = {.name = "scatter_add_rows",
                                         .min_inputs = 2,
                                         .max_inputs = 3,
                                         .results = 1,
                                         .attr_size = sizeof(trd__rows_attr),
                                         .flags = TRD__OP_ALIASES,
                                         .cost = TRD__COST_CHEAP,
                                         .alias_input = 2,
                                         .infer = scatter_add_rows_infer,
                                         .gradient = scatter_add_rows_gradient,
                                         .accumulates_into = scatter_add_rows_accumulates,
                                         .print = rows_print};

/* -- take_last and put_last -- */

static trd_status take_last_infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(trd__want_rank(n, 0, "x", TRD__ANY, 1));
    const trd__type *x = trd__operand(n, 0);
    trd_shape shape = trd__leading(&x->shape, x->shape.rank - 1);
    TRD_TRY(trd__want_type(n, 1, "index", TRD_I32, &shape));
    results[0] = *x;
    results[0].axes[shape.rank] = NULL;
    results[0].shape = shape;
    return TRD_OK;
}

static void take_last_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                               trd_value *dx)
{
    const trd_shape *shape = &trd__operand(n, 0)->shape;
    if (needs[0]) dx[0] = trd__put_last(b, dz[0], n->inputs[1], shape->dim[shape->rank - 1]);
}

trd_value trd_take_last(trd_builder *b, trd_value x, trd_value index)
{
    return trd__add_node(b, &trd__op_take_last, NULL, (trd_value[]){x, index}, 2);
}

const trd_op trd__op_take_last = {.name = "take_last",
                                  .min_inputs = 2,
                                  .max_inputs = 2,
                                  .results = 1,
                                  .cost = TRD__COST_CHEAP,
                                  .infer = take_last_infer,
                                  .gradient = take_last_gradient};

static trd_status put_last_infer(const trd_node *n, trd__type *results)
{
    const trd__rows_attr *attr = n->attr;
    TRD_TRY(trd__want(n, 0, "values", TRD__ANY));
    const trd__type *values = trd__operand(n, 0);
    TRD_TRY(trd__want_type(n, 1, "index", TRD_I32, &values->shape));
    if (values->shape.rank >= TRD_MAX_RANK) return trd__fail_shape(n, "values", "a rank below 8", values);
    results[0] = *values;
    results[0].shape.dim[results[0].shape.rank++] = attr->rows;
    return TRD_OK;
}

static void put_last_gradient(trd_builder *b, const trd_node *n, const trd_value *dz, const bool *needs,
                              trd_value *dx)
{
    if (needs[0]) dx[0] = trd_take_last(b, dz[0], n->inputs[1]);
}

trd_value trd__put_last(trd_builder *b, trd_value values, trd_value index, int64_t size)
{
    return trd__add_node(b, &trd__op_put_last, &(trd__rows_attr){size}, (trd_value[]){values, index}, 2);
}

const trd_op trd__op_put_last = {.name = "put_last",
                                 .min_inputs = 2,
                                 .max_inputs = 2,
                                 .results = 1,
                                 .attr_size = sizeof(trd__rows_attr),
                                 .cost = TRD__COST_CHEAP,
                                 .infer = put_last_infer,
                                 .gradient = put_last_gradient,
                                 .print = rows_print};

/* -- update_rows -- */

static trd_status update_rows_infer(const trd_node *n, trd__type *results)
{
    TRD_TRY(trd__want_rank(n, 0, "cache", TRD__ANY, 2));
    TRD_TRY(trd__want_rank(n, 1, "update", TRD__ANY, 2));
    const trd__type *cache = trd__operand(n, 0), *update = trd__operand(n, 1);
    trd_shape expected = cache->shape, batch = TRD__SHAPE(cache->shape.dim[0]);
    expected.dim[1] = update->shape.dim[1];
    TRD_TRY(trd__want_type(n, 1, "update", cache->dtype, &expected));
    TRD_TRY(trd__want_type(n, 2, "start", TRD_I32, &batch));
    results[0] = *cache;
    return TRD_OK;
}

trd_value trd_update_rows(trd_builder *b, trd_value cache, trd_value update, trd_value start)
{
    return trd__add_node(b, &trd__op_update_rows, NULL, (trd_value[]){cache, update, start}, 3);
}

const trd_op trd__op_update_rows = {.name = "update_rows",
                                    .min_inputs = 3,
                                    .max_inputs = 3,
                                    .results = 1,
                                    .flags = TRD__OP_ALIASES | TRD__OP_NOT_DIFFERENTIABLE,
                                    .cost = TRD__COST_CHEAP,
                                    .alias_input = 0,
                                    .infer = update_rows_infer};
