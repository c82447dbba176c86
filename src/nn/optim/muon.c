/* Muon: the momentum of a matrix is replaced by its nearest orthogonal matrix, approximately; every other
 * parameter, the embedding and the output head take AdamW's step.
 *
 * m = beta * m + (1 - beta) * g; with Nesterov's look ahead and both terms corrected for their start,
 * x = beta * m / (1 - beta^(t+1)) + (1 - beta) * g / (1 - beta^t). Newton-Schulz: x /= |x| + eps, then five
 * times x = a x + (b A + c A^2) x with A = x x^T and (a, b, c) chosen for a steep start, which leaves
 * singular values between about 0.7 and 1.2. p -= lr * (s * x + decay * p) with s = sqrt(max(1, rows /
 * columns)), or sqrt(max(rows, columns)) * consistent_rms. Jordan et al. 2024; Liu et al. 2025. The rest
 * looks ahead in its first moment in the same way (Dozat 2016), as optax's muon, and so MaxText's, does. */
#include <math.h>
#include <string.h>

#include "nn/optim/adam.h"

enum { MU = TRD__ADAM_MU, NU = TRD__ADAM_NU, NEWTON_SCHULZ_STEPS = 5 };
/* prepared: corrections of the momentum, of Adam's first moment (a step ahead and now) and of its second */
enum { MUON_AHEAD, MUON_NOW, ADAM_AHEAD, ADAM_NOW, ADAM_NU };

static const double coefficients[] = {3.4445, -4.7750, 2.0315};

/* A product's weight: a matrix that is no table of the vocabulary. */
static bool is_matrix(const trd__parameter *p)
{
    if (p->shape.rank != 2) return false;
    for (int axis = 0; axis < 2; axis++)
        if (p->axes[axis] && strcmp(p->axes[axis], "vocab") == 0) return false;
    return true;
}

static int states(const trd_optimizer_options *o, const trd__parameter *p, trd__optimizer_state *states)
{
    int count = trd__adam_states(o, p, states);
    return is_matrix(p) ? 1 : count;
}

static trd_status check(const trd_optimizer_options *o)
{
    TRD_TRY(trd__adam_check(o));
    TRD_TRY(trd__optimizer_check("muon_beta", o->muon.beta, 0, 1));
    TRD_TRY(trd__optimizer_check("muon_weight_decay", o->muon.weight_decay, 0, INFINITY));
    return trd__optimizer_check("muon_consistent_rms", o->muon.consistent_rms, 0, INFINITY);
}

static double decay(const trd_optimizer_options *o, const trd__parameter *p)
{
    return is_matrix(p) ? o->muon.weight_decay : o->weight_decay;
}

static bool elementwise(const trd_optimizer_options *o, const trd__parameter *p)
{
    (void)o;
    return !is_matrix(p);
}

static void prepare(trd_builder *b, const trd_optimizer_options *o, trd__update_scalars *scalars)
{
    trd_value *prepared = scalars->prepared, count = scalars->count;
    prepared[MUON_AHEAD] = trd__optimizer_correction(b, o->muon.beta, count, 1);
    prepared[MUON_NOW] = trd__optimizer_correction(b, o->muon.beta, count, 0);
    prepared[ADAM_AHEAD] = trd__optimizer_correction(b, o->b1, count, 1);
    prepared[ADAM_NOW] = trd__optimizer_correction(b, o->b1, count, 0);
    prepared[ADAM_NU] = trd__optimizer_correction(b, o->b2, count, 0);
}

static trd_value times(trd_builder *b, trd_value x, double factor)
{
    return trd_mul(b, x, trd__optimizer_f32(b, factor));
}

/* The moment and the gradient, each with its own correction: ahead[0] and ahead[1]. */
static trd_value look_ahead(trd_builder *b, trd_value moment, trd_value gradient, double beta,
                            const trd_value *ahead)
{
    return trd__optimizer_moment(b, trd_mul(b, moment, ahead[0]), beta, trd_mul(b, gradient, ahead[1]));
}

/* The products are made on the smaller side, which gives the same result. */
static trd_value orthogonalized(trd_builder *b, trd_value x, double eps)
{
    trd_shape shape = trd_value_shape(x);
    bool wide = shape.dim[0] <= shape.dim[1];
    trd_value norm = trd_cast(b, trd_sqrt(b, trd_sum_squares(b, x)), TRD_F32);
    x = trd_div(b, x, trd_add(b, norm, trd__optimizer_f32(b, eps)));
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++) {
        trd_value gram = trd_matmul(b, x, x, !wide, wide, TRD_F32);
        trd_value square = trd_matmul(b, gram, gram, false, false, TRD_F32);
        trd_value factor = trd_add(b, times(b, gram, coefficients[1]), times(b, square, coefficients[2]));
        trd_value turned = wide ? trd_matmul(b, factor, x, false, false, TRD_F32)
                                : trd_matmul(b, x, factor, false, false, TRD_F32);
        x = trd_add(b, times(b, x, coefficients[0]), turned);
    }
    return x;
}

static double step_scale(const trd_optimizer_options *o, const trd__parameter *p)
{
    double rows = (double)p->shape.dim[0], columns = (double)p->shape.dim[1];
    if (o->muon.consistent_rms > 0) return sqrt(fmax(rows, columns)) * o->muon.consistent_rms;
    return sqrt(fmax(1, rows / columns));
}

static void update(trd_builder *b, const trd_optimizer_options *o, const trd__update_scalars *scalars,
                   trd__parameter_update *u)
{
    bool matrix = is_matrix(u->info);
    double beta = matrix ? o->muon.beta : o->b1;
    trd_value mu = trd__optimizer_moment(b, trd_cast(b, u->states[MU], TRD_F32), beta, u->gradient), step;
    trd_value ahead =
        look_ahead(b, mu, u->gradient, beta, &scalars->prepared[matrix ? MUON_AHEAD : ADAM_AHEAD]);
    if (matrix) {
        step = times(b, orthogonalized(b, ahead, o->eps), step_scale(o, u->info));
    } else {
        trd_value nu = trd__optimizer_moment(b, u->states[NU], o->b2, trd_square(b, u->gradient));
        step = trd__adam_step(b, o, ahead, trd_mul(b, nu, scalars->prepared[ADAM_NU]));
        u->new_states[NU] = nu;
    }
    trd__optimizer_step(b, scalars->learning_rate, step, u);
    u->new_states[MU] = trd_cast(b, mu, o->mu_dtype);
}

const trd__optimizer_type trd__optimizer_muon = {.name = "muon",
                                                 .states = states,
                                                 .check = check,
                                                 .decay = decay,
                                                 .elementwise = elementwise,
                                                 .prepare = prepare,
                                                 .update = update};
