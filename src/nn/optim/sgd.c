/* Plain stochastic gradient descent: p -= lr * g. */
#include "nn/optimizer.h"

static void update(trd_builder *b, const trd_optimizer_options *options, const trd__update_scalars *scalars,
                   double decay, trd_value parameter, trd_value gradient, const trd_value *states,
                   trd_value *new_parameter, trd_value *new_states)
{
    (void)options;
    (void)decay;
    (void)states;
    (void)new_states;
    trd_value p = trd_cast(b, parameter, TRD_F32);
    p = trd_sub(b, p, trd_mul(b, gradient, scalars->learning_rate));
    *new_parameter = trd_cast(b, p, trd_value_dtype(parameter));
}

const trd__optimizer_type trd__optimizer_sgd = {.name = "sgd", .update = update};
