/* Supervised fine-tuning: -sum(weights * log p(token)) over sum(weights). */
#include <treadle/loss.h>

trd_loss_output trd_loss_sft(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    const trd_sft_options *options = user;
    if (options && options->z_loss_multiplier != 0)
        trd_builder_fail(b, TRD_UNSUPPORTED,
                         "z_loss_multiplier: the log-partition penalty is not built yet; use 0");
    trd_value weights = trd_inputs_get(b, in, "loss_weights");
    trd_value logprobs = trd_model_token_logprobs(b, model, in, weights);
    trd_value total = trd_neg(b, trd_sum_all(b, trd_mul(b, logprobs, weights)));
    return trd_loss(trd_weighted(total, trd_sum_all(b, weights)));
}
