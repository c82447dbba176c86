/* AdamW: p -= lr * (m_hat / (sqrt(v_hat) + eps) + decay * p), bias-corrected, t from 1. Kingma & Ba 2015;
 * Loshchilov & Hutter 2019. */
#include "nn/optimizer.h"

enum { MU, NU };

static int states(const trd_optimizer_options *o, const trd__parameter *p, trd__optimizer_state *states)
{
    states[MU] = trd__optimizer_state_like(p, "mu", o->mu_dtype);
    states[NU] = trd__optimizer_state_like(p, "nu", TRD_F32);
    return 2;
}

static trd_status check(const trd_optimizer_options *o)
{
    if (!(o->b1 >= 0 && o->b1 < 1))
        return trd__fail(TRD_INVALID_ARGUMENT, "adam_b1: expected 0 <= b1 < 1, found %g", o->b1);
    if (!(o->b2 >= 0 && o->b2 < 1))
        return trd__fail(TRD_INVALID_ARGUMENT, "adam_b2: expected 0 <= b2 < 1, found %g", o->b2);
    if (!(o->eps >= 0))
        return trd__fail(TRD_INVALID_ARGUMENT, "adam_eps: expected at least 0, found %g", o->eps);
    return TRD_OK;
}

static trd_value f32(trd_builder *b, double value)
{
    return trd_scalar(b, TRD_F32, value);
}

/* 1 / (1 - beta^t) */
static trd_value correction(trd_builder *b, double beta, trd_value count)
{
    trd_value t = trd_cast(b, count, TRD_F64), one = trd_scalar(b, TRD_F64, 1);
    trd_value power = trd_pow(b, trd_scalar(b, TRD_F64, beta), t);
    return trd_cast(b, trd_div(b, one, trd_sub(b, one, power)), TRD_F32);
}

static void prepare(trd_builder *b, const trd_optimizer_options *o, trd__update_scalars *scalars)
{
    scalars->prepared[MU] = correction(b, o->b1, scalars->count);
    scalars->prepared[NU] = correction(b, o->b2, scalars->count);
}

static void update(trd_builder *b, const trd_optimizer_options *o, const trd__update_scalars *scalars,
                   trd__parameter_update *u)
{
    trd_value p = trd_cast(b, u->parameter, TRD_F32), g = u->gradient;
    trd_value mu = trd_cast(b, u->states[MU], TRD_F32), nu = u->states[NU];
    mu = trd_add(b, trd_mul(b, mu, f32(b, o->b1)), trd_mul(b, g, f32(b, 1 - o->b1)));
    nu = trd_add(b, trd_mul(b, nu, f32(b, o->b2)), trd_mul(b, trd_square(b, g), f32(b, 1 - o->b2)));
    trd_value mu_hat = trd_mul(b, mu, scalars->prepared[MU]);
    trd_value nu_hat = trd_mul(b, nu, scalars->prepared[NU]);
    trd_value step = trd_div(b, mu_hat, trd_add(b, trd_sqrt(b, nu_hat), f32(b, o->eps)));
    if (u->decay != 0) step = trd_add(b, step, trd_mul(b, p, f32(b, u->decay)));
    p = trd_sub(b, p, trd_mul(b, step, scalars->learning_rate));
    u->new_parameter = trd_cast(b, p, trd_value_dtype(u->parameter));
    u->new_states[MU] = trd_cast(b, mu, o->mu_dtype);
    u->new_states[NU] = nu;
}

const trd__optimizer_type trd__optimizer_adamw = {
    .name = "adamw", .states = states, .check = check, .prepare = prepare, .update = update};
