/* Plain stochastic gradient descent: p -= lr * g. */
#include "nn/optimizer.h"

static void update(trd_builder *b, const trd_optimizer_options *options, const trd__update_scalars *scalars,
                   trd__parameter_update *u)
{
    (void)options;
    trd_value p = trd_cast(b, u->parameter, TRD_F32);
    p = trd_sub(b, p, trd_mul(b, u->gradient, scalars->learning_rate));
    u->new_parameter = trd_cast(b, p, trd_value_dtype(u->parameter));
}

const trd__optimizer_type trd__optimizer_sgd = {.name = "sgd", .update = update};
