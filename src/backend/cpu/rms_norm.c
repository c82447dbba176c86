/* rms_norm and its gradient: the variant lists and the plain kernels, which take every float dtype and work
 * in float64. */
#include "backend/cpu/rms_norm.h"

#include <math.h>

trd__norm_dims trd__norm_dims_of(const trd_node *n)
{
    const trd_shape *x = &trd__type_of(n->inputs[0])->shape;
    trd__norm_dims d = {.rows = 1, .channels = x->dim[x->rank - 1]};
    for (int axis = 0; axis < x->rank - 1; axis++) d.rows *= x->dim[axis];
    d.eps = ((const trd__rms_norm_attr *)n->attr)->eps;
    d.dtype = trd__type_of(n->inputs[0])->dtype;
    d.scale_dtype = trd__type_of(n->inputs[1])->dtype;
    return d;
}

/* 1 / sqrt(mean(x^2) + eps) of a row. */
static double inverse_rms(const trd__cpu_call *call, const trd__norm_dims *d, size_t row_at)
{
    double sum = 0;
    for (int64_t c = 0; c < d->channels; c++) {
        double x = trd__load(d->dtype, call->inputs[0], row_at + (size_t)c);
        sum += x * x;
    }
    return 1.0 / sqrt(sum / (double)d->channels + d->eps);
}

static void run_forward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    trd__norm_dims d = trd__norm_dims_of(call->node);
    for (int64_t row = 0; row < d.rows; row++) {
        size_t row_at = (size_t)(row * d.channels);
        double inverse = inverse_rms(call, &d, row_at);
        for (size_t c = 0; c < (size_t)d.channels; c++)
            trd__store(d.dtype, call->outputs[0], row_at + c,
                       trd__load(d.dtype, call->inputs[0], row_at + c) * inverse *
                           trd__load(d.scale_dtype, call->inputs[1], c));
    }
}

static trd_status plan_forward(const trd_node *n, trd__cpu_plan *plan)
{
    (void)n;
    plan->workers = 1;
    plan->in_place[0] = 0 + 1;
    return TRD_OK;
}

static trd_status plan_backward(const trd_node *n, trd__cpu_plan *plan)
{
    plan->workers = 1;
    plan->worker_bytes = (size_t)trd__norm_dims_of(n).channels * sizeof(double);
    if (n->input_count > 3 && n->inputs[3].node) plan->in_place[1] = 3 + 1;
    return TRD_OK;
}

/* With r = inverse rms and g = scale * dy: dx = r g - x r^3 mean(g x), d_scale = sum over rows of dy x r. */
static void backward_row(const trd__cpu_call *call, const trd__norm_dims *d, size_t row_at, double *d_scale)
{
    double r = inverse_rms(call, d, row_at), dot = 0;
    for (size_t c = 0; c < (size_t)d->channels; c++) {
        double x = trd__load(d->dtype, call->inputs[0], row_at + c);
        double dy = trd__load(d->dtype, call->inputs[2], row_at + c);
        dot += dy * trd__load(d->scale_dtype, call->inputs[1], c) * x;
        d_scale[c] += dy * x * r;
    }
    if (!call->outputs[0]) return;
    double shared = r * r * r * dot / (double)d->channels;
    for (size_t c = 0; c < (size_t)d->channels; c++) {
        double g =
            trd__load(d->dtype, call->inputs[2], row_at + c) * trd__load(d->scale_dtype, call->inputs[1], c);
        trd__store(d->dtype, call->outputs[0], row_at + c,
                   r * g - trd__load(d->dtype, call->inputs[0], row_at + c) * shared);
    }
}

static void run_backward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    trd__norm_dims d = trd__norm_dims_of(call->node);
    const void *accumulator = call->node->input_count > 3 ? call->inputs[3] : NULL;
    trd_dtype out = call->node->results[1].dtype;
    double *d_scale = call->worker_scratch;
    for (int64_t c = 0; c < d.channels; c++) d_scale[c] = 0;
    for (int64_t row = 0; row < d.rows; row++) backward_row(call, &d, (size_t)(row * d.channels), d_scale);
    if (!call->outputs[1]) return;
    for (size_t c = 0; c < (size_t)d.channels; c++)
        trd__store(out, call->outputs[1], c,
                   d_scale[c] + (accumulator ? trd__load(out, accumulator, c) : 0.0));
}

static const trd__cpu_kernel forward = {.name = "reference", .plan = plan_forward, .run = run_forward};
static const trd__cpu_kernel backward = {.name = "reference", .plan = plan_backward, .run = run_backward};
static const trd__cpu_kernel *const forward_variants[] = {&trd__rms_norm_rows, &forward, NULL};
static const trd__cpu_kernel *const backward_variants[] = {&trd__rms_norm_grad_rows, &backward, NULL};

const trd__cpu_op trd__cpu_rms_norm[] = {{.op = &trd__op_rms_norm, .variants = forward_variants},
                                         {.op = &trd__op_rms_norm_grad, .variants = backward_variants},
                                         {0}};
