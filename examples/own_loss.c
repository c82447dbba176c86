/* Fine-tuning with a loss of one's own, through the public headers only. Usage: own_loss CONFIG.yml
 *
 * cc own_loss.c $(pkg-config --cflags --libs treadle) */
#include <stdio.h>

#include <treadle/treadle.h>

/* Negative log-likelihood plus a share of its square, so that tokens which surprise the model count more. A
 * loss builds graph once; nothing here runs per step. */
static trd_loss_output own_loss(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    const double *share = user;
    trd_value weights = trd_inputs_get(b, in, "loss_weights"); /* (B, T) f32 */
    trd_value logprobs =
        trd_model_token_logprobs(b, model, in, weights); /* (B, T) f32; 0 where the weight is 0 */
    trd_value square = trd_mul(b, trd_square(b, logprobs), trd_scalar(b, TRD_F32, *share));
    trd_value total = trd_sum_all(b, trd_mul(b, trd_sub(b, square, logprobs), weights));
    return trd_loss(trd_weighted(total, trd_sum_all(b, weights)));
}

static trd_status train(trd_engine *engine, trd_loader *loader, int steps, int micro_batches)
{
    trd_status s = TRD_OK;
    trd_batch batch;
    for (int step = 0; !s && step < steps; step++) {
        for (int i = 0; !s && i < micro_batches; i++)
            if (!(s = trd_loader_next(loader, &batch)))
                s = trd_engine_fwd_bwd(engine, &batch); /* returns at once */
        if (!s) s = trd_engine_update(engine);
    }
    return s;
}

int main(int argc, char **argv)
{
    trd_config *config = NULL;
    trd_engine *engine = NULL;
    trd_loader *loader = NULL;
    const trd_data_options *data;
    trd_step_metrics metrics;
    double share = 0.05;
    trd_status s = trd_config_load(argc > 1 ? argv[1] : "config.yml", NULL, 0, &config);
    if (!s) s = trd_engine_create(trd_config_engine(config), &engine);
    if (!s) s = trd_engine_with_loss_fn(engine, own_loss, &share);
    if (!s) s = trd_config_data(config, &data);
    if (!s) s = trd_loader_open(data, &loader);
    if (!s) s = train(engine, loader, 20, 2);
    if (!s) s = trd_engine_get_metrics(engine, false, &metrics);
    for (int i = 0; !s && i < metrics.count; i++)
        printf("%s %g\n", metrics.metrics[i].name, metrics.metrics[i].value);
    trd_loader_close(loader);
    trd_status closed = trd_engine_close(engine); /* saves a checkpoint, where the config has them on */
    if (s || closed) fprintf(stderr, "own_loss: %s\n", trd_error_message());
    trd_config_free(config);
    return s || closed;
}
