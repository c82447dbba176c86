/* log p(target) per row of hidden: log_softmax(hidden W^T / temperature)[target], 0 outside row_mask. The
 * gradient op forms the logits again, blockwise; where the cotangent is known up front (it does not depend on
 * the log-probabilities) merge_gradient lets that op stand for the forward one too, so the logits are formed
 * once. The second result is the log-sum-exp of the row's logits (a z-loss is made of it); a loss that
 * depends on it forms the logits twice. Rows outside the mask give 0 and take no part, whatever they hold. */
#include <stdio.h>

#include "ops/rules.h"

enum { HIDDEN, WEIGHT, TARGETS, ROW_MASK, D_LOGPROBS, ACCUMULATOR, D_LOG_SUMS, GRAD_INPUTS, INPUTS = 4 };
enum { LOGPROBS, LOG_SUMS, RESULTS };
enum { D_HIDDEN = 1, D_WEIGHT, GRAD_LOG_SUMS, GRAD_RESULTS };

/* Checks the operands both ops have; rows is hidden's shape without its last axis. */
static trd_status check_operands(const trd_node *n, trd_shape *rows)
{
    const trd__token_logprobs_attr *attr = n->attr;
    TRD_TRY(trd__want_rank(n, HIDDEN, "hidden", TRD__FLOATS, 1));
    const trd__type *hidden = trd__operand(n, HIDDEN), *weight = trd__operand(n, WEIGHT);
    *rows = trd__leading(&hidden->shape, hidden->shape.rank - 1);
    trd_shape expected =
        TRD__SHAPE(weight->shape.rank ? weight->shape.dim[0] : 0, hidden->shape.dim[rows->rank]);
    TRD_TRY(trd__want_type(n, WEIGHT, "weight", hidden->dtype, &expected));
    TRD_TRY(trd__want_type(n, TARGETS, "targets", TRD_I32, rows));
    if (trd__operand(n, ROW_MASK)) TRD_TRY(trd__want_type(n, ROW_MASK, "row_mask", TRD_BOOL, rows));
    if (attr->temperature > 0) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT, "%s: expected a temperature above 0, found %g", n->op->name,
                     attr->temperature);
}

static trd__type logprobs_type(const trd_node *n, const trd_shape *rows)
{
    const trd__type *hidden = trd__operand(n, HIDDEN);
    trd__type type = trd__plain_type(trd__compute_dtype(hidden->dtype), rows);
    for (int i = 0; i < rows->rank; i++) type.axes[i] = hidden->axes[i];
    return type;
}

static trd_status infer(const trd_node *n, trd__type *results)
{
    trd_shape rows;
    TRD_TRY(check_operands(n, &rows));
    results[LOGPROBS] = results[LOG_SUMS] = logprobs_type(n, &rows);
    return TRD_OK;
}

static trd_status grad_infer(const trd_node *n, trd__type *results)
{
    const trd__token_logprobs_attr *attr = n->attr;
    trd_shape rows;
    TRD_TRY(check_operands(n, &rows));
    results[LOGPROBS] = logprobs_type(n, &rows);
    results[GRAD_LOG_SUMS] = results[LOGPROBS];
    TRD_TRY(trd__want_type(n, D_LOGPROBS, "d_logprobs", results[LOGPROBS].dtype, &rows));
    if (trd__operand(n, D_LOG_SUMS))
        TRD_TRY(trd__want_type(n, D_LOG_SUMS, "d_log_sums", results[LOGPROBS].dtype, &rows));
    results[D_HIDDEN] = *trd__operand(n, HIDDEN);
    results[D_WEIGHT] = *trd__operand(n, WEIGHT);
    results[D_WEIGHT].dtype = attr->weight_grad_dtype;
    if (!trd__operand(n, ACCUMULATOR)) return TRD_OK;
    return trd__want_type(n, ACCUMULATOR, "accumulator", attr->weight_grad_dtype, &results[D_WEIGHT].shape);
}

/* The gradient op of the forward node n. */
static const trd_node *grad_node(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs,
                                 bool merged)
{
    trd__token_logprobs_attr attr = *(const trd__token_logprobs_attr *)n->attr;
    attr.weight_grad_dtype = trd__operand(n, WEIGHT)->dtype;
    attr.merged = merged;
    attr.hidden_gradient = needs[HIDDEN];
    attr.weight_gradient = needs[WEIGHT];
    trd_value d_logprobs = dy[LOGPROBS];
    if (trd_is_null(d_logprobs))
        d_logprobs = trd_constant_fill(b, n->results[LOGPROBS].dtype, n->results[LOGPROBS].shape, 0);
    trd_value inputs[GRAD_INPUTS] = {n->inputs[HIDDEN],   n->inputs[WEIGHT], n->inputs[TARGETS],
                                     n->inputs[ROW_MASK], d_logprobs,        (trd_value){NULL, 0},
                                     dy[LOG_SUMS]};
    return trd__node_add(b, &trd__op_token_logprobs_grad, &attr, inputs, GRAD_INPUTS);
}

static void take_gradients(const trd_node *grad, const bool *needs, trd_value *dx)
{
    if (needs[HIDDEN]) dx[HIDDEN] = trd__result(grad, D_HIDDEN);
    if (needs[WEIGHT]) dx[WEIGHT] = trd__result(grad, D_WEIGHT);
}

static void gradient(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs, trd_value *dx)
{
    take_gradients(grad_node(b, n, dy, needs, false), needs, dx);
}

static bool merge_gradient(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs,
                           trd_value *results, trd_value *dx)
{
    const trd_node *grad = grad_node(b, n, dy, needs, true);
    take_gradients(grad, needs, dx);
    results[LOGPROBS] = trd__result(grad, LOGPROBS);
    results[LOG_SUMS] = trd__result(grad, GRAD_LOG_SUMS);
    return true;
}

static bool accumulates_into(trd_builder *b, const trd_node *n, int result, trd_value accumulator,
                             trd_value *results)
{
    if (result != D_WEIGHT || !trd_is_null(n->inputs[ACCUMULATOR])) return false;
    trd__token_logprobs_attr attr = *(const trd__token_logprobs_attr *)n->attr;
    attr.weight_grad_dtype = trd_value_dtype(accumulator);
    trd_value inputs[GRAD_INPUTS];
    for (int i = 0; i < GRAD_INPUTS; i++) inputs[i] = n->inputs[i];
    inputs[ACCUMULATOR] = accumulator;
    const trd_node *grad = trd__node_add(b, n->op, &attr, inputs, GRAD_INPUTS);
    for (int i = 0; i < GRAD_RESULTS; i++) results[i] = trd__result(grad, i);
    return true;
}

/* One product over all rows; masked rows are counted, they are known at run time only. */
static double flops(const trd_node *n)
{
    const trd_shape *hidden = &trd__operand(n, HIDDEN)->shape, *weight = &trd__operand(n, WEIGHT)->shape;
    return 2.0 * (double)trd__dims_product(hidden, 0, hidden->rank) * (double)weight->dim[0];
}

/* One product for each gradient; one more when the node stands for the forward op too. */
static double grad_flops(const trd_node *n)
{
    const trd__token_logprobs_attr *attr = n->attr;
    return (attr->merged + attr->hidden_gradient + attr->weight_gradient) * flops(n);
}

/* -- expansion -- */

/* What both expansions need, rows flattened: hidden (R, C) and weight (V, C) in the compute dtype, targets
 * and mask (R), probabilities (R, V), log-probabilities and log-sum-exps (R). */
typedef struct softmax {
    trd_value hidden, weight, targets, mask, probabilities, logprobs, log_sums;
} softmax;

/* Names the axes of v (R, V): its rows lie where the batch lies, its columns where the vocabulary does. */
static trd_value name_logits(trd_builder *b, const trd_node *n, trd_value v)
{
    const char *axes[] = {trd__operand(n, HIDDEN)->axes[0], trd__operand(n, WEIGHT)->axes[0]};
    return trd_axes(b, v, axes);
}

static softmax build_softmax(trd_builder *b, const trd_node *n)
{
    const trd__token_logprobs_attr *attr = n->attr;
    const trd__type *type = trd__operand(n, HIDDEN);
    trd_dtype wide = trd__compute_dtype(type->dtype);
    int64_t rows = trd__dims_product(&type->shape, 0, type->shape.rank - 1);
    softmax s = {.targets = trd_reshape(b, n->inputs[TARGETS], TRD__SHAPE(rows)),
                 .mask = n->inputs[ROW_MASK]};
    trd_value hidden = trd__flatten_rows(b, n->inputs[HIDDEN]), column = s.mask;
    if (!trd_is_null(s.mask)) {
        s.mask = trd_reshape(b, s.mask, TRD__SHAPE(rows));
        column = trd_reshape(b, s.mask, TRD__SHAPE(rows, 1));
    }
    s.hidden = trd_cast(b, trd__mask(b, column, hidden), wide);
    s.weight = trd_cast(b, n->inputs[WEIGHT], wide);
    s.targets = trd__mask(b, s.mask, s.targets);
    trd_value logits = name_logits(b, n, trd_matmul(b, s.hidden, s.weight, false, true, wide));
    logits = trd__times(b, logits, 1 / attr->temperature);
    trd_value largest = trd_reduce_max(b, logits, 1u << 1, true), shifted = trd_sub(b, logits, largest);
    trd_value weights = trd_exp(b, shifted), total = trd__sum_last(b, weights);
    s.probabilities = trd_div(b, weights, total);
    trd_value target = trd_take_last(b, shifted, s.targets);
    trd_value log_total = trd_log(b, trd_reshape(b, total, TRD__SHAPE(rows)));
    s.logprobs = trd__mask(b, s.mask, trd_sub(b, target, log_total));
    s.log_sums = trd__mask(b, s.mask, trd_add(b, trd_reshape(b, largest, TRD__SHAPE(rows)), log_total));
    return s;
}

static void expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    softmax s = build_softmax(b, n);
    results[LOGPROBS] = trd_reshape(b, s.logprobs, n->results[LOGPROBS].shape);
    results[LOG_SUMS] = trd_reshape(b, s.log_sums, n->results[LOG_SUMS].shape);
}

static void grad_expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    const trd__token_logprobs_attr *attr = n->attr;
    softmax s = build_softmax(b, n);
    results[LOGPROBS] = trd_reshape(b, s.logprobs, n->results[LOGPROBS].shape);
    results[GRAD_LOG_SUMS] = trd_reshape(b, s.log_sums, n->results[GRAD_LOG_SUMS].shape);
    trd_dtype wide = trd_value_dtype(s.hidden);
    trd_shape rows = trd_value_shape(s.targets);
    trd_value d_logprobs = trd__mask(b, s.mask, trd_reshape(b, n->inputs[D_LOGPROBS], rows));
    trd_value d_all = d_logprobs; /* what every logit takes, times its probability */
    if (!trd_is_null(n->inputs[D_LOG_SUMS]))
        d_all = trd_sub(b, d_all, trd__mask(b, s.mask, trd_reshape(b, n->inputs[D_LOG_SUMS], rows)));
    d_logprobs = trd__times(b, d_logprobs, 1 / attr->temperature);
    d_all = trd__times(b, d_all, 1 / attr->temperature);
    trd_value chosen = trd__put_last(b, d_logprobs, s.targets, trd_value_shape(s.weight).dim[0]);
    trd_value spread = trd_mul(b, s.probabilities, trd__unsqueeze(b, d_all, 1));
    trd_value d_logits = name_logits(b, n, trd_sub(b, chosen, spread));
    trd_value d_hidden = trd_matmul(b, d_logits, s.weight, false, false, wide);
    const trd__type *hidden = &n->results[D_HIDDEN];
    results[D_HIDDEN] = trd_reshape(b, trd_cast(b, d_hidden, hidden->dtype), hidden->shape);
    trd_value d_weight = trd_matmul(b, d_logits, s.hidden, true, false, wide);
    results[D_WEIGHT] = trd_is_null(n->inputs[ACCUMULATOR])
                            ? trd_cast(b, d_weight, attr->weight_grad_dtype)
                            : trd_accumulate(b, n->inputs[ACCUMULATOR], d_weight);
}

static void print(const trd_node *n, char *text, size_t bytes)
{
    const trd__token_logprobs_attr *attr = n->attr;
    snprintf(text, bytes, "temperature=%g merged=%d", attr->temperature, attr->merged);
}

trd_value trd_token_logprobs(trd_builder *b, trd_value hidden, trd_value weight, trd_value targets,
                             trd_value row_mask, double temperature, trd_value *log_sums)
{
    trd__token_logprobs_attr attr = {.temperature = temperature};
    trd_value inputs[INPUTS] = {hidden, weight, targets, row_mask};
    const trd_node *n = trd__node_add(b, &trd__op_token_logprobs, &attr, inputs, INPUTS);
    if (log_sums) *log_sums = trd__result(n, LOG_SUMS);
    return trd__result(n, LOGPROBS);
}

const trd_op trd__op_token_logprobs = {.name = "token_logprobs",
                                       .min_inputs = INPUTS,
                                       .max_inputs = INPUTS,
                                       .optional_inputs = 1u << ROW_MASK,
                                       .results = RESULTS,
                                       .attr_size = sizeof(trd__token_logprobs_attr),
                                       .cost = TRD__COST_PRODUCT,
                                       .infer = infer,
                                       .gradient = gradient,
                                       .expand = expand,
                                       .flops = flops,
                                       .merge_gradient = merge_gradient,
                                       .print = print};

const trd_op trd__op_token_logprobs_grad = {.name = "token_logprobs_grad",
                                            .min_inputs = GRAD_INPUTS,
                                            .max_inputs = GRAD_INPUTS,
                                            .optional_inputs =
                                                1u << ROW_MASK | 1u << ACCUMULATOR | 1u << D_LOG_SUMS,
                                            .results = GRAD_RESULTS,
                                            .attr_size = sizeof(trd__token_logprobs_attr),
                                            .flags = TRD__OP_ALIASES,
                                            .cost = TRD__COST_PRODUCT,
                                            .alias_input = ACCUMULATOR,
                                            .infer = grad_infer,
                                            .expand = grad_expand,
                                            .flops = grad_flops,
                                            .accumulates_into = accumulates_into,
                                            .print = print};
