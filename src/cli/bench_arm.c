/* treadle bench arm: one arm of the ablation, or of bench/compare, a process of its own. It starts up, warms
 * up and says so; then each line on standard input is a loop of steps from an empty queue to an empty queue,
 * whose figures it prints as one JSON object. It ends with its input. The parent keeps other arms still
 * meanwhile. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "cli/bench.h"

const char *const cli_arm_names[CLI_ARM_COUNT] = {
#define ARM_NAME(name, text) text,
    CLI_ARM_LIST(ARM_NAME)
#undef ARM_NAME
};

typedef struct arm {
    cli_run run;
    int64_t steps, warmup;
    bool fused; /* one program a step */
    bool data;  /* a step is a pass over the training data, not random tokens */
    int32_t *tokens;
    double *micro_us, *update_us; /* host time of each call of a loop */
    double figures[CLI_ARM_COUNT];
    const trd_step_metrics *history; /* of the last loop */
    int history_count;
} arm;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_quantile(double *values, int64_t count, double share)
{
    if (count == 0) return NAN;
    qsort(values, (size_t)count, sizeof *values, ascending);
    double at = share * (double)(count - 1);
    int64_t low = (int64_t)at;
    double high = values[low + 1 < count ? low + 1 : low];
    return values[low] + (at - (double)low) * (high - values[low]);
}

trd_status cli_bench_config(cli_run *run, int words, char **argv)
{
    TRD_TRY(cli_run_config(run, words, argv));
    run->options.checkpoint_directory = NULL;
    run->options.log = (trd_log_sink){0};
    return TRD_OK;
}

trd_status cli_bench_tokens(const cli_run *run, int64_t micro_batches, int32_t **tokens)
{
    const trd_engine_options *o = &run->options;
    int64_t count = micro_batches * o->rows * o->length,
            vocab = trd_model_describe(trd_engine_model(run->engine)).vocab;
    *tokens = trd__alloc((size_t)count, sizeof **tokens);
    if (!*tokens) return TRD_NO_MEMORY;
    for (int64_t i = 0; i < count; i++)
        (*tokens)[i] = (int32_t)trd__rng_below(0, 0, (uint64_t)i, (uint64_t)vocab);
    return TRD_OK;
}

double cli_bench_host_us(const cli_run *run)
{
    return 1e-3 * (double)trd_engine_get_stats(run->engine).host_ns;
}

static trd_status run_fused(arm *a, int64_t steps)
{
    const trd_engine_options *o = &a->run.options;
    trd_batch batch = {.rows = o->rows, .length = o->length, .token_ids = a->tokens};
    for (int64_t s = 0; s < steps; s++) TRD_TRY(trd_engine_train_step(a->run.engine, &batch));
    return trd_engine_wait(a->run.engine);
}

static trd_status run_steps(arm *a, int64_t steps)
{
    if (a->fused) return run_fused(a, steps);
    const trd_engine_options *o = &a->run.options;
    int64_t cycle = o->gradient_accumulation_steps, cells = (int64_t)o->rows * o->length;
    trd_batch batch = {.rows = o->rows, .length = o->length};
    for (int64_t s = 0; s < steps; s++) {
        if (a->data) TRD_TRY(trd_loader_seek(a->run.train, 0));
        double before = cli_bench_host_us(&a->run), after;
        for (int64_t i = 0; i < cycle; i++) {
            if (a->data)
                TRD_TRY(trd_loader_next(a->run.train, &batch));
            else
                batch.token_ids = a->tokens + i * cells;
            TRD_TRY(trd_engine_fwd_bwd(a->run.engine, &batch));
            after = cli_bench_host_us(&a->run);
            a->micro_us[s * cycle + i] = after - before;
            before = after;
        }
        TRD_TRY(trd_engine_update(a->run.engine));
        a->update_us[s] = cli_bench_host_us(&a->run) - before;
    }
    return trd_engine_wait(a->run.engine);
}

static double update_busy_ms(const arm *a)
{
    double ms = 0;
    for (int i = 0; i < trd_engine_program_count(a->run.engine); i++) {
        trd_program_info info = trd_engine_program(a->run.engine, i);
        if (strcmp(info.name, "update") == 0) ms += 1e-6 * (double)info.busy_ns;
    }
    return ms;
}

/* A step of the shortest runs: other load on the machine only adds to a run. */
static double least_busy_ms(const arm *a)
{
    const int64_t cycle = a->run.options.gradient_accumulation_steps;
    const bool apart = a->run.options.diagnostics[TRD_DIAGNOSTIC_ACCUMULATE];
    const struct {
        const char *name;
        int64_t runs; /* in a step */
    } programs[] = {
        {"first", apart ? cycle : 1}, {"accum", cycle - 1}, {"define", 1}, {"add", cycle - 1}, {"update", 1}};
    double ms = 0;
    for (int i = 0; i < trd_engine_program_count(a->run.engine); i++) {
        trd_program_info info = trd_engine_program(a->run.engine, i);
        for (size_t p = 0; p < sizeof programs / sizeof *programs; p++)
            if (strcmp(info.name, programs[p].name) == 0)
                ms += 1e-6 * (double)info.least_ns * (double)programs[p].runs;
    }
    return ms;
}

static double metric(const trd_step_metrics *step, const char *name)
{
    for (int i = 0; i < step->count; i++)
        if (strcmp(step->metrics[i].name, name) == 0) return step->metrics[i].value;
    return NAN;
}

static trd_status run_loop(arm *a)
{
    int64_t micro_batches = a->steps * a->run.options.gradient_accumulation_steps;
    trd_engine_stats before = trd_engine_get_stats(a->run.engine);
    double update_before = update_busy_ms(a);
    uint64_t start = trd__now_ns();
    TRD_TRY(run_steps(a, a->steps));
    a->figures[CLI_ARM_LOOP_MS] = 1e-6 * (double)(trd__now_ns() - start);
    trd_engine_stats after = trd_engine_get_stats(a->run.engine);
    a->figures[CLI_ARM_BUSY_MS] = 1e-6 * (double)(after.busy_ns - before.busy_ns);
    a->figures[CLI_ARM_UPDATE_BUSY_MS] = update_busy_ms(a) - update_before;
    a->figures[CLI_ARM_LEAST_BUSY_MS] = least_busy_ms(a);
    a->figures[CLI_ARM_HOST_MICRO_US] = cli_quantile(a->micro_us, micro_batches, 0.5);
    a->figures[CLI_ARM_HOST_UPDATE_US] = cli_quantile(a->update_us, a->steps, 0.5);
    a->figures[CLI_ARM_PEAK_BYTES] = (double)cli_peak_bytes();
    TRD_TRY(trd_engine_get_metrics_history(a->run.engine, true, &a->history, &a->history_count));
    double worst = 0;
    for (int s = 0; s < a->history_count; s++) worst = fmax(worst, 1e3 * metric(&a->history[s], "step_time"));
    a->figures[CLI_ARM_WORST_STEP_MS] = worst;
    return TRD_OK;
}

/* A text of its own line, at once: the parent waits for it. */
static trd_status tell(trd__json_writer *w)
{
    trd__json_close(w);
    TRD_TRY(cli_print_json(w));
    fflush(stdout);
    return TRD_OK;
}

static void put_losses(trd__json_writer *w, const arm *a)
{
    trd__json_write_key(w, "losses");
    trd__json_open_array(w);
    for (int s = 0; s < a->history_count; s++) trd__json_write_f64(w, metric(&a->history[s], "loss"));
    trd__json_close(w);
}

/* The fingerprints of the programs, and the losses of the steps so far. */
static trd_status tell_ready(const arm *a)
{
    trd__json_writer w = {0};
    char text[32];
    trd__json_open_object(&w);
    trd__json_write_key(&w, "programs");
    trd__json_open_object(&w);
    for (int i = 0; i < trd_engine_program_count(a->run.engine); i++) {
        trd_program_info info = trd_engine_program(a->run.engine, i);
        snprintf(text, sizeof text, "%016" PRIx64, info.fingerprint);
        trd__json_put_string(&w, info.name, text);
    }
    trd__json_close(&w);
    put_losses(&w, a);
    return tell(&w);
}

static trd_status tell_loop(const arm *a)
{
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    for (int i = 0; i < CLI_ARM_COUNT; i++) trd__json_put_f64(&w, cli_arm_names[i], a->figures[i]);
    put_losses(&w, a);
    if (a->data) {
        int64_t work = a->steps * (int64_t)trd_loader_stats(a->run.train).loss_tokens;
        trd__json_put_i64(&w, "work", work);
        trd__json_put_i64(&w, "check", work);
    }
    return tell(&w);
}

/* The cycle becomes so many micro-batches as a pass over the data has: rows are not filled from a next pass,
 * so every step trains on each sample once. */
static trd_status open_data(cli_run *run)
{
    if (run->options.steps)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "--data: expected steps 0, found %lld: with num_epochs a pass has an end",
                         (long long)run->options.steps);
    TRD_TRY(cli_run_data(run, true, false));
    uint64_t rows = (uint64_t)run->options.rows;
    uint64_t cycle = (trd_loader_stats(run->train).rows_per_epoch + rows - 1) / rows;
    if (cycle > INT32_MAX) return trd__fail(TRD_INVALID_ARGUMENT, "--data: too many rows for one step");
    run->options.gradient_accumulation_steps = (int)cycle;
    return TRD_OK;
}

static trd_status start(arm *a, int words, char **argv)
{
    TRD_TRY(cli_bench_config(&a->run, words, argv));
    if (a->data) TRD_TRY(open_data(&a->run));
    size_t cycle = (size_t)a->run.options.gradient_accumulation_steps;
    size_t most = (size_t)(a->steps > a->warmup ? a->steps : a->warmup);
    a->micro_us = trd__calloc(most * cycle, sizeof *a->micro_us);
    a->update_us = trd__calloc(most, sizeof *a->update_us);
    if (!a->micro_us || !a->update_us) return TRD_NO_MEMORY;
    TRD_TRY(cli_run_engine(&a->run, false));
    if (!a->data) TRD_TRY(cli_bench_tokens(&a->run, (int64_t)cycle, &a->tokens));
    TRD_TRY(run_steps(a, a->warmup));
    TRD_TRY(trd_engine_get_metrics_history(a->run.engine, true, &a->history, &a->history_count));
    return tell_ready(a);
}

int cli_bench_arm(int argc, char **argv)
{
    arm a = {.steps = 23, .warmup = 2};
    const cli_option options[] = {
        {.name = "--steps", .kind = CLI_INT, .target = &a.steps, .min = 1, .max = CLI_BENCH_STEPS},
        {.name = "--data", .kind = CLI_FLAG, .target = &a.data},
        {.name = "--train-step", .kind = CLI_FLAG, .target = &a.fused},
        {.name = "--warmup", .kind = CLI_INT, .target = &a.warmup, .min = 1, .max = CLI_BENCH_STEPS},
        {0}};
    int words, code = cli_parse(&cli_command_bench, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_bench, "arm: needs a config file");
    if (a.data && a.fused)
        return cli_usage_error(&cli_command_bench,
                               "arm: --data takes several micro-batches, --train-step one");
    trd_status status = start(&a, words, argv);
    for (int c = 0; !status && (c = getchar()) != EOF;) {
        if (c != '\n') continue;
        status = run_loop(&a);
        if (!status) status = tell_loop(&a);
    }
    if (status) code = cli_fail();
    trd__free(a.tokens);
    trd__free(a.update_us);
    trd__free(a.micro_us);
    if (cli_run_close(&a.run) && !code) code = cli_fail();
    return code;
}
