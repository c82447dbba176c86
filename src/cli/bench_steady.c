/* treadle bench steady: whether a long run stays as it began: its slowest step beside the median one, and its
 * resident memory. After each step runs a control of plain products that takes about as long; its slowest
 * pass is the machine's. Invariant: nothing is allocated while steps are counted. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/product_rate.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench.h"

enum { WARM_STEPS = 20, MOST_STEPS = 10000000, SETTLED = 1000 /* steps after which memory is compared */ };

typedef struct steady_bench {
    cli_run run;
    int64_t steps;
    int32_t *tokens;
    double *step_ms, *control_ms;
    trd__product_bench *products;
    int passes; /* of the products, to take as long as a step */
    uint64_t settled_bytes, last_bytes;
} steady_bench;

static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;
    if (file && fscanf(file, "%*u %llu", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static trd_status timed_step(steady_bench *b, double *ms)
{
    const trd_engine_options *o = &b->run.options;
    trd_batch batch = {.rows = o->rows, .length = o->length, .token_ids = b->tokens};
    uint64_t begin = trd__now_ns();
    for (int i = 0; i < o->gradient_accumulation_steps; i++)
        TRD_TRY(trd_engine_fwd_bwd(b->run.engine, &batch));
    TRD_TRY(trd_engine_update(b->run.engine));
    TRD_TRY(trd_engine_wait(b->run.engine));
    *ms = 1e-6 * (double)(trd__now_ns() - begin);
    return TRD_OK;
}

static double timed_control(steady_bench *b)
{
    uint64_t begin = trd__now_ns();
    for (int i = 0; i < b->passes; i++) trd__product_bench_pass(b->products);
    return 1e-6 * (double)(trd__now_ns() - begin);
}

/* How many passes of the products last as long as a step; the second round corrects what a few passes in a
 * row cost less than one. */
static trd_status warm_up(steady_bench *b)
{
    double steps[WARM_STEPS], passes[WARM_STEPS];
    b->passes = 1;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < WARM_STEPS; i++) {
            TRD_TRY(timed_step(b, &steps[i]));
            timed_control(b);
            passes[i] = timed_control(b);
        }
        double ratio = cli_quantile(steps, WARM_STEPS, 0.5) / cli_quantile(passes, WARM_STEPS, 0.5);
        b->passes = (int)lround(fmax(1, fmin(ratio * b->passes, 1e6)));
    }
    return TRD_OK;
}

static trd_status measure(steady_bench *b)
{
    memset(b->step_ms, 1, (size_t)b->steps * sizeof *b->step_ms); /* else their pages come one by one, */
    memset(b->control_ms, 1, (size_t)b->steps * sizeof *b->control_ms); /* and look like growth */
    for (int64_t i = 0; i < b->steps; i++) {
        TRD_TRY(timed_step(b, &b->step_ms[i]));
        b->control_ms[i] = timed_control(b);
        if (i + 1 == SETTLED) b->settled_bytes = resident_bytes();
    }
    b->last_bytes = resident_bytes();
    if (b->steps < SETTLED) b->settled_bytes = b->last_bytes;
    return TRD_OK;
}

static trd_status print_result(steady_bench *b, bool json)
{
    double median = cli_quantile(b->step_ms, b->steps, 0.5), worst = cli_quantile(b->step_ms, b->steps, 1);
    double control = cli_quantile(b->control_ms, b->steps, 0.5);
    double control_worst = cli_quantile(b->control_ms, b->steps, 1);
    double ratio = worst / median / (control_worst / control);
    int64_t grown = (int64_t)b->last_bytes - (int64_t)b->settled_bytes;
    if (!json) {
        printf("step      median %.3f ms, worst %.3f ms: %.2f times the median (%lld steps)\n"
               "control   median %.3f ms, worst %.3f ms: %.2f times the median (%d passes of products each)\n"
               "ratio     %.2f\n"
               "memory    %s resident at the end",
               median, worst, worst / median, (long long)b->steps, control, control_worst,
               control_worst / control, b->passes, ratio, cli_bytes(b->last_bytes));
        if (b->steps > SETTLED)
            printf(", %+.1f kB since step %d\n", 1e-3 * (double)grown, SETTLED);
        else
            printf("; its growth is counted from step %d on: give more --steps\n", SETTLED);
        return TRD_OK;
    }
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    trd__json_put_i64(&w, "steps", b->steps);
    trd__json_put_f64(&w, "median_ms", median);
    trd__json_put_f64(&w, "worst_ms", worst);
    trd__json_put_f64(&w, "control_median_ms", control);
    trd__json_put_f64(&w, "control_worst_ms", control_worst);
    trd__json_put_f64(&w, "worst_ratio", ratio);
    trd__json_put_i64(&w, "resident_bytes", (int64_t)b->last_bytes);
    trd__json_write_key(&w, "grown_bytes");
    if (b->steps > SETTLED)
        trd__json_write_i64(&w, grown);
    else
        trd__json_write_null(&w);
    trd__json_close(&w);
    return cli_print_json(&w);
}

static trd_status run_bench(steady_bench *b, int words, char **argv, bool json)
{
    TRD_TRY(cli_bench_config(&b->run, words, argv));
    b->step_ms = trd__calloc((size_t)b->steps, sizeof *b->step_ms);
    b->control_ms = trd__calloc((size_t)b->steps, sizeof *b->control_ms);
    if (!b->step_ms || !b->control_ms) return TRD_NO_MEMORY;
    TRD_TRY(cli_run_engine(&b->run, false));
    TRD_TRY(cli_bench_tokens(&b->run, 1, &b->tokens));
    TRD_TRY(cli_bench_products(&b->run, &b->products));
    TRD_TRY(warm_up(b));
    TRD_TRY(measure(b));
    return print_result(b, json);
}

int cli_bench_steady(int argc, char **argv)
{
    steady_bench b = {.steps = 1000};
    bool json = false;
    const cli_option options[] = {
        {.name = "--json", .kind = CLI_FLAG, .target = &json},
        {.name = "--steps", .kind = CLI_INT, .target = &b.steps, .min = 1, .max = MOST_STEPS},
        {0}};
    int words, code = cli_parse(&cli_command_bench, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_bench, "steady: needs a config file");
    if (run_bench(&b, words, argv, json)) code = cli_fail();
    trd__product_bench_free(b.products);
    trd__free(b.tokens);
    trd__free(b.control_ms);
    trd__free(b.step_ms);
    if (cli_run_close(&b.run) && !code) code = cli_fail();
    return code;
}
