/* treadle plan: memory by kind and FLOPs of a config, and what each of its programs moves, before anything
 * runs. */
#include <inttypes.h>

#include <treadle/treadle.h>

#include "cli/cli.h"

static void print_plan(const trd_plan *p)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {
        {"parameters", p->parameter_bytes},      {"optimizer state", p->optimizer_bytes},
        {"gradients", p->gradient_bytes},        {"model state", p->model_state_bytes},
        {"inputs and results", p->input_bytes},  {"activations", p->activation_bytes},
        {"kernel scratch", p->scratch_bytes},    {p->compiled ? "peak" : "sum of these", p->peak_bytes},
        {"one checkpoint", p->checkpoint_bytes}, {"snapshot of a save", p->snapshot_bytes}};
    printf("%s parameters, %sFLOP per step\n", cli_count((double)p->parameters),
           cli_count(p->flops_per_step));
    if (p->devices > 1)
        printf("each of %d devices: %sFLOP per step and\n", p->devices, cli_count(p->flops_per_device));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].bytes) printf("  %-20s %12s\n", rows[i].name, cli_bytes(rows[i].bytes));
    if (p->compiled && p->flops_per_step > 0)
        printf("remat: %s (+%.2f%% FLOP computed again)\n", p->recomputation,
               100 * p->recomputed_flops / p->flops_per_step);
    if (!p->compiled)
        puts("activations and temporaries are not among them, as nothing was compiled: that needs "
             "backend=pjrt and as many devices");
}

static void print_programs(const trd_program_info *programs, int count)
{
    if (!count) return; /* nothing was compiled, which the plan says */
    printf("\n%-12s %10s %12s %12s %12s %8s  %s\n", "program", "FLOP", "bytes read", "written", "peak",
           "kernels", "fingerprint");
    for (int i = 0; i < count; i++) {
        const trd_program_info *p = &programs[i];
        printf("%-12s %10s %12s %12s %12s %8d  %016" PRIx64 "\n", p->name, cli_count(p->flops),
               cli_bytes(p->bytes_read), cli_bytes(p->bytes_written), cli_bytes(p->peak_bytes), p->kernels,
               p->fingerprint);
    }
    if (!programs[0].lower_bound_bytes) return; /* a compiler of its own placed them */
    printf("\n%-12s %12s %12s %8s\n", "program", "temporaries", "live at once", "excess");
    for (int i = 0; i < count; i++) {
        const trd_program_info *p = &programs[i];
        double bound = (double)p->lower_bound_bytes;
        printf("%-12s %12s %12s %7.2f%%\n", p->name, cli_bytes(p->temporary_bytes),
               cli_bytes(p->lower_bound_bytes), bound ? 100 * ((double)p->temporary_bytes / bound - 1) : 0);
    }
}

static void put_programs(trd__json_writer *w, const trd_program_info *programs, int count)
{
    trd__json_write_key(w, "programs");
    trd__json_open_array(w);
    for (int i = 0; i < count; i++) {
        const trd_program_info *p = &programs[i];
        char fingerprint[17];
        snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, p->fingerprint);
        trd__json_open_object(w);
        trd__json_put_string(w, "name", p->name);
        trd__json_put_i64(w, "flops", (int64_t)p->flops);
        trd__json_put_i64(w, "bytes_read", (int64_t)p->bytes_read);
        trd__json_put_i64(w, "bytes_written", (int64_t)p->bytes_written);
        trd__json_put_i64(w, "peak_bytes", (int64_t)p->peak_bytes);
        trd__json_put_i64(w, "temporary_bytes", (int64_t)p->temporary_bytes);
        trd__json_put_i64(w, "lower_bound_bytes", (int64_t)p->lower_bound_bytes);
        trd__json_put_i64(w, "kernels", p->kernels);
        trd__json_put_string(w, "fingerprint", fingerprint);
        trd__json_close(w);
    }
    trd__json_close(w);
}

/* programs: NULL when they were not asked for. */
static trd_status print_json(const trd_plan *p, const trd_program_info *programs, int count)
{
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    trd__json_put_i64(&w, "parameters", p->parameters);
    trd__json_put_i64(&w, "flops_per_step", (int64_t)p->flops_per_step);
    trd__json_put_string(&w, "recomputation", p->recomputation);
    trd__json_put_i64(&w, "recomputed_flops", (int64_t)p->recomputed_flops);
    trd__json_put_i64(&w, "devices", p->devices);
    trd__json_put_i64(&w, "flops_per_device", (int64_t)p->flops_per_device);
    trd__json_put_bool(&w, "compiled", p->compiled);
    trd__json_put_i64(&w, "parameter_bytes", (int64_t)p->parameter_bytes);
    trd__json_put_i64(&w, "optimizer_bytes", (int64_t)p->optimizer_bytes);
    trd__json_put_i64(&w, "gradient_bytes", (int64_t)p->gradient_bytes);
    trd__json_put_i64(&w, "model_state_bytes", (int64_t)p->model_state_bytes);
    trd__json_put_i64(&w, "input_bytes", (int64_t)p->input_bytes);
    trd__json_put_i64(&w, "activation_bytes", (int64_t)p->activation_bytes);
    trd__json_put_i64(&w, "scratch_bytes", (int64_t)p->scratch_bytes);
    trd__json_put_i64(&w, "peak_bytes", (int64_t)p->peak_bytes);
    trd__json_put_i64(&w, "checkpoint_bytes", (int64_t)p->checkpoint_bytes);
    trd__json_put_i64(&w, "snapshot_bytes", (int64_t)p->snapshot_bytes);
    if (programs) put_programs(&w, programs, count);
    trd__json_close(&w);
    return cli_print_json(&w);
}

static int run(int argc, char **argv)
{
    bool json = false, with_programs = false;
    const cli_option options[] = {{.name = "--json", .kind = CLI_FLAG, .target = &json},
                                  {.name = "--programs", .kind = CLI_FLAG, .target = &with_programs},
                                  {0}};
    trd_program_info programs[TRD_PROGRAM_KINDS];
    int count = 0;
    int words, code = cli_parse(&cli_command_plan, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_plan, "needs a config file");
    trd_config *config;
    trd_plan plan;
    if (trd_config_load(argv[0], (const char *const *)argv + 1, words - 1, &config)) return cli_fail();
    trd_config_set_log(config, cli_log);
    trd_status status = trd_plan_options(trd_config_engine(config), &plan);
    trd_config_set_log(config, (trd_log_sink){0}); /* what there is to warn of has been said */
    if (!status && with_programs)
        status = trd_plan_programs(trd_config_engine(config), programs, TRD_PROGRAM_KINDS, &count);
    trd_config_free(config);
    if (!status && json) {
        status = print_json(&plan, with_programs ? programs : NULL, count);
    } else if (!status) {
        print_plan(&plan);
        if (with_programs) print_programs(programs, count);
    }
    return status ? cli_fail() : CLI_DONE;
}

const cli_command cli_command_plan = {
    .name = "plan",
    .summary = "memory by kind and FLOPs of a config, before anything runs",
    .usage = "CONFIG.yml [key=value ...] [--programs] [--json]",
    .help =
        "Compiles the programs of a config without loading or allocating weights and prints what a step "
        "will need.\n"
        "Presets for model_name:\n"
#define TRD_PRESET(name, ...) "  " name "\n"
#include "nn/models/presets.def"
#undef TRD_PRESET
        "\n"
        "  --programs   also each program: FLOPs, bytes its kernels read and write, memory it computes in,\n"
        "               kernel calls, and a fingerprint that is equal for equal programs; temporaries "
        "beside\n"
        "               the most of them that is live at once, and their excess over it\n"
        "  --json       one JSON object",
    .run = run};
