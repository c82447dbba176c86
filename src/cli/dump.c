/* treadle dump: the programs of a config as text, at the stage asked for. */
#include <string.h>

#include <treadle/treadle.h>

#include "backend/pjrt/lower.h"
#include "cli/cli.h"
#include "engine/visit.h"
#include "graph/passes.h"

static trd_status print_graph(const trd__program *program)
{
    trd__program_print(program, stdout);
    return TRD_OK;
}

static trd_status print_stablehlo(const trd__program *program)
{
    trd__pjrt_module module;
    TRD_TRY(trd__pjrt_lower(program, NULL, &module));
    fwrite(module.text, 1, module.bytes, stdout);
    trd__pjrt_module_free(&module);
    return TRD_OK;
}

static const struct {
    const char *name;
    trd_status (*print)(const trd__program *program);
} stages[] = {{"graph", print_graph}, {"stablehlo", print_stablehlo}};
enum { STAGES = sizeof stages / sizeof *stages };

typedef struct request {
    const char *program; /* NULL: all */
    trd_status (*print)(const trd__program *program);
    int printed;
} request;

static trd_status visit(const trd__program *program, void *user)
{
    request *r = user;
    if (r->program && strcmp(r->program, program->name) != 0) return TRD_OK;
    r->printed++;
    return r->print(program);
}

static int run(int argc, char **argv)
{
    const char *stage = stages[0].name;
    request r = {.program = NULL};
    const cli_option options[] = {{.name = "--stage", .kind = CLI_TEXT, .target = &stage},
                                  {.name = "--program", .kind = CLI_TEXT, .target = &r.program},
                                  {0}};
    int words, code = cli_parse(&cli_command_dump, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_dump, "needs a config file");
    for (int i = 0; i < STAGES; i++)
        if (strcmp(stage, stages[i].name) == 0) r.print = stages[i].print;
    if (!r.print) return cli_usage_error(&cli_command_dump, "unknown stage \"%s\"", stage);
    trd_config *config;
    if (trd_config_load(argv[0], (const char *const *)argv + 1, words - 1, &config)) return cli_fail();
    trd_status status = trd__visit_programs(trd_config_engine(config), visit, &r);
    trd_config_free(config);
    if (status) return cli_fail();
    return r.printed ? CLI_DONE
                     : cli_usage_error(&cli_command_dump, "the config has no program \"%s\"", r.program);
}

const cli_command cli_command_dump = {
    .name = "dump",
    .summary = "the programs of a config as text",
    .usage = "CONFIG.yml [key=value ...] [--stage graph|stablehlo] [--program NAME]",
    .help = "Builds the programs of a config without loading or allocating weights and prints them.\n"
            "\n"
            "  --stage graph       as the engine builds them, a node a line (default)\n"
            "  --stage stablehlo   as XLA is given them\n"
            "  --program NAME      only this one: first, accum, eval, train_step, update",
    .run = run};
