/* treadle bench ablation: every diagnostic switch against the default, in one table. Each arm is a process of
 * its own (treadle bench arm) that stands still while another one measures; loops go round the arms, so that
 * a drift of the machine meets all of them. Where not all fit in memory, groups run one after the other, each
 * with a default of its own to compare with. What must not depend on a switch is held: losses to the bit, and
 * programs by their fingerprints. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench.h"

enum { MOST_ROUNDS = 100, MOST_PROGRAMS = 8, MOST_WORDS = 64, LINE_BYTES = 1 << 16, TEXT = 48 };

typedef struct arm_kind {
    const char *label;
    const char *overrides[TRD_DIAGNOSTIC_COUNT + 1]; /* NULL-terminated unless full */
    bool same;                                       /* losses to the bit, and programs */
} arm_kind;

/* A switch that only adds host work changes neither losses nor programs. */
#define OVERRIDE(name, key, normal, slow, resume, help) #key "=" slow,
#define ON_THE_HOST(which) ((which) != TRD_DIAGNOSTIC_ACCUMULATE && (which) != TRD_DIAGNOSTIC_CLIP_NORM)
#define ARM(name, key, normal, slow, resume, help)                                                           \
    {#key ": " slow, {#key "=" slow}, ON_THE_HOST(TRD_DIAGNOSTIC_##name)},
static const arm_kind kinds[] = {
    {"default", {NULL}, true},
    TRD_DIAGNOSTIC_LIST(ARM){"max_inflight_computations: 1", {"max_inflight_computations=1"}, true},
    {"max_inflight_computations: 8", {"max_inflight_computations=8"}, true},
    {"all slow", {TRD_DIAGNOSTIC_LIST(OVERRIDE) "max_inflight_computations=1"}, false},
};
#undef ARM
#undef ON_THE_HOST
#undef OVERRIDE
enum {
    KINDS = sizeof kinds / sizeof *kinds,
    INFLIGHT_1 = TRD_DIAGNOSTIC_COUNT + 1,
    INFLIGHT_8 = TRD_DIAGNOSTIC_COUNT + 2
};

typedef struct program {
    char name[TEXT], fingerprint[TEXT];
} program;

/* One arm: its process while it runs, and what it told. */
typedef struct arm {
    const arm_kind *kind;
    pid_t pid; /* 0: none */
    FILE *to, *from;
    double start_s, end_s; /* from the process's start to its first loop, and from the last one to its end */
    program programs[MOST_PROGRAMS];
    int program_count;
    double *figures[CLI_ARM_COUNT]; /* by round */
    double *losses;                 /* by round and step */
} arm;

/* What a row of the table says. */
typedef struct row {
    double step_ms, micro_ms, loop_ms, wall_s, host_micro_us, host_update_us, busy_ms, share, worst_ms, peak;
    double loop_ratio;             /* to the default's loop of the same round */
    double busy_ratio;             /* to the default's, of steps made of each program's shortest run */
    double loss_off;               /* largest relative difference of a loss in the first loop */
    bool same_losses;              /* bits of all loops */
    char other_programs[4 * TEXT]; /* names, "" for the same ones */
} row;

typedef struct ablation {
    cli_run run;
    int words;
    char **argv;
    int64_t steps, rounds;
    int64_t cycle; /* gradient_accumulation_steps */
    arm arms[KINDS];
    row rows[KINDS];
    bool json;
    trd__json_writer writer;
    bool broken; /* something that must be the same is not */
} ablation;

/* -- Processes -- */

static trd_status spawn(arm *a, char *const *words)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC)) return trd__fail(TRD_IO, "starting an arm: the system gave no pipe");
    if (pipe2(out, O_CLOEXEC)) {
        close(in[0]);
        close(in[1]);
        return trd__fail(TRD_IO, "starting an arm: the system gave no pipe");
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    int failed = posix_spawn(&a->pid, "/proc/self/exe", &actions, NULL, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    a->to = fdopen(in[1], "w");
    a->from = fdopen(out[0], "r");
    if (!failed && a->to && a->from) return TRD_OK;
    if (failed) a->pid = 0;
    return trd__fail(TRD_IO, "starting an arm: %s", failed ? strerror(failed) : "no memory for its pipes");
}

/* Ends the arm's input, which ends the arm. */
static trd_status finish(arm *a)
{
    uint64_t begin = trd__now_ns();
    int status = 0;
    if (a->to) fclose(a->to);
    if (a->from) fclose(a->from);
    a->to = a->from = NULL;
    if (!a->pid) return TRD_OK;
    waitpid(a->pid, &status, 0);
    a->pid = 0;
    a->end_s = 1e-9 * (double)(trd__now_ns() - begin);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return TRD_OK;
    return trd__fail(TRD_IO, "the arm \"%s\" failed", a->kind->label);
}

static trd_status listen_to(arm *a, trd__json_doc **doc)
{
    char *line = trd__alloc(LINE_BYTES, 1);
    if (!line) return TRD_NO_MEMORY;
    trd_status status = TRD_OK;
    if (!fgets(line, LINE_BYTES, a->from))
        status = trd__fail(TRD_IO, "the arm \"%s\" ended too early", a->kind->label);
    if (!status) status = trd__json_parse(line, strlen(line), a->kind->label, doc);
    trd__free(line);
    return status;
}

static trd_status read_programs(arm *a, trd__json root)
{
    trd__json programs;
    TRD_TRY(trd__json_get_object(root, "programs", &programs));
    a->program_count = 0;
    for (trd__json v = trd__json_first(programs); trd__json_exists(v); v = trd__json_next(v)) {
        const char *fingerprint;
        TRD_TRY(trd__json_as_string(v, &fingerprint));
        if (a->program_count == MOST_PROGRAMS)
            return trd__fail(TRD_INTERNAL, "the arm \"%s\" has more programs than expected", a->kind->label);
        program *p = &a->programs[a->program_count++];
        snprintf(p->name, sizeof p->name, "%s", trd__json_key(v));
        snprintf(p->fingerprint, sizeof p->fingerprint, "%s", fingerprint);
    }
    return TRD_OK;
}

static trd_status begin(ablation *b, arm *a)
{
    char cycle[TEXT], steps[TEXT], *words[MOST_WORDS] = {"treadle", "bench", "arm", "--steps", steps};
    int count = 5;
    snprintf(steps, sizeof steps, "%lld", (long long)b->steps);
    snprintf(cycle, sizeof cycle, "gradient_accumulation_steps=%lld", (long long)b->cycle);
    for (int i = 0; i < b->words; i++) words[count++] = b->argv[i];
    words[count++] = cycle;
    for (size_t i = 0; i < sizeof a->kind->overrides / sizeof *a->kind->overrides && a->kind->overrides[i];
         i++)
        words[count++] = (char *)a->kind->overrides[i];
    uint64_t start = trd__now_ns();
    trd__json_doc *doc = NULL;
    TRD_TRY(spawn(a, words));
    TRD_TRY(listen_to(a, &doc));
    a->start_s = 1e-9 * (double)(trd__now_ns() - start);
    trd_status status = read_programs(a, trd__json_root(doc));
    trd__json_free(doc);
    return status;
}

static trd_status read_loop(const ablation *b, arm *a, int64_t round, trd__json root)
{
    trd__json losses;
    for (int i = 0; i < CLI_ARM_COUNT; i++)
        TRD_TRY(trd__json_get_f64(root, cli_arm_names[i], &a->figures[i][round]));
    TRD_TRY(trd__json_get_array(root, "losses", &losses));
    double *next = a->losses + round * b->steps, *end = next + b->steps;
    for (trd__json v = trd__json_first(losses); trd__json_exists(v) && next < end; v = trd__json_next(v))
        TRD_TRY(trd__json_as_f64(v, next++));
    return next == end ? TRD_OK : trd__fail(TRD_INTERNAL, "the arm \"%s\" left steps out", a->kind->label);
}

static trd_status loop(const ablation *b, arm *a, int64_t round)
{
    trd__json_doc *doc = NULL;
    fputc('\n', a->to);
    fflush(a->to);
    TRD_TRY(listen_to(a, &doc));
    trd_status status = read_loop(b, a, round, trd__json_root(doc));
    trd__json_free(doc);
    return status;
}

/* -- Groups -- */

/* The default (arm 0) and count arms from first. Every other round goes backward. */
static trd_status measure_group(ablation *b, int first, int count)
{
    arm *group[KINDS] = {&b->arms[0]};
    for (int i = 0; i < count; i++) group[i + 1] = &b->arms[first + i];
    for (int i = 0; i <= count; i++) TRD_TRY(begin(b, group[i]));
    for (int64_t round = 0; round < b->rounds; round++)
        for (int i = 0; i <= count; i++) TRD_TRY(loop(b, group[round % 2 ? count - i : i], round));
    for (int i = 0; i <= count; i++) TRD_TRY(finish(group[i]));
    return TRD_OK;
}

/* The median over the rounds of top, or of top / bottom. */
static double median(const ablation *b, const double *top, const double *bottom)
{
    double values[MOST_ROUNDS];
    for (int64_t r = 0; r < b->rounds; r++) values[r] = bottom ? top[r] / bottom[r] : top[r];
    return cli_quantile(values, b->rounds, 0.5);
}

static void compare_programs(const arm *normal, const arm *a, row *r)
{
    size_t used = 0;
    r->other_programs[0] = '\0';
    for (int i = 0; i < a->program_count; i++) {
        bool same = false;
        for (int k = 0; k < normal->program_count && !same; k++)
            same = strcmp(a->programs[i].name, normal->programs[k].name) == 0 &&
                   strcmp(a->programs[i].fingerprint, normal->programs[k].fingerprint) == 0;
        if (!same && used < sizeof r->other_programs)
            used += (size_t)snprintf(r->other_programs + used, sizeof r->other_programs - used, "%s%s",
                                     used ? ", " : "", a->programs[i].name);
    }
}

static void compare_losses(const ablation *b, const arm *normal, const arm *a, row *r)
{
    size_t count = (size_t)(b->rounds * b->steps);
    r->same_losses = memcmp(a->losses, normal->losses, count * sizeof *a->losses) == 0;
    r->loss_off = 0;
    for (int64_t i = 0; i < b->steps; i++)
        r->loss_off = fmax(r->loss_off, fabs(a->losses[i] - normal->losses[i]) / fabs(normal->losses[i]));
}

static void summarize(ablation *b, int which)
{
    const arm *a = &b->arms[which], *normal = &b->arms[0];
    row *r = &b->rows[which];
    double *const *f = a->figures, steps = (double)b->steps, *update = f[CLI_ARM_UPDATE_BUSY_MS];
    double micro[MOST_ROUNDS];
    for (int64_t i = 0; i < b->rounds; i++)
        micro[i] = (f[CLI_ARM_LOOP_MS][i] - update[i]) / (steps * (double)b->cycle);
    r->loop_ms = median(b, f[CLI_ARM_LOOP_MS], NULL);
    r->step_ms = r->loop_ms / steps;
    r->micro_ms = median(b, micro, NULL);
    r->wall_s = a->start_s + 1e-3 * r->loop_ms + a->end_s;
    r->host_micro_us = median(b, f[CLI_ARM_HOST_MICRO_US], NULL);
    r->host_update_us = median(b, f[CLI_ARM_HOST_UPDATE_US], NULL);
    r->busy_ms = median(b, f[CLI_ARM_BUSY_MS], NULL) / steps;
    r->share = median(b, f[CLI_ARM_BUSY_MS], f[CLI_ARM_LOOP_MS]);
    r->worst_ms = median(b, f[CLI_ARM_WORST_STEP_MS], NULL);
    r->peak = f[CLI_ARM_PEAK_BYTES][b->rounds - 1];
    r->loop_ratio = median(b, f[CLI_ARM_LOOP_MS], normal->figures[CLI_ARM_LOOP_MS]);
    r->busy_ratio =
        f[CLI_ARM_LEAST_BUSY_MS][b->rounds - 1] / normal->figures[CLI_ARM_LEAST_BUSY_MS][b->rounds - 1];
    compare_losses(b, normal, a, r);
    compare_programs(normal, a, r);
    b->broken |= a->kind->same && (!r->same_losses || *r->other_programs);
}

static uint64_t available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    if (file) fclose(file);
    return (uint64_t)kib * 1024;
}

/* As many arms beside the default as half of the memory holds, one at least. */
static trd_status group_size(const ablation *b, int *size)
{
    trd_plan plan;
    trd_engine_options options = b->run.options;
    options.diagnostics[TRD_DIAGNOSTIC_ACCUMULATE] = true; /* the largest arm */
    TRD_TRY(trd_plan_options(&options, &plan));
    uint64_t fit = available_bytes() / 2 / (plan.peak_bytes + 1);
    *size = fit <= 2 ? 1 : fit > KINDS ? KINDS - 1 : (int)fit - 1;
    return TRD_OK;
}

static trd_status measure(ablation *b)
{
    int size;
    TRD_TRY(group_size(b, &size));
    for (int first = 1; first < KINDS; first += size) {
        int count = KINDS - first < size ? KINDS - first : size;
        trd_status status = measure_group(b, first, count);
        for (int i = 0; i < KINDS; i++) /* those that a failure left */
            if (b->arms[i].pid) finish(&b->arms[i]);
        TRD_TRY(status);
        if (first == 1) summarize(b, 0);
        for (int i = first; i < first + count; i++) summarize(b, i);
    }
    return TRD_OK;
}

/* -- Output -- */

static double inflight_difference(const ablation *b)
{
    return fabs(b->rows[INFLIGHT_8].peak - b->rows[INFLIGHT_1].peak);
}

static void print_row(const char *label, const row *r)
{
    char losses[TEXT];
    snprintf(losses, sizeof losses, "within %.1g", r->loss_off);
    printf(
        "| %-28s | %7.4g | %10.3f | %14.4g | %7.4g | %6.3g | %19.1f | %14.1f | %12.4g | %9.2f%% | %+14.2f%% "
        "| %8.4g | %-12s | %-19s |\n",
        label, r->step_ms, r->loop_ratio, r->micro_ms, r->loop_ms, r->wall_s, r->host_micro_us,
        r->host_update_us, r->busy_ms, 100 * r->share, 100 * (r->busy_ratio - 1), r->worst_ms,
        r->same_losses ? "same" : losses, *r->other_programs ? r->other_programs : "same");
}

static void print_table(const ablation *b)
{
    printf("%lld micro-batch%s a step, %lld steps a loop, median of %lld loops\n\n"
           "| switch                       | ms/step | to default | ms/micro-batch | ms/loop | wall s "
           "| host us/micro-batch | host us/update | busy ms/step | busy share | busy to default | worst ms "
           "| losses       | programs            |\n"
           "|------------------------------|---------|------------|----------------|---------|--------"
           "|---------------------|----------------|--------------|------------|-----------------|----------"
           "|--------------|---------------------|\n",
           (long long)b->cycle, b->cycle > 1 ? "es" : "", (long long)b->steps, (long long)b->rounds);
    for (int i = 0; i < KINDS; i++) print_row(kinds[i].label, &b->rows[i]);
    printf("\nPeak memory with max_inflight_computations 1 and 8: %s and %s, difference %s.\n\n",
           cli_bytes((uint64_t)b->rows[INFLIGHT_1].peak), cli_bytes((uint64_t)b->rows[INFLIGHT_8].peak),
           cli_bytes((uint64_t)inflight_difference(b)));
    fflush(stdout);
}

static void write_row(const ablation *b, trd__json_writer *w, const char *label, const row *r)
{
    trd__json_open_object(w);
    trd__json_put_string(w, "switch", label);
    trd__json_put_i64(w, "gradient_accumulation_steps", b->cycle);
    trd__json_put_f64(w, "ms_per_step", r->step_ms);
    trd__json_put_f64(w, "ms_per_micro_batch", r->micro_ms);
    trd__json_put_f64(w, "loop_ms", r->loop_ms);
    trd__json_put_f64(w, "loop_to_default", r->loop_ratio);
    trd__json_put_f64(w, "wall_s", r->wall_s);
    trd__json_put_f64(w, "host_us_per_micro_batch", r->host_micro_us);
    trd__json_put_f64(w, "host_us_per_update", r->host_update_us);
    trd__json_put_f64(w, "busy_ms_per_step", r->busy_ms);
    trd__json_put_f64(w, "busy_share", r->share);
    trd__json_put_f64(w, "busy_to_default", r->busy_ratio);
    trd__json_put_f64(w, "worst_step_ms", r->worst_ms);
    trd__json_put_i64(w, "peak_rss_bytes", (int64_t)r->peak);
    trd__json_put_bool(w, "same_losses", r->same_losses);
    trd__json_put_f64(w, "loss_off", r->loss_off);
    trd__json_put_string(w, "other_programs", r->other_programs);
    trd__json_close(w);
}

static trd_status run_cycle(ablation *b, int64_t cycle)
{
    b->cycle = cycle;
    TRD_TRY(measure(b));
    if (!b->json) print_table(b);
    for (int i = 0; b->json && i < KINDS; i++) write_row(b, &b->writer, kinds[i].label, &b->rows[i]);
    return TRD_OK;
}

static trd_status prepare(ablation *b)
{
    TRD_TRY(cli_bench_config(&b->run, b->words, b->argv));
    for (int i = 0; i < KINDS; i++) {
        arm *a = &b->arms[i];
        a->kind = &kinds[i];
        a->losses = trd__calloc((size_t)(b->rounds * b->steps), sizeof *a->losses);
        if (!a->losses) return TRD_NO_MEMORY;
        for (int k = 0; k < CLI_ARM_COUNT; k++) {
            a->figures[k] = trd__calloc((size_t)b->rounds, sizeof *a->figures[k]);
            if (!a->figures[k]) return TRD_NO_MEMORY;
        }
    }
    return TRD_OK;
}

static trd_status run_all(ablation *b)
{
    TRD_TRY(prepare(b));
    if (b->json) {
        trd__json_open_object(&b->writer);
        trd__json_put_i64(&b->writer, "steps", b->steps);
        trd__json_put_i64(&b->writer, "rounds", b->rounds);
        trd__json_write_key(&b->writer, "rows");
        trd__json_open_array(&b->writer);
    }
    TRD_TRY(run_cycle(b, 1));
    TRD_TRY(run_cycle(b, 8));
    if (b->json) {
        trd__json_close(&b->writer);
        trd__json_close(&b->writer);
        TRD_TRY(cli_print_json(&b->writer));
    }
    if (!b->broken) return TRD_OK;
    return trd__fail(
        TRD_INTERNAL,
        "ablation: expected the default's losses and programs of every switch that only adds host "
        "work, found others; the table says where");
}

int cli_bench_ablation(int argc, char **argv)
{
    ablation b = {.steps = 23, .rounds = 3, .argv = argv};
    const cli_option options[] = {
        {.name = "--json", .kind = CLI_FLAG, .target = &b.json},
        {.name = "--steps", .kind = CLI_INT, .target = &b.steps, .min = 1, .max = CLI_BENCH_STEPS},
        {.name = "--rounds", .kind = CLI_INT, .target = &b.rounds, .min = 1, .max = MOST_ROUNDS},
        {0}};
    int code = cli_parse(&cli_command_bench, options, argc, argv, &b.words);
    if (code) return code;
    if (!b.words) return cli_usage_error(&cli_command_bench, "ablation: needs a config file");
    if (b.words > MOST_WORDS / 2)
        return cli_usage_error(&cli_command_bench, "ablation: at most %d words", MOST_WORDS / 2);
    signal(SIGPIPE, SIG_IGN); /* an arm that fails is told by its silence */
    if (run_all(&b)) code = cli_fail();
    trd__json_writer_free(&b.writer);
    for (int i = KINDS - 1; i >= 0; i--) {
        for (int k = CLI_ARM_COUNT - 1; k >= 0; k--) trd__free(b.arms[i].figures[k]);
        trd__free(b.arms[i].losses);
    }
    if (cli_run_close(&b.run) && !code) code = cli_fail();
    return code;
}
