/* treadle profile: where the device's time went in a run's traces, and how two runs differ. */
#include <string.h>

#include "cli/cli.h"
#include "cli/profile_data.h"

enum { COSTLIEST = 10 }; /* ops that are printed unless all are asked for */

static double per_second(double amount, double us)
{
    return us > 0 ? amount / us * 1e6 : 0;
}

static double busy_share(const cli_profile *p)
{
    return p->extent_us > 0 ? p->busy_us / p->extent_us : 0;
}

static double mean_us(const cli_profile_row *row)
{
    return row->calls ? row->total_us / (double)row->calls : 0;
}

static double share(const cli_profile *p, const cli_profile_row *row)
{
    return p->busy_us > 0 ? row->total_us / p->busy_us : 0;
}

/* The other run's row of that name; of several (a program of two lengths), the one with the same detail, else
 * the costliest. */
static const cli_profile_row *counterpart(const cli_profile_rows *rows, const cli_profile_row *row)
{
    const cli_profile_row *best = NULL;
    for (int i = 0; i < rows->count; i++) {
        const cli_profile_row *other = &rows->rows[i];
        if (strcmp(other->name, row->name) != 0) continue;
        if (strcmp(other->detail, row->detail) == 0) return other;
        if (!best) best = other;
    }
    return best;
}

static void print_head(const char *path, const cli_profile *p)
{
    printf("%s: %lld micro-steps in %d %s, %lld %s, device busy %.2f%%\n", path, (long long)p->micro_steps,
           p->windows, p->windows == 1 ? "trace" : "traces", (long long)p->workers,
           p->workers == 1 ? "thread" : "threads", 100 * busy_share(p));
    if (p->dropped_spans)
        printf("%lld spans found no room: the figures are too low\n", (long long)p->dropped_spans);
}

/* A ratio of times: below 1 is faster than the other run. */
static void print_ratio(const cli_profile_row *row, const cli_profile_row *other)
{
    if (other && mean_us(other) > 0)
        printf("  %6.3f", mean_us(row) / mean_us(other));
    else
        printf("  %6s", "-");
}

static void print_programs(const cli_profile *p, const cli_profile *against)
{
    printf("\n%-12s  %-16s  %6s  %10s  %6s  %9s  %7s%s\n", "program", "fingerprint", "runs", "mean ms",
           "share", "GFLOP/s", "GB/s", against ? "   ratio  program is" : "");
    for (int i = 0; i < p->programs.count; i++) {
        const cli_profile_row *row = &p->programs.rows[i];
        printf("%-12s  %-16s  %6lld  %10.3f  %5.1f%%  %9.2f  %7.2f", row->name, row->detail,
               (long long)row->calls, mean_us(row) / 1e3, 100 * share(p, row),
               per_second(row->flops, row->total_us) / 1e9, per_second(row->bytes, row->total_us) / 1e9);
        if (against) {
            const cli_profile_row *other = counterpart(&against->programs, row);
            print_ratio(row, other);
            printf("  %s", !other ? "new" : strcmp(other->detail, row->detail) == 0 ? "the same" : "another");
        }
        putchar('\n');
    }
}

static void print_ops(const cli_profile *p, const cli_profile *against, int most)
{
    printf("\n%-52s  %-10s  %7s  %10s  %6s  %9s  %7s%s\n", "costliest ops", "kernel", "calls", "total ms",
           "share", "GFLOP/s", "GB/s", against ? "   ratio" : "");
    for (int i = 0; i < p->ops.count && i < most; i++) {
        const cli_profile_row *row = &p->ops.rows[i];
        printf("%-52s  %-10s  %7lld  %10.3f  %5.1f%%  %9.2f  %7.2f", row->name, row->detail,
               (long long)row->calls, row->total_us / 1e3, 100 * share(p, row),
               per_second(row->flops, row->total_us) / 1e9, per_second(row->bytes, row->total_us) / 1e9);
        if (against) print_ratio(row, counterpart(&against->ops, row));
        putchar('\n');
    }
}

static void put_rows(trd__json_writer *w, const char *key, const char *detail, const cli_profile *p,
                     const cli_profile_rows *rows)
{
    trd__json_write_key(w, key);
    trd__json_open_array(w);
    for (int i = 0; i < rows->count; i++) {
        const cli_profile_row *row = &rows->rows[i];
        trd__json_open_object(w);
        trd__json_put_string(w, "name", row->name);
        trd__json_put_string(w, detail, row->detail);
        trd__json_put_i64(w, "calls", row->calls);
        trd__json_put_f64(w, "total_ms", row->total_us / 1e3);
        trd__json_put_f64(w, "mean_ms", mean_us(row) / 1e3);
        trd__json_put_f64(w, "share", share(p, row));
        trd__json_put_f64(w, "flops_per_second", per_second(row->flops, row->total_us));
        trd__json_put_f64(w, "bytes_per_second", per_second(row->bytes, row->total_us));
        trd__json_close(w);
    }
    trd__json_close(w);
}

static void put_profile(trd__json_writer *w, const char *path, const cli_profile *p)
{
    trd__json_open_object(w);
    trd__json_put_string(w, "run", path);
    trd__json_put_i64(w, "traces", p->windows);
    trd__json_put_i64(w, "micro_steps", p->micro_steps);
    trd__json_put_i64(w, "workers", p->workers);
    trd__json_put_i64(w, "dropped_spans", p->dropped_spans);
    trd__json_put_f64(w, "device_busy_share", busy_share(p));
    trd__json_put_f64(w, "device_busy_ms", p->busy_us / 1e3);
    put_rows(w, "programs", "fingerprint", p, &p->programs);
    put_rows(w, "ops", "kernel", p, &p->ops);
}

static trd_status print_json(const char *path, const cli_profile *p, const char *other,
                             const cli_profile *against)
{
    trd__json_writer w = {0};
    put_profile(&w, path, p);
    if (against) {
        trd__json_write_key(&w, "against");
        put_profile(&w, other, against);
        trd__json_close(&w);
    }
    trd__json_close(&w);
    return cli_print_json(&w);
}

static void print_text(const char *path, const cli_profile *p, const char *other, const cli_profile *against,
                       bool all)
{
    print_head(path, p);
    if (against) print_head(other, against);
    print_programs(p, against);
    print_ops(p, against, all ? p->ops.count : COSTLIEST);
    if (against) printf("\nratio: mean time of a call here to that of %s\n", other);
}

static trd_status show(const char *path, const char *other, bool all, bool json)
{
    cli_profile profile, against = {0};
    TRD_TRY(cli_profile_read(path, &profile));
    trd_status status = other ? cli_profile_read(other, &against) : TRD_OK;
    if (status == TRD_OK && json)
        status = print_json(path, &profile, other, other ? &against : NULL);
    else if (status == TRD_OK)
        print_text(path, &profile, other, other ? &against : NULL, all);
    cli_profile_free(&against);
    cli_profile_free(&profile);
    return status;
}

static int run(int argc, char **argv)
{
    bool all = false, json = false;
    const char *other = NULL;
    const cli_option options[] = {{.name = "--json", .kind = CLI_FLAG, .target = &json},
                                  {.name = "--all", .kind = CLI_FLAG, .target = &all},
                                  {.name = "--against", .kind = CLI_TEXT, .target = &other},
                                  {0}};
    int words, code = cli_parse(&cli_command_profile, options, argc, argv, &words);
    if (code) return code;
    if (words != 1) return cli_usage_error(&cli_command_profile, "needs one run, found %d", words);
    return show(argv[0], other, all, json) ? cli_fail() : CLI_DONE;
}

const cli_command cli_command_profile = {
    .name = "profile",
    .summary = "where the device's time went in a run's traces",
    .usage = "RUN [--all] [--against RUN] [--json]",
    .help = "Adds up the traces that `profiler: trace` left in RUN/profile: the share of time the device was "
            "busy,\n"
            "each program's fingerprint, runs and mean time, and the ten costliest ops with the FLOP/s and "
            "bytes/s\n"
            "they reached. RUN is a run's folder or one trace file. The traces open in ui.perfetto.dev.\n\n"
            "  --all           every op, not only the ten costliest\n"
            "  --against RUN   also compares with another run: ratios of mean times, and whether programs "
            "are the same\n"
            "  --json          one JSON object, with every op",
    .run = run};
