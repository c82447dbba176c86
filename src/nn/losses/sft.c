/* Supervised fine-tuning: -sum(weights * log p(token)) over sum(weights), and with z_loss_multiplier z also
 * z * sum(weights * log_sum^2), which keeps the logits' log-partition near 0 (PaLM, Chowdhery et al. 2022).
 */
#include <treadle/loss.h>

trd_loss_output trd_loss_sft(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    const trd_sft_options *options = user;
    double z = options ? options->z_loss_multiplier : 0;
    trd_value weights = trd_inputs_get(b, in, "loss_weights"), log_sums;
    trd_value logprobs = trd_model_token_statistics(b, model, in, weights, z != 0 ? &log_sums : NULL);
    trd_value total = trd_neg(b, trd_sum_all(b, trd_mul(b, logprobs, weights)));
    trd_value denominator = trd_sum_all(b, weights);
    if (z == 0) return trd_loss(trd_weighted(total, denominator));
    trd_value penalty = trd_sum_all(b, trd_mul(b, trd_square(b, log_sums), weights));
    penalty = trd_mul(b, penalty, trd_scalar(b, TRD_F32, z));
    trd_loss_output output = trd_loss(trd_weighted(trd_add(b, total, penalty), denominator));
    trd_loss_add_metric(b, &output, "z_loss", trd_weighted(penalty, denominator));
    return output;
}
