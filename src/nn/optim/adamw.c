/* AdamW: p -= lr * (m_hat / (sqrt(v_hat + eps_root) + eps) + decay * p), with m_hat and v_hat the moments
 * divided by 1 - beta^t, t from 1. Kingma & Ba 2015; Loshchilov & Hutter 2019. */
#include "nn/optim/adam.h"

enum { MU = TRD__ADAM_MU, NU = TRD__ADAM_NU };

static void prepare(trd_builder *b, const trd_optimizer_options *o, trd__update_scalars *scalars)
{
    scalars->prepared[MU] = trd__optimizer_correction(b, o->b1, scalars->count, 0);
    scalars->prepared[NU] = trd__optimizer_correction(b, o->b2, scalars->count, 0);
}

static void update(trd_builder *b, const trd_optimizer_options *o, const trd__update_scalars *scalars,
                   trd__parameter_update *u)
{
    trd_value mu = trd__optimizer_moment(b, trd_cast(b, u->states[MU], TRD_F32), o->b1, u->gradient);
    trd_value nu = trd__optimizer_moment(b, u->states[NU], o->b2, trd_square(b, u->gradient));
    trd_value mu_hat = trd_mul(b, mu, scalars->prepared[MU]);
    trd_value nu_hat = trd_mul(b, nu, scalars->prepared[NU]);
    trd__optimizer_step(b, scalars->learning_rate, trd__adam_step(b, o, mu_hat, nu_hat), u);
    u->new_states[MU] = trd_cast(b, mu, o->mu_dtype);
    u->new_states[NU] = nu;
}

const trd__optimizer_type trd__optimizer_adamw = {.name = "adamw",
                                                  .states = trd__adam_states,
                                                  .check = trd__adam_check,
                                                  .decay = trd__adam_decay,
                                                  .prepare = prepare,
                                                  .update = update};
