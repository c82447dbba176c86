/* Token log-probabilities: the variant lists and the plain kernels, which take every float dtype and work in
 * float64. They hold no logits: each pass forms a row's logits again, one at a time. */
#include "backend/cpu/token_logprobs.h"

#include <math.h>

trd__logprobs_dims trd__logprobs_dims_of(const trd_node *n)
{
    const trd_shape *hidden = &trd__type_of(n->inputs[0])->shape;
    const trd_shape *weight = &trd__type_of(n->inputs[1])->shape;
    trd__logprobs_dims d = {.rows = 1, .channels = weight->dim[1], .vocabulary = weight->dim[0]};
    for (int axis = 0; axis < hidden->rank - 1; axis++) d.rows *= hidden->dim[axis];
    d.hidden_dtype = trd__type_of(n->inputs[0])->dtype;
    d.weight_dtype = trd__type_of(n->inputs[1])->dtype;
    d.temperature = ((const trd__token_logprobs_attr *)n->attr)->temperature;
    return d;
}

bool trd__logprobs_row_on(const trd__cpu_call *call, int64_t row)
{
    const uint8_t *mask = call->inputs[3];
    return !mask || mask[row];
}

static double logit(const trd__cpu_call *call, const trd__logprobs_dims *d, int64_t row, int64_t token)
{
    double sum = 0;
    for (int64_t c = 0; c < d->channels; c++)
        sum += trd__load(d->hidden_dtype, call->inputs[0], (size_t)(row * d->channels + c)) *
               trd__load(d->weight_dtype, call->inputs[1], (size_t)(token * d->channels + c));
    return sum / d->temperature;
}

static double log_sum_exp(const trd__cpu_call *call, const trd__logprobs_dims *d, int64_t row)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t token = 0; token < d->vocabulary; token++) {
        double x = logit(call, d, row, token);
        if (x > largest) {
            sum *= exp(largest - x);
            largest = x;
        }
        sum += exp(x - largest);
    }
    return largest + log(sum);
}

/* Results `logprobs` (0) and `log_sums` (its number) of a row. */
static void store_results(const trd__cpu_call *call, const trd__logprobs_dims *d, int64_t row, double log_sum,
                          int log_sums)
{
    if (call->outputs[log_sums])
        trd__store(call->node->results[log_sums].dtype, call->outputs[log_sums], (size_t)row, log_sum);
    if (!call->outputs[0]) return;
    int32_t target = ((const int32_t *)call->inputs[2])[row];
    double value = trd__logprobs_row_on(call, row) ? logit(call, d, row, target) - log_sum : 0.0;
    trd__store(call->node->results[0].dtype, call->outputs[0], (size_t)row, value);
}

static void run_forward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    trd__logprobs_dims d = trd__logprobs_dims_of(call->node);
    int64_t begin, end;
    trd__partition(call->worker, call->workers, d.rows, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++)
        store_results(call, &d, row, trd__logprobs_row_on(call, row) ? log_sum_exp(call, &d, row) : 0.0, 1);
}

/* d loss / d (hidden . weight[token]) of a row that is on. */
static double logit_gradient(const trd__cpu_call *call, const trd__logprobs_dims *d, int64_t row,
                             int64_t token, double log_sum)
{
    trd_dtype dtype = trd__type_of(call->node->inputs[4])->dtype;
    double dy = trd__load(dtype, call->inputs[4], (size_t)row), all = dy;
    if (call->inputs[6]) all -= trd__load(dtype, call->inputs[6], (size_t)row);
    double p = exp(logit(call, d, row, token) - log_sum);
    bool chosen = ((const int32_t *)call->inputs[2])[row] == token;
    return ((chosen ? dy : 0.0) - p * all) / d->temperature;
}

static void hidden_gradient(const trd__cpu_call *call, const trd__logprobs_dims *d, int64_t row,
                            double log_sum, double *sum)
{
    for (int64_t c = 0; c < d->channels; c++) sum[c] = 0;
    if (trd__logprobs_row_on(call, row))
        for (int64_t token = 0; token < d->vocabulary; token++) {
            double g = logit_gradient(call, d, row, token, log_sum);
            for (int64_t c = 0; c < d->channels; c++)
                sum[c] += g * trd__load(d->weight_dtype, call->inputs[1], (size_t)(token * d->channels + c));
        }
    for (int64_t c = 0; c < d->channels; c++)
        trd__store(d->hidden_dtype, call->outputs[1], (size_t)(row * d->channels + c), sum[c]);
}

static void weight_gradient(const trd__cpu_call *call, const trd__logprobs_dims *d, int64_t token,
                            const double *log_sums, double *sum)
{
    trd_dtype dtype = call->node->results[2].dtype;
    const void *accumulator = call->node->input_count > 5 ? call->inputs[5] : NULL;
    for (int64_t c = 0; c < d->channels; c++) sum[c] = 0;
    for (int64_t row = 0; row < d->rows; row++) {
        if (!trd__logprobs_row_on(call, row)) continue;
        double g = logit_gradient(call, d, row, token, log_sums[row]);
        for (int64_t c = 0; c < d->channels; c++)
            sum[c] += g * trd__load(d->hidden_dtype, call->inputs[0], (size_t)(row * d->channels + c));
    }
    for (int64_t c = 0; c < d->channels; c++) {
        size_t out = (size_t)(token * d->channels + c);
        trd__store(dtype, call->outputs[2], out,
                   sum[c] + (accumulator ? trd__load(dtype, accumulator, out) : 0.0));
    }
}

static trd_status plan_backward(const trd_node *n, trd__cpu_plan *plan)
{
    trd__logprobs_dims d = trd__logprobs_dims_of(n);
    plan->worker_bytes = (size_t)d.channels * sizeof(double);
    plan->shared_bytes = (size_t)d.rows * sizeof(double);
    plan->phases = 2;
    if (n->input_count > 5 && n->inputs[5].node) plan->in_place[2] = 5 + 1;
    return TRD_OK;
}

/* Phase 0: log-sum-exp, log-probability and d_hidden of each row. Phase 1: d_weight of each token. */
static void run_backward(const trd__cpu_call *call, int phase)
{
    trd__logprobs_dims d = trd__logprobs_dims_of(call->node);
    double *log_sums = call->shared_scratch;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, phase == 0 ? d.rows : d.vocabulary, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        if (phase == 1) {
            if (call->outputs[2]) weight_gradient(call, &d, i, log_sums, call->worker_scratch);
            continue;
        }
        log_sums[i] = trd__logprobs_row_on(call, i) ? log_sum_exp(call, &d, i) : 0.0;
        store_results(call, &d, i, log_sums[i], 3);
        if (call->outputs[1]) hidden_gradient(call, &d, i, log_sums[i], call->worker_scratch);
    }
}

static trd_status plan_forward(const trd_node *n, trd__cpu_plan *plan)
{
    (void)n;
    plan->workers = 0;
    return TRD_OK;
}

static const trd__cpu_kernel forward = {.name = "reference", .plan = plan_forward, .run = run_forward};
static const trd__cpu_kernel backward = {.name = "reference", .plan = plan_backward, .run = run_backward};
static const trd__cpu_kernel *const forward_variants[] = {&trd__token_logprobs_blocks, &forward, NULL};
static const trd__cpu_kernel *const backward_variants[] = {&trd__token_logprobs_grad_blocks, &backward, NULL};

const trd__cpu_op trd__cpu_token_logprobs[] = {
    {.op = &trd__op_token_logprobs, .variants = forward_variants},
    {.op = &trd__op_token_logprobs_grad, .variants = backward_variants},
    {0}};
