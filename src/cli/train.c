/* treadle train: the whole of a supervised fine-tuning run. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cli/run.h"

/* What to do next is said with the run's own config.yml, which holds the overrides of the command line too.
 */
static void say_result(const cli_run *run)
{
    int64_t step = trd_engine_step(run->engine);
    bool stopped = cli_stop && step < run->options.steps;
    printf("%s at step %lld of %lld. The run is in %s:\n", stopped ? "Stopped" : "Done", (long long)step,
           (long long)run->options.steps, run->folder);
    printf("  metrics.jsonl, report.html, tensorboard/, log.txt, config.yml");
    printf(run->options.checkpoint_directory ? ", checkpoints/\n" : "\n");
    if (stopped)
        printf("Go on with the same command.\n");
    else if (run->options.checkpoint_directory)
        printf("Next: treadle export %s/config.yml OUT_FOLDER, or treadle generate %s/config.yml --prompt "
               "TEXT\n",
               run->folder, run->folder);
}

static trd_status train(cli_run *run)
{
    TRD_TRY(cli_run_data(run, true, true));
    TRD_TRY(cli_run_engine(run, true));
    TRD_TRY(cli_run_save_config(run));
    if (run->resumed) printf("Going on from step %lld.\n", (long long)trd_engine_step(run->engine));
    cli_catch_signals();
    trd_train_options options = {
        .train = run->train,
        .eval = run->eval,
        .eval_interval = strtoll(trd_config_get(run->config, "eval_interval"), NULL, 10),
        .eval_steps = strtoll(trd_config_get(run->config, "eval_steps"), NULL, 10),
        .eval_at_start = !run->resumed,
        .eval_at_end = true,
        .stop = &cli_stop,
    };
    return trd_engine_train(run->engine, &options);
}

static int run_train(int argc, char **argv)
{
    const cli_option options[] = {{0}};
    int words, code = cli_parse(&cli_command_train, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_train, "needs a config file");
    cli_run run = {0};
    trd_status status = cli_run_config(&run, words, argv);
    if (!status) status = cli_run_folder(&run);
    if (!status) status = train(&run);
    if (status) {
        code = cli_fail();
        cli_run_close(&run);
        return code;
    }
    say_result(&run);
    return cli_run_close(&run) ? cli_fail() : CLI_DONE;
}

const cli_command cli_command_train = {.name = "train",
                                       .summary =
                                           "fine-tune a model as a config says, or go on where a run stopped",
                                       .usage = "CONFIG.yml [key=value ...]",
                                       .help = "Trains and leaves in base_output_directory/run_name: "
                                               "metrics.jsonl, report.html, TensorBoard event files,\n"
                                               "the resolved config.yml, log.txt and checkpoints. With a "
                                               "checkpoint there it goes on from it, to the bit.\n"
                                               "Control-C (or SIGTERM) finishes the step, saves and exits 0. "
                                               "`treadle config --keys` lists the keys.",
                                       .run = run_train};
