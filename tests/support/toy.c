/* The toy's loss, and micro-batches for it. */
#include "support/toy.h"

#include "base/shape.h"
#include "engine/internal.h"

trd_loss_output toy_loss(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    const toy_bounds *bounds = user;
    trd_value sum = trd_scalar(b, TRD_F32, 0);
    for (int i = 0; i < model->parameter_count; i++) {
        trd_value x = trd_inputs_get(b, in, model->parameters[i].name);
        sum = trd_add(b, sum, trd_sum_all(b, trd_mul(b, in->parameters[i], x)));
    }
    trd_value weight = trd_sum_all(b, trd_inputs_get(b, in, "loss_weights"));
    if (bounds && bounds->share > 0)
        weight = trd_mul(b, trd_cast(b, weight, TRD_F64), trd_scalar(b, TRD_F64, bounds->share));
    trd_loss_output output = trd_loss(trd_weighted(sum, weight));
    if (bounds) output.primary_loss.eps = bounds->eps;
    if (bounds) output.primary_loss.min_denom = bounds->min_denom;
    return output;
}

trd_engine *toy_engine(const trd_engine_options *options, const test_leaf *leaves, int count,
                       toy_bounds *bounds)
{
    trd_engine *engine = NULL;
    OK(trd__engine_create_with_model(options, test_toy(leaves, count), &engine));
    OK(trd_engine_with_loss_fn(engine, toy_loss, bounds));
    return engine;
}

trd_engine *toy_of_one_leaf(const trd_engine_options *options, toy_bounds *bounds)
{
    static const test_leaf leaf = {"w", TOY_SIZE, 0};
    return toy_engine(options, &leaf, 1, bounds);
}

static trd_status give(trd_status (*call)(trd_engine *engine, const trd_batch *batch), trd_engine *engine,
                       const float *x, int weighted)
{
    int32_t tokens[TEST_LENGTH] = {0};
    float weights[TEST_LENGTH] = {0};
    trd_array extras[4];
    const trd_model *model = trd_engine_model(engine);
    for (int i = 1; i <= weighted; i++) weights[i] = 1.0f;
    for (int i = 0; i < model->parameter_count; i++)
        extras[i] = (trd_array){.name = model->parameters[i].name,
                                .dtype = TRD_F32,
                                .shape = TRD__SHAPE(TOY_SIZE),
                                .data = x + i * TOY_SIZE};
    trd_batch batch = {.rows = 1,
                       .length = TEST_LENGTH,
                       .token_ids = tokens,
                       .loss_weights = weights,
                       .extra_count = model->parameter_count,
                       .extras = extras};
    return call(engine, &batch);
}

trd_status toy_feed(trd_engine *engine, const float *x, int weighted)
{
    return give(trd_engine_fwd_bwd, engine, x, weighted);
}

trd_status toy_fuse(trd_engine *engine, const float *x, int weighted)
{
    return give(trd_engine_train_step, engine, x, weighted);
}
