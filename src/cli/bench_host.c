/* treadle bench host: what a call of fwd_bwd and of update costs the host, waiting on the throttler left out.
 *
 * A control thread does plain work of the same duration at the same pace. Its slowest calls are those of the
 * machine, not of a program: a 99th percentile is judged beside it. Invariant: everything is compiled and
 * warmed up before the first counted call. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench.h"

enum { WARM_STEPS = 20, MOST_STEPS = 1000000, CALIBRATIONS = 200 };

typedef struct host_bench {
    cli_run run;
    int64_t steps;
    bool idle;
    int32_t *tokens;
    double *micro_us, *update_us, *control_us;
} host_bench;

typedef struct control {
    double *us;
    int64_t capacity, count;
    int64_t rounds;    /* of work a call does */
    uint64_t pause_ns; /* between calls */
    atomic_bool stop;
} control;

/* Work that depends on itself, so that no compiler shortens it. */
static double work(int64_t rounds)
{
    volatile uint64_t x = 1;
    uint64_t begin = trd__now_ns();
    for (int64_t i = 0; i < rounds; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    return 1e-3 * (double)(trd__now_ns() - begin);
}

static void *run_control(void *context)
{
    control *c = context;
    struct timespec pause = {.tv_sec = (time_t)(c->pause_ns / 1000000000u),
                             .tv_nsec = (long)(c->pause_ns % 1000000000u)};
    while (!atomic_load(&c->stop) && c->count < c->capacity) {
        c->us[c->count++] = work(c->rounds);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static trd_status run_steps(host_bench *b, int64_t steps)
{
    const trd_engine_options *o = &b->run.options;
    trd_engine *engine = b->run.engine;
    int64_t cycle = o->gradient_accumulation_steps;
    trd_batch batch = {.rows = o->rows, .length = o->length, .token_ids = b->tokens};
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t i = 0; i < cycle; i++) {
            if (b->idle) TRD_TRY(trd_engine_wait(engine));
            double before = cli_bench_host_us(&b->run);
            TRD_TRY(trd_engine_fwd_bwd(engine, &batch));
            b->micro_us[s * cycle + i] = cli_bench_host_us(&b->run) - before;
        }
        if (b->idle) TRD_TRY(trd_engine_wait(engine));
        double before = cli_bench_host_us(&b->run);
        TRD_TRY(trd_engine_update(engine));
        b->update_us[s] = cli_bench_host_us(&b->run) - before;
    }
    return trd_engine_wait(engine);
}

static int64_t rounds_for(double us)
{
    double samples[CALIBRATIONS];
    const int64_t rounds = 1000;
    for (int i = 0; i < CALIBRATIONS; i++) samples[i] = work(rounds);
    double each = cli_quantile(samples, CALIBRATIONS, 0.5) / (double)rounds;
    return each > 0 ? (int64_t)(us / each) + 1 : rounds;
}

/* The counted calls, with the control thread beside them. */
static trd_status measure(host_bench *b, control *c)
{
    int64_t calls = b->steps * b->run.options.gradient_accumulation_steps;
    int64_t warm = WARM_STEPS < b->steps ? WARM_STEPS : b->steps;
    uint64_t begin = trd__now_ns();
    TRD_TRY(run_steps(b, warm));
    *c = (control){.us = b->control_us};
    if (b->idle) return run_steps(b, b->steps);
    double micro = cli_quantile(b->micro_us, warm * b->run.options.gradient_accumulation_steps, 0.5);
    *c = (control){.us = b->control_us,
                   .capacity = calls,
                   .rounds = rounds_for(micro),
                   .pause_ns = (trd__now_ns() - begin) / (uint64_t)(warm * calls / b->steps)};
    pthread_t thread;
    bool runs = pthread_create(&thread, NULL, run_control, c) == 0;
    trd_status status = run_steps(b, b->steps);
    atomic_store(&c->stop, true);
    if (runs) pthread_join(thread, NULL);
    return status;
}

typedef struct spread {
    double p50, p99;
} spread;

static spread spread_of(double *us, int64_t count)
{
    return (spread){cli_quantile(us, count, 0.5), cli_quantile(us, count, 0.99)};
}

static void put_spread(trd__json_writer *w, const char *key, spread s)
{
    trd__json_write_key(w, key);
    trd__json_open_object(w);
    trd__json_put_f64(w, "p50", s.p50);
    trd__json_put_f64(w, "p99", s.p99);
    trd__json_close(w);
}

static trd_status print_result(host_bench *b, const control *c, bool json)
{
    int64_t calls = b->steps * b->run.options.gradient_accumulation_steps;
    spread micro = spread_of(b->micro_us, calls), update = spread_of(b->update_us, b->steps),
           idle = spread_of(b->control_us, c->count);
    if (!json) {
        printf("fwd_bwd   p50 %.1f us, p99 %.1f us (%lld calls)\n"
               "update    p50 %.1f us, p99 %.1f us (%lld calls)\n",
               micro.p50, micro.p99, (long long)calls, update.p50, update.p99, (long long)b->steps);
        if (c->count)
            printf("control   p50 %.1f us, p99 %.1f us (a thread of equal duty, %lld calls)\n", idle.p50,
                   idle.p99, (long long)c->count);
        return TRD_OK;
    }
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    put_spread(&w, "fwd_bwd_us", micro);
    put_spread(&w, "update_us", update);
    put_spread(&w, "control_us", idle);
    trd__json_put_i64(&w, "calls", calls);
    trd__json_close(&w);
    return cli_print_json(&w);
}

static trd_status run_bench(host_bench *b, int words, char **argv, bool json)
{
    TRD_TRY(cli_bench_config(&b->run, words, argv));
    size_t steps = (size_t)b->steps, calls = steps * (size_t)b->run.options.gradient_accumulation_steps;
    b->micro_us = trd__calloc(calls, sizeof *b->micro_us);
    b->update_us = trd__calloc(steps, sizeof *b->update_us);
    b->control_us = trd__calloc(calls, sizeof *b->control_us);
    if (!b->micro_us || !b->update_us || !b->control_us) return TRD_NO_MEMORY;
    TRD_TRY(cli_run_engine(&b->run, false));
    TRD_TRY(cli_bench_tokens(&b->run, 1, &b->tokens));
    const trd_engine_options *o = &b->run.options;
    trd_batch batch = {.rows = o->rows, .length = o->length, .token_ids = b->tokens};
    TRD_TRY(trd_engine_compile(b->run.engine, &batch));
    control c;
    TRD_TRY(measure(b, &c));
    return print_result(b, &c, json);
}

int cli_bench_host(int argc, char **argv)
{
    host_bench b = {.steps = 1000};
    bool json = false;
    const cli_option options[] = {
        {.name = "--idle", .kind = CLI_FLAG, .target = &b.idle},
        {.name = "--json", .kind = CLI_FLAG, .target = &json},
        {.name = "--steps", .kind = CLI_INT, .target = &b.steps, .min = 1, .max = MOST_STEPS},
        {0}};
    int words, code = cli_parse(&cli_command_bench, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_bench, "host: needs a config file");
    if (run_bench(&b, words, argv, json)) code = cli_fail();
    trd__free(b.tokens);
    trd__free(b.control_us);
    trd__free(b.update_us);
    trd__free(b.micro_us);
    if (cli_run_close(&b.run) && !code) code = cli_fail();
    return code;
}
