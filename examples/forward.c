/* Scores a text token by token before and after learning it, and reads a tensor: forward graphs and views,
 * through the public headers only. Usage: forward
 *
 * cc forward.c $(pkg-config --cflags --libs treadle) */
#include <stdio.h>
#include <stdlib.h>

#include <treadle/treadle.h>

enum { ROWS = 1, LENGTH = 16, STEPS = 30 };

/* The mean log-probability of the batch's predicted tokens under the current parameters. */
static trd_status score(trd_engine *engine, const trd_batch *batch, double *mean)
{
    float logprobs[ROWS * LENGTH];
    trd_status s =
        trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, batch, logprobs, sizeof logprobs);
    *mean = 0;
    for (int i = 1; !s && i < LENGTH; i++) *mean += (double)logprobs[i] / (LENGTH - 1);
    return s;
}

/* Prints the first value of the tensor that is called name. */
static trd_status show(trd_engine *engine, const char *name)
{
    trd_view parameters = trd_engine_params(engine);
    int i = trd_view_find(parameters, name);
    if (i < 0) return TRD_NOT_FOUND;
    trd_array tensor = trd_view_describe(parameters, i); /* float32, as the options below say */
    size_t count = 1;
    for (int axis = 0; axis < tensor.shape.rank; axis++) count *= (size_t)tensor.shape.dim[axis];
    float *values = malloc(count * sizeof *values);
    if (!values) return TRD_NO_MEMORY;
    trd_status s = trd_view_read(parameters, i, values);
    if (!s) printf("%s[0] = %g\n", name, (double)values[0]);
    free(values);
    return s;
}

int main(void)
{
    static const int32_t ids[ROWS * LENGTH] = {5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
    trd_batch batch = {.rows = ROWS, .length = LENGTH, .token_ids = ids};
    trd_engine_options options = trd_engine_defaults();
    trd_engine *engine = NULL;
    double before = 0, after = 0;
    options.model_name = "tiny";
    options.rows = ROWS;
    options.length = LENGTH;
    options.schedule.learning_rate = 0.01;
    trd_status s = trd_engine_create(&options, &engine);
    if (!s) s = score(engine, &batch, &before);
    if (!s) s = show(engine, "model.norm.weight");
    for (int step = 0; !s && step < STEPS; step++) s = trd_engine_train_step(engine, &batch);
    if (!s) s = score(engine, &batch, &after);
    if (!s) s = show(engine, "model.norm.weight");
    if (!s) printf("log-probability per token: %.3f before, %.3f after\n", before, after);
    if (s) fprintf(stderr, "forward: %s\n", trd_error_message());
    trd_status closed = trd_engine_close(engine);
    return s || closed || after <= before;
}
