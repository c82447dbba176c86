/* treadle bench step: time, memory, allocations and host cost of training steps on random tokens, beside the
 * product rate of this machine measured between the same steps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench.h"
#include "cli/heap.h"

enum { MOST_STEPS = 10000 };

typedef struct bench {
    cli_run run;
    int64_t steps, warmup;
    bool fused; /* one program a step instead of fwd_bwd and update */
    int32_t *tokens;
    double *step_ms, *rates, *openmp_rates;
    double first_step_ms, host_us, utilization;
    uint64_t peak_bytes;
    cli_heap_counts heap; /* of all counted steps together */
    trd_plan plan;
} bench;

static trd_status one_step(bench *b)
{
    const trd_engine_options *o = &b->run.options;
    trd_batch batch = {.rows = o->rows, .length = o->length, .token_ids = b->tokens};
    if (b->fused) return trd_engine_train_step(b->run.engine, &batch);
    for (int i = 0; i < o->gradient_accumulation_steps; i++)
        TRD_TRY(trd_engine_fwd_bwd(b->run.engine, &batch));
    return trd_engine_update(b->run.engine);
}

/* A step timed to its end: the engine's queue is empty before and after. */
static trd_status timed_step(bench *b, double *ms)
{
    uint64_t start = trd__now_ns();
    TRD_TRY(one_step(b));
    TRD_TRY(trd_engine_wait(b->run.engine));
    *ms = 1e-6 * (double)(trd__now_ns() - start);
    return TRD_OK;
}

trd_status cli_bench_products(const cli_run *run, trd__product_bench **out)
{
    const trd_engine_options *o = &run->options;
    trd_model_info m = trd_model_describe(trd_engine_model(run->engine));
    int64_t rows = (int64_t)o->rows * o->length, layers = m.layers;
    const trd__product products[] = {
        {rows, m.heads * m.head_dim, m.hidden, (int)layers},
        {rows, m.kv_heads * m.head_dim, m.hidden, (int)(2 * layers)},
        {rows, m.hidden, m.heads * m.head_dim, (int)layers},
        {rows, m.intermediate, m.hidden, (int)(2 * layers)},
        {rows, m.hidden, m.intermediate, (int)layers},
        {rows - o->rows, m.vocab, m.hidden, 1},
    };
    return trd__product_bench_create(products, sizeof products / sizeof *products,
                                     trd_engine_get_stats(run->engine).workers, out);
}

static trd_status warm_up(bench *b)
{
    double ms;
    TRD_TRY(timed_step(b, &ms));
    b->first_step_ms = 1e-6 * (double)(trd__now_ns() - cli_start_ns());
    for (int64_t i = 1; i < b->warmup; i++) TRD_TRY(timed_step(b, &ms));
    return TRD_OK;
}

/* Counted steps; the product rate is sampled between them. */
static trd_status measure(bench *b)
{
    trd__product_bench *products;
    trd_engine_stats before = trd_engine_get_stats(b->run.engine);
    b->peak_bytes = cli_peak_bytes(); /* before the product rate's buffers exist */
    TRD_TRY(cli_bench_products(&b->run, &products));
    trd_status status = TRD_OK;
    double total_ms = 0;
    for (int64_t i = 0; !status && i < b->steps; i++) {
        cli_heap_counts start = cli_heap_count();
        status = timed_step(b, &b->step_ms[i]);
        cli_heap_counts end = cli_heap_count();
        b->heap.ours += end.ours - start.ours;
        b->heap.libraries += end.libraries - start.libraries;
        total_ms += b->step_ms[i];
        trd__product_rate rate = trd__product_bench_sample(products);
        b->rates[i] = rate.partitioned_gflops;
        b->openmp_rates[i] = rate.openmp_gflops;
    }
    trd__product_bench_free(products);
    trd_engine_stats after = trd_engine_get_stats(b->run.engine);
    uint64_t batches = after.micro_batches - before.micro_batches;
    if (batches) b->host_us = 1e-3 * (double)(after.host_ns - before.host_ns) / (double)batches;
    if (total_ms > 0) b->utilization = 1e-6 * (double)(after.busy_ns - before.busy_ns) / total_ms;
    return status;
}

static trd_status run_bench(bench *b)
{
    TRD_TRY(cli_run_engine(&b->run, false));
    TRD_TRY(cli_bench_tokens(&b->run, 1, &b->tokens));
    TRD_TRY(warm_up(b));
    TRD_TRY(trd_engine_plan(b->run.engine, &b->plan));
    return measure(b);
}

/* What both forms of the result are made of. */
typedef struct figures {
    double median_ms, p90_ms, max_ms, tokens_per_s, gflops, peak_gflops, openmp_gflops;
    double heap_allocations, library_allocations; /* a step */
} figures;

static figures summarize(bench *b)
{
    const trd_engine_options *o = &b->run.options;
    figures f = {.median_ms = cli_quantile(b->step_ms, b->steps, 0.5),
                 .p90_ms = cli_quantile(b->step_ms, b->steps, 0.9),
                 .max_ms = cli_quantile(b->step_ms, b->steps, 1),
                 .peak_gflops = cli_quantile(b->rates, b->steps, 0.5),
                 .openmp_gflops = cli_quantile(b->openmp_rates, b->steps, 0.5),
                 .heap_allocations = (double)b->heap.ours / (double)b->steps,
                 .library_allocations = (double)b->heap.libraries / (double)b->steps};
    f.tokens_per_s = 1e3 * (double)o->rows * o->length * o->gradient_accumulation_steps / f.median_ms;
    f.gflops = b->plan.flops_per_step / f.median_ms * 1e-6;
    return f;
}

static void print_text(const bench *b, const figures *f)
{
    printf("step        %.4g ms (median of %lld; p90 %.4g, max %.4g), %.4g tokens/s\n"
           "rate        %.1f GFLOP/s of the %.1f GFLOP/s that the products alone reach: %.1f%%\n"
           "            (the library with its own threads: %.1f GFLOP/s)\n"
           "host        %.1f us per micro-batch, device busy %.1f%%\n"
           "memory      %s at the peak, %s of it planned\n"
           "allocations %.3g of ours a step, %.4g of the product library\n"
           "first step  %.4g ms after the process started\n",
           f->median_ms, (long long)b->steps, f->p90_ms, f->max_ms, f->tokens_per_s, f->gflops,
           f->peak_gflops, 100 * f->gflops / f->peak_gflops, f->openmp_gflops, b->host_us,
           100 * b->utilization, cli_bytes(b->peak_bytes), cli_bytes(b->plan.peak_bytes), f->heap_allocations,
           f->library_allocations, b->first_step_ms);
}

static trd_status print_json(const bench *b, const figures *f)
{
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    trd__json_write_key(&w, "step_ms");
    trd__json_open_object(&w);
    trd__json_put_f64(&w, "median", f->median_ms);
    trd__json_put_f64(&w, "p90", f->p90_ms);
    trd__json_put_f64(&w, "max", f->max_ms);
    trd__json_close(&w);
    trd__json_put_f64(&w, "tokens_per_s", f->tokens_per_s);
    trd__json_put_i64(&w, "flops_per_step", (int64_t)b->plan.flops_per_step);
    trd__json_put_f64(&w, "gflops", f->gflops);
    trd__json_put_f64(&w, "peak_gflops", f->peak_gflops);
    trd__json_put_f64(&w, "library_openmp_gflops", f->openmp_gflops);
    trd__json_put_f64(&w, "mfu", f->gflops / f->peak_gflops);
    trd__json_put_f64(&w, "host_us_per_micro_batch", b->host_us);
    trd__json_put_f64(&w, "utilization", b->utilization);
    trd__json_put_i64(&w, "peak_rss_bytes", (int64_t)b->peak_bytes);
    trd__json_put_i64(&w, "planned_peak_bytes", (int64_t)b->plan.peak_bytes);
    trd__json_put_f64(&w, "heap_allocations_per_step", f->heap_allocations);
    trd__json_put_f64(&w, "library_allocations_per_step", f->library_allocations);
    trd__json_put_f64(&w, "first_step_ms", b->first_step_ms);
    trd__json_put_i64(&w, "steps", b->steps);
    trd__json_close(&w);
    return cli_print_json(&w);
}

static trd_status print_result(bench *b, bool json)
{
    figures f = summarize(b);
    if (json) return print_json(b, &f);
    print_text(b, &f);
    return TRD_OK;
}

static trd_status prepare(bench *b, int words, char **argv)
{
    TRD_TRY(cli_bench_config(&b->run, words, argv));
    b->step_ms = trd__calloc((size_t)b->steps, sizeof *b->step_ms);
    b->rates = trd__calloc((size_t)b->steps, sizeof *b->rates);
    b->openmp_rates = trd__calloc((size_t)b->steps, sizeof *b->openmp_rates);
    return b->step_ms && b->rates && b->openmp_rates ? TRD_OK : TRD_NO_MEMORY;
}

static int run_step_bench(int argc, char **argv)
{
    bench b = {.steps = 5, .warmup = 2};
    bool json = false;
    const cli_option options[] = {
        {.name = "--json", .kind = CLI_FLAG, .target = &json},
        {.name = "--steps", .kind = CLI_INT, .target = &b.steps, .min = 1, .max = MOST_STEPS},
        {.name = "--train-step", .kind = CLI_FLAG, .target = &b.fused},
        {.name = "--warmup", .kind = CLI_INT, .target = &b.warmup, .min = 1, .max = MOST_STEPS},
        {0}};
    int words, code = cli_parse(&cli_command_bench, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_bench, "step: needs a config file");
    trd_status status = prepare(&b, words, argv);
    if (!status) status = run_bench(&b);
    if (!status) status = print_result(&b, json);
    if (status) code = cli_fail();
    trd__free(b.tokens);
    trd__free(b.step_ms);
    trd__free(b.rates);
    trd__free(b.openmp_rates);
    if (cli_run_close(&b.run) && !code) code = cli_fail();
    return code;
}

static int run(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } parts[] = {{"step", run_step_bench},     {"ablation", cli_bench_ablation},
                 {"host", cli_bench_host},     {"checkpoint", cli_bench_checkpoint},
                 {"steady", cli_bench_steady}, {"arm", cli_bench_arm}};
    for (size_t i = 0; argc > 0 && i < sizeof parts / sizeof *parts; i++)
        if (strcmp(argv[0], parts[i].name) == 0) return parts[i].run(argc - 1, argv + 1);
    int words, code = cli_parse(&cli_command_bench, (const cli_option[]){{0}}, argc, argv, &words);
    return code ? code
                : cli_usage_error(
                      &cli_command_bench,
                      "expected step, host, steady, checkpoint or ablation, and a config file, found %s",
                      words ? argv[0] : "nothing");
}

const cli_command cli_command_bench = {
    .name = "bench",
    .summary = "speed, memory and host cost of training steps",
    .usage = "step|host|steady|checkpoint|ablation CONFIG.yml [key=value ...] [OPTION ...]",
    .help =
        "Trains on random tokens with every loss weight 1 (docs/benchmarks.md).\n\n"
        "bench step CONFIG.yml: a step's rate beside the product rate: what the machine reaches on the "
        "model's own matrix\n"
        "products, sampled between the steps.\n"
        "  --steps N      counted steps, default 5\n"
        "  --warmup N     steps before them, default 2\n"
        "  --train-step   forward, backward and update as one program\n"
        "  --json         one JSON object\n\n"
        "bench host CONFIG.yml: host time of each fwd_bwd and update, waiting on the throttler left out, "
        "beside a thread of\n"
        "equal duty.\n"
        "  --steps N      counted steps, default 1000\n"
        "  --idle         each call meets an empty queue, and no thread runs beside\n"
        "  --json         one JSON object\n\n"
        "bench steady CONFIG.yml: the slowest of many steps and the growth of resident memory, beside a "
        "loop of plain\n"
        "products of the same length.\n"
        "  --steps N      counted steps, default 1000\n"
        "  --json         one JSON object\n\n"
        "bench checkpoint CONFIG.yml: saving, to the durable end, and restoring from a warm cache. It "
        "writes to the\n"
        "run's folder and removes what it wrote.\n"
        "  --rounds N     counted rounds, default 3\n"
        "  --lines        a round for each line on its standard input, each told as a JSON object\n"
        "  --json         one JSON object\n\n"
        "bench ablation CONFIG.yml: each diagnostic switch, and all of them, against the default, with 1 "
        "and with 8\n"
        "micro-batches a step; fails where losses or programs differ that must not. Each arm is a process "
        "of its own,\n"
        "`treadle bench arm`, which runs a loop for each line on its standard input.\n"
        "  --steps N      steps of a loop, default 23\n"
        "  --rounds N     loops of each arm, taken in turn; medians are printed; default 3\n"
        "  --json         one JSON object",
    .run = run};
