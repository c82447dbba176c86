/* Adam with bias-corrected decays, as Pax and MaxText have it: beta_t = beta * (1 - beta^(t-1)) / (1 -
 * beta^t), t from 1; m = beta1_t * m + (1 - beta1_t) * g; v = beta2_t * v + (1 - beta2_t) * g^2; p -= lr * (m
 * / (sqrt(v + eps_root) + eps) + decay * p). Shazeer & Stern 2018, section 7.1. The moments are AdamW's
 * divided by 1 - beta^t and need no further correction. */
#include "nn/optim/adam.h"

enum { MU = TRD__ADAM_MU, NU = TRD__ADAM_NU };
enum { KEEP_MU, TAKE_MU, KEEP_NU, TAKE_NU }; /* prepared: beta_t and 1 - beta_t of each moment */

/* beta_t and its complement, each rounded once from f64. */
static void corrected_decay(trd_builder *b, double beta, trd_value count, trd_value *keep)
{
    trd_value t = trd_cast(b, count, TRD_F64), one = trd_scalar(b, TRD_F64, 1);
    trd_value factor = trd_scalar(b, TRD_F64, beta);
    trd_value before = trd_sub(b, one, trd_pow(b, factor, trd_sub(b, t, one)));
    trd_value decay = trd_div(b, trd_mul(b, factor, before), trd_sub(b, one, trd_pow(b, factor, t)));
    keep[0] = trd_cast(b, decay, TRD_F32);
    keep[1] = trd_cast(b, trd_sub(b, one, decay), TRD_F32);
}

static void prepare(trd_builder *b, const trd_optimizer_options *o, trd__update_scalars *scalars)
{
    corrected_decay(b, o->b1, scalars->count, &scalars->prepared[KEEP_MU]);
    corrected_decay(b, o->b2, scalars->count, &scalars->prepared[KEEP_NU]);
}

static trd_value moment(trd_builder *b, trd_value old, trd_value x, const trd_value *keep)
{
    return trd_add(b, trd_mul(b, old, keep[0]), trd_mul(b, x, keep[1]));
}

static void update(trd_builder *b, const trd_optimizer_options *o, const trd__update_scalars *scalars,
                   trd__parameter_update *u)
{
    const trd_value *s = scalars->prepared;
    trd_value mu = moment(b, trd_cast(b, u->states[MU], TRD_F32), u->gradient, &s[KEEP_MU]);
    trd_value nu = moment(b, u->states[NU], trd_square(b, u->gradient), &s[KEEP_NU]);
    trd__optimizer_step(b, scalars->learning_rate, trd__adam_step(b, o, mu, nu), u);
    u->new_states[MU] = trd_cast(b, mu, o->mu_dtype);
    u->new_states[NU] = nu;
}

const trd__optimizer_type trd__optimizer_adam_pax = {.name = "adam_pax",
                                                     .states = trd__adam_states,
                                                     .check = trd__adam_check,
                                                     .decay = trd__adam_decay,
                                                     .prepare = prepare,
                                                     .update = update};
