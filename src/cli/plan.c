/* treadle plan: memory by kind and FLOPs of a config, before anything runs. */
#include <treadle/treadle.h>

#include "cli/cli.h"

static void print_plan(const trd_plan *p)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {{"parameters", p->parameter_bytes},
                {"optimizer state", p->optimizer_bytes},
                {"gradients", p->gradient_bytes},
                {"inputs and results", p->input_bytes},
                {"activations", p->activation_bytes},
                {"kernel scratch", p->scratch_bytes},
                {"peak", p->peak_bytes},
                {"one checkpoint", p->checkpoint_bytes}};
    printf("%s parameters, %sFLOP per step\n", cli_count((double)p->parameters),
           cli_count(p->flops_per_step));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("  %-20s %12s\n", rows[i].name, cli_bytes(rows[i].bytes));
}

static void print_json(const trd_plan *p)
{
    printf("{\"parameters\": %lld, \"flops_per_step\": %.0f, \"parameter_bytes\": %llu, \"optimizer_bytes\": "
           "%llu, "
           "\"gradient_bytes\": %llu, \"input_bytes\": %llu, \"activation_bytes\": %llu, \"scratch_bytes\": "
           "%llu, "
           "\"peak_bytes\": %llu, \"checkpoint_bytes\": %llu}\n",
           (long long)p->parameters, p->flops_per_step, (unsigned long long)p->parameter_bytes,
           (unsigned long long)p->optimizer_bytes, (unsigned long long)p->gradient_bytes,
           (unsigned long long)p->input_bytes, (unsigned long long)p->activation_bytes,
           (unsigned long long)p->scratch_bytes, (unsigned long long)p->peak_bytes,
           (unsigned long long)p->checkpoint_bytes);
}

static int run(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{.name = "--json", .kind = CLI_FLAG, .target = &json}, {0}};
    int words, code = cli_parse(&cli_command_plan, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_plan, "needs a config file");
    trd_config *config;
    trd_plan plan;
    if (trd_config_load(argv[0], (const char *const *)argv + 1, words - 1, &config)) return cli_fail();
    trd_status status = trd_plan_options(trd_config_engine(config), &plan);
    trd_config_free(config);
    if (status) return cli_fail();
    if (json)
        print_json(&plan);
    else
        print_plan(&plan);
    return CLI_DONE;
}

const cli_command cli_command_plan = {
    .name = "plan",
    .summary = "memory by kind and FLOPs of a config, before anything runs",
    .usage = "CONFIG.yml [key=value ...] [--json]",
    .help = "Compiles the programs of a config without loading or allocating weights and prints what a step "
            "will need.\n"
            "Presets for model_name: smollm2-135m, smollm2-360m, smollm2-1.7b, llama3.2-1b, llama3.2-3b, "
            "llama3.1-8b,\n"
            "qwen2.5-0.5b, -1.5b, -3b, -7b, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, tiny.\n\n"
            "  --json   one JSON object",
    .run = run};
