/* The common parts of the optimizers with Adam's two moments. */
#include "nn/optim/adam.h"

#include <math.h>

int trd__adam_states(const trd_optimizer_options *o, const trd__parameter *p, trd__optimizer_state *states)
{
    states[TRD__ADAM_MU] = trd__optimizer_state_like(p, "mu", o->mu_dtype);
    states[TRD__ADAM_NU] = trd__optimizer_state_like(p, "nu", TRD_F32);
    return TRD__ADAM_STATES;
}

trd_status trd__adam_check(const trd_optimizer_options *o)
{
    TRD_TRY(trd__optimizer_check("adam_b1", o->b1, 0, 1));
    TRD_TRY(trd__optimizer_check("adam_b2", o->b2, 0, 1));
    TRD_TRY(trd__optimizer_check("adam_eps", o->eps, 1e-30, INFINITY));
    TRD_TRY(trd__optimizer_check("adam_eps_root", o->eps_root, 0, INFINITY));
    return trd__optimizer_check("adam_weight_decay", o->weight_decay, 0, INFINITY);
}

double trd__adam_decay(const trd_optimizer_options *o, const trd__parameter *p)
{
    (void)p;
    return o->weight_decay;
}

trd_value trd__adam_step(trd_builder *b, const trd_optimizer_options *o, trd_value mu, trd_value nu)
{
    if (o->eps_root != 0) nu = trd_add(b, nu, trd__optimizer_f32(b, o->eps_root));
    return trd_div(b, mu, trd_add(b, trd_sqrt(b, nu), trd__optimizer_f32(b, o->eps)));
}
