/* treadle eval: loss of a run's newest checkpoint, or of the model it starts from, on eval_files. */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "cli/run.h"

static trd_status evaluate(cli_run *run, trd_eval_result *result)
{
    if (!trd_config_has_eval(run->config))
        return trd__fail(TRD_INVALID_ARGUMENT, "config: eval_files is empty; give one or more JSONL files");
    TRD_TRY(cli_run_data(run, false, true));
    TRD_TRY(cli_run_engine(run, false));
    if (!run->resumed) cli_say_start("evaluating", run->options.load_parameters_path);
    int64_t batches = strtoll(trd_config_get(run->config, "eval_steps"), NULL, 10);
    return trd_engine_evaluate(run->engine, run->eval, batches, result);
}

static trd_status print_json(const cli_run *run, const trd_eval_result *result)
{
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    trd__json_put_i64(&w, "step", trd_engine_step(run->engine));
    trd__json_put_f64(&w, "loss", result->loss);
    trd__json_put_f64(&w, "perplexity", exp(result->loss));
    trd__json_put_f64(&w, "total_weights", result->total_weights);
    trd__json_close(&w);
    return cli_print_json(&w);
}

static int run_eval(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{.name = "--json", .kind = CLI_FLAG, .target = &json}, {0}};
    int words, code = cli_parse(&cli_command_eval, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_eval, "needs a config file");
    cli_run run = {0};
    trd_eval_result result = {0};
    trd_status status = cli_run_config(&run, words, argv);
    if (!status) status = evaluate(&run, &result);
    if (!status && json)
        status = print_json(&run, &result);
    else if (!status)
        printf("step %lld: loss %.6f, perplexity %.4f over %.0f tokens\n",
               (long long)trd_engine_step(run.engine), result.loss, exp(result.loss), result.total_weights);
    if (status) code = cli_fail();
    if (cli_run_close(&run) && !code) code = cli_fail();
    return code;
}

const cli_command cli_command_eval = {
    .name = "eval",
    .summary = "loss of a run's newest checkpoint, or of the model it starts from, on eval_files",
    .usage = "CONFIG.yml [key=value ...] [--json]",
    .help = "Evaluates token-weighted over eval_files (eval_steps batches of it) and changes nothing.\n\n"
            "  --json   one JSON object",
    .run = run_eval};
