/* treadle dump: the programs of a config as text, at the stage asked for. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <treadle/treadle.h>

#include "backend/backend.h"
#include "backend/pjrt/lower.h"
#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "engine/visit.h"
#include "graph/passes.h"

static trd_status print_graph(const trd__program *program, const trd__placement *placement,
                              const trd_engine_options *options)
{
    (void)placement, (void)options;
    trd__program_print(program, stdout);
    return TRD_OK;
}

static trd_status print_stablehlo(const trd__program *program, const trd__placement *placement,
                                  const trd_engine_options *options)
{
    (void)options;
    trd__pjrt_module module;
    TRD_TRY(trd__pjrt_lower(program, placement, &module));
    fwrite(module.text, 1, module.bytes, stdout);
    trd__pjrt_module_free(&module);
    return TRD_OK;
}

static trd_status print_file(const char *path)
{
    trd__file_map map;
    TRD_TRY(trd__file_map_open(path, &map));
    fwrite(map.data, 1, map.bytes, stdout);
    trd__file_map_close(&map);
    return TRD_OK;
}

/* The one of XLA's files that is the module as it will run. */
static trd_status print_optimized(const char *folder)
{
    static const char end[] = "after_optimizations.txt";
    trd_status status = trd__fail(TRD_UNSUPPORTED, "the plugin wrote no optimized program");
    DIR *files = opendir(folder);
    if (!files) return trd__fail(TRD_IO, "reading %s: %s", folder, strerror(errno));
    for (const struct dirent *file; (file = readdir(files));) {
        size_t length = strlen(file->d_name);
        if (length < sizeof end || strcmp(file->d_name + length - (sizeof end - 1), end) != 0) continue;
        char *path = trd__path_join(folder, file->d_name);
        status = path ? print_file(path) : TRD_NO_MEMORY;
        trd__free(path);
    }
    closedir(files);
    return status;
}

static trd_status compile_into(const trd__program *program, const trd__placement *placement,
                               const trd_engine_options *o, const char *folder)
{
    const trd__backend_options options = {.name = "pjrt",
                                          .plugin_path = o->plugin_path,
                                          .compile_flags = o->compile_flags,
                                          .placement = placement,
                                          .log = o->log};
    trd__backend *backend;
    trd__executable *executable;
    TRD_TRY(trd__backend_create(&options, &backend));
    trd_status status = backend->table->compile(backend, program,
                                                &(trd__compile_options){.dump_folder = folder}, &executable);
    if (!status) backend->table->executable_free(backend, executable);
    trd__backend_free(backend);
    return status;
}

static trd_status print_hlo(const trd__program *program, const trd__placement *placement,
                            const trd_engine_options *options)
{
    const char *temporary = getenv("TMPDIR");
    char *folder = trd__path_join(temporary && *temporary ? temporary : "/tmp", "treadle-dump-XXXXXX");
    if (!folder) return TRD_NO_MEMORY;
    trd_status status = TRD_OK;
    if (!mkdtemp(folder)) status = trd__fail(TRD_IO, "making the folder %s: %s", folder, strerror(errno));
    if (!status) {
        status = compile_into(program, placement, options, folder);
        if (!status) status = print_optimized(folder);
        trd_status removed = trd__remove_tree(folder);
        if (!status) status = removed;
    }
    trd__free(folder);
    return status;
}

typedef trd_status printer(const trd__program *program, const trd__placement *placement,
                           const trd_engine_options *options);
static const struct {
    const char *name;
    printer *print;
} stages[] = {{"graph", print_graph}, {"stablehlo", print_stablehlo}, {"hlo", print_hlo}};
enum { STAGES = sizeof stages / sizeof *stages };

typedef struct request {
    const char *program; /* NULL: all */
    printer *print;
    const trd_engine_options *options;
    int printed;
} request;

static trd_status visit(const trd__program *program, const trd__placement *placement, void *user)
{
    request *r = user;
    if (r->program && strcmp(r->program, program->name) != 0) return TRD_OK;
    r->printed++;
    return r->print(program, placement, r->options);
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
    r.options = trd_config_engine(config);
    trd_status status = trd__visit_programs(r.options, visit, &r);
    trd_config_free(config);
    if (status) return cli_fail();
    return r.printed ? CLI_DONE
                     : cli_usage_error(&cli_command_dump, "the config has no program \"%s\"", r.program);
}

const cli_command cli_command_dump = {
    .name = "dump",
    .summary = "the programs of a config as text",
    .usage = "CONFIG.yml [key=value ...] [--stage graph|stablehlo|hlo] [--program NAME]",
    .help = "Builds the programs of a config without loading or allocating weights and prints them.\n"
            "\n"
            "  --stage graph       as the engine builds them, a node a line (default)\n"
            "  --stage stablehlo   as XLA is given them\n"
            "  --stage hlo         as XLA runs them: compiled by the plugin of the backend pjrt\n"
            "  --program NAME      only this one: first, accum, eval, train_step, update",
    .run = run};
