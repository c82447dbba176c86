/* Adafactor: a matrix keeps the means of its squared gradients over each row and each column instead of a
 * second moment of its own size; smaller matrices and vectors keep a full one.
 *
 * s = g^2 + eps; beta_t = 1 - t^-decay_rate, t from 1; r and c = beta_t * old + (1 - beta_t) * means of s
 * over rows and columns, v = r c^T / mean(r), or v itself the decayed mean of s; u = g / sqrt(v), divided by
 * max(1, rms(u) / clipping_threshold); p -= lr * (max(rms(p), 1e-3) * u + decay * p), the factor left out
 * when scale_by_parameter is off. Shazeer & Stern 2018; there is no momentum. */
#include <math.h>

#include "base/shape.h"
#include "nn/optimizer.h"

enum { ROW, COLUMN, FULL = 0 };
enum { KEEP, TAKE }; /* prepared: beta_t and 1 - beta_t */

static bool is_factored(const trd_optimizer_options *o, const trd__parameter *p)
{
    int rank = p->shape.rank, least = o->adafactor.min_dim_size_to_factor;
    return rank >= 2 && p->shape.dim[rank - 1] >= least && p->shape.dim[rank - 2] >= least;
}

static trd__optimizer_state without_axis(const trd__parameter *p, const char *name, int gone)
{
    trd__optimizer_state state = {.name = name, .dtype = TRD_F32};
    for (int axis = 0; axis < p->shape.rank; axis++) {
        if (axis == gone) continue;
        state.axes[state.shape.rank] = p->axes[axis];
        state.shape.dim[state.shape.rank++] = p->shape.dim[axis];
    }
    return state;
}

static int states(const trd_optimizer_options *o, const trd__parameter *p, trd__optimizer_state *states)
{
    if (!is_factored(o, p)) {
        states[FULL] = trd__optimizer_state_like(p, "v", TRD_F32);
        return 1;
    }
    states[ROW] = without_axis(p, "v_row", p->shape.rank - 1);
    states[COLUMN] = without_axis(p, "v_column", p->shape.rank - 2);
    return 2;
}

static trd_status check(const trd_optimizer_options *o)
{
    const trd_adafactor_options *a = &o->adafactor;
    TRD_TRY(trd__optimizer_check("adafactor_decay_rate", a->decay_rate, 0, INFINITY));
    TRD_TRY(trd__optimizer_check("adafactor_clipping_threshold", a->clipping_threshold, 0, INFINITY));
    TRD_TRY(trd__optimizer_check("adafactor_eps", a->eps, 1e-35, INFINITY));
    TRD_TRY(trd__optimizer_check("adafactor_min_dim_size_to_factor", a->min_dim_size_to_factor, 1, INFINITY));
    return trd__optimizer_check("adafactor_weight_decay", a->weight_decay, 0, INFINITY);
}

static double decay(const trd_optimizer_options *o, const trd__parameter *p)
{
    (void)p;
    return o->adafactor.weight_decay;
}

/* Each parameter's update is scaled by its own root mean square. */
static bool elementwise(const trd_optimizer_options *o, const trd__parameter *p)
{
    (void)o, (void)p;
    return false;
}

static void prepare(trd_builder *b, const trd_optimizer_options *o, trd__update_scalars *scalars)
{
    trd_value t = trd_cast(b, scalars->count, TRD_F64);
    trd_value take = trd_pow(b, t, trd_scalar(b, TRD_F64, -o->adafactor.decay_rate));
    scalars->prepared[TAKE] = trd_cast(b, take, TRD_F32);
    scalars->prepared[KEEP] = trd_cast(b, trd_sub(b, trd_scalar(b, TRD_F64, 1), take), TRD_F32);
}

static trd_value moment(trd_builder *b, const trd__update_scalars *scalars, trd_value old, trd_value x)
{
    return trd_add(b, trd_mul(b, old, scalars->prepared[KEEP]), trd_mul(b, x, scalars->prepared[TAKE]));
}

/* Mean over one axis, which is dropped or kept as 1. */
static trd_value mean(trd_builder *b, trd_value x, int axis, bool keep)
{
    trd_value sum = trd_reduce_sum(b, x, 1u << axis, keep, TRD_F32);
    return trd_mul(b, sum, trd__optimizer_f32(b, 1 / (double)trd_value_shape(x).dim[axis]));
}

/* x with an axis of size 1 put in. */
static trd_value unsqueezed(trd_builder *b, trd_value x, int axis)
{
    trd_shape shape = trd_value_shape(x);
    for (int i = shape.rank++; i > axis; i--) shape.dim[i] = shape.dim[i - 1];
    shape.dim[axis] = 1;
    return trd_reshape(b, x, shape);
}

/* g / sqrt(v), and the moments that v comes from. */
static trd_value scaled_gradient(trd_builder *b, const trd_optimizer_options *o,
                                 const trd__update_scalars *scalars, trd__parameter_update *u)
{
    int last = u->info->shape.rank - 1;
    trd_value squares = trd_square(b, u->gradient);
    squares = trd_add(b, squares, trd__optimizer_f32(b, o->adafactor.eps));
    if (!is_factored(o, u->info)) {
        u->new_states[FULL] = moment(b, scalars, u->states[FULL], squares);
        return trd_mul(b, u->gradient, trd_rsqrt(b, u->new_states[FULL]));
    }
    trd_value row = moment(b, scalars, u->states[ROW], mean(b, squares, last, false));
    trd_value column = moment(b, scalars, u->states[COLUMN], mean(b, squares, last - 1, false));
    trd_value row_factor = trd_rsqrt(b, trd_div(b, row, mean(b, row, last - 1, true)));
    trd_value scaled = trd_mul(b, u->gradient, unsqueezed(b, row_factor, last));
    u->new_states[ROW] = row;
    u->new_states[COLUMN] = column;
    return trd_mul(b, scaled, unsqueezed(b, trd_rsqrt(b, column), last - 1));
}

/* f64 scalar */
static trd_value root_mean_square(trd_builder *b, trd_value x)
{
    trd_shape shape = trd_value_shape(x);
    double count = (double)trd__shape_count(&shape);
    return trd_sqrt(b, trd_div(b, trd_sum_squares(b, x), trd_scalar(b, TRD_F64, count)));
}

static void update(trd_builder *b, const trd_optimizer_options *o, const trd__update_scalars *scalars,
                   trd__parameter_update *u)
{
    const trd_adafactor_options *a = &o->adafactor;
    trd_value step = scaled_gradient(b, o, scalars, u), factor = trd_scalar(b, TRD_F64, 1);
    if (a->clipping_threshold > 0) {
        trd_value over = trd_div(b, root_mean_square(b, step), trd_scalar(b, TRD_F64, a->clipping_threshold));
        factor = trd_div(b, factor, trd_max(b, over, factor));
    }
    if (a->scale_by_parameter) {
        trd_value size = root_mean_square(b, trd_cast(b, u->parameter, TRD_F32));
        factor = trd_mul(b, factor, trd_max(b, size, trd_scalar(b, TRD_F64, 1e-3)));
    }
    step = trd_mul(b, step, trd_cast(b, factor, TRD_F32));
    trd__optimizer_step(b, scalars->learning_rate, step, u);
}

const trd__optimizer_type trd__optimizer_adafactor = {.name = "adafactor",
                                                      .states = states,
                                                      .check = check,
                                                      .decay = decay,
                                                      .elementwise = elementwise,
                                                      .prepare = prepare,
                                                      .update = update};
