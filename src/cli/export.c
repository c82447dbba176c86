/* treadle export: a run's newest checkpoint as a Hugging Face folder. */
#include <string.h>

#include "base/file.h"
#include "cli/run.h"

static trd_status export_run(cli_run *run, const char *folder, const char *dtype_name, bool tokenizer)
{
    trd_dtype dtype = run->options.weight_dtype;
    const trd_tokenizer *t = NULL;
    if (dtype_name) TRD_TRY(trd_dtype_parse(dtype_name, &dtype));
    if (tokenizer) TRD_TRY(trd_config_tokenizer(run->config, &t));
    TRD_TRY(cli_run_engine(run, false));
    if (!run->resumed) cli_say_start("exporting", run->options.load_parameters_path);
    TRD_TRY(trd__make_directories(folder));
    TRD_TRY(trd_engine_export(run->engine, folder, dtype));
    return t ? trd_tokenizer_export(t, folder) : TRD_OK;
}

static trd_status say_result(const cli_run *run, const char *folder, bool json)
{
    int64_t step = trd_engine_step(run->engine);
    if (!json) {
        printf("Wrote the parameters of step %lld to %s, for transformers and other readers of Hugging Face "
               "folders.\n",
               (long long)step, folder);
        return TRD_OK;
    }
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    trd__json_put_string(&w, "folder", folder);
    trd__json_put_i64(&w, "step", step);
    trd__json_close(&w);
    return cli_print_json(&w);
}

static int run_export(int argc, char **argv)
{
    const char *dtype = NULL;
    bool no_tokenizer = false, json = false;
    const cli_option options[] = {{.name = "--dtype", .kind = CLI_TEXT, .target = &dtype},
                                  {.name = "--no-tokenizer", .kind = CLI_FLAG, .target = &no_tokenizer},
                                  {.name = "--json", .kind = CLI_FLAG, .target = &json},
                                  {0}};
    int words, code = cli_parse(&cli_command_export, options, argc, argv, &words);
    if (code) return code;
    if (words < 2) return cli_usage_error(&cli_command_export, "needs a config file and a folder");
    const char *folder = argv[1];
    argv[1] = argv[0];
    cli_run run = {0};
    trd_status status = cli_run_config(&run, words - 1, argv + 1);
    if (!status) status = export_run(&run, folder, dtype, !no_tokenizer);
    if (!status) status = say_result(&run, folder, json);
    if (status) code = cli_fail();
    if (cli_run_close(&run) && !code) code = cli_fail();
    return code;
}

const cli_command cli_command_export = {
    .name = "export",
    .summary = "a run's newest checkpoint (or the model it starts from) as a Hugging Face folder",
    .usage = "CONFIG.yml FOLDER [key=value ...] [--dtype float32|bfloat16|float16] [--no-tokenizer] "
             "[--json]",
    .help = "Writes model.safetensors, config.json, generation_config.json, tokenizer.json and "
            "tokenizer_config.json.\n\n"
            "  --dtype NAME     number format of the weights; default: weight_dtype\n"
            "  --no-tokenizer   leave the tokenizer out\n"
            "  --json           one JSON object",
    .run = run_export};
