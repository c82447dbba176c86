/* treadle train: the whole of a supervised fine-tuning run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "checkpoint/store.h"
#include "cli/run.h"

static bool was_stopped(const cli_run *run)
{
    return cli_stop && trd_engine_step(run->engine) < run->options.steps;
}

static bool is_on(const cli_run *run, const char *key)
{
    return !strcmp(trd_config_get(run->config, key), "true");
}

/* What to do next is said with the run's own config.yml, which holds the overrides of the command line too.
 */
static void say_result(const cli_run *run)
{
    int64_t step = trd_engine_step(run->engine);
    bool stopped = was_stopped(run);
    if (step > run->options.steps)
        printf("The run was at step %lld already; steps is %lld. It is in %s:\n", (long long)step,
               (long long)run->options.steps, run->folder);
    else
        printf("%s at step %lld of %lld. The run is in %s:\n", stopped ? "Stopped" : "Done", (long long)step,
               (long long)run->options.steps, run->folder);
    printf("  metrics.jsonl, %s%slog.txt, config.yml%s%s\n",
           is_on(run, "enable_html_report") ? "report.html, " : "",
           is_on(run, "enable_tensorboard") ? "tensorboard/, " : "",
           run->options.checkpoint_directory ? ", checkpoints/" : "",
           run->options.profiler.directory ? ", profile/" : "");
    if (!run->options.checkpoint_directory)
        printf("The weights are not kept: enable_checkpointing is off.\n");
    else if (stopped)
        printf("Go on with the same command.\n");
    else
        printf(
            "Next:\n  treadle generate %s/config.yml --prompt TEXT\n  treadle export %s/config.yml FOLDER\n",
            run->folder, run->folder);
    if (run->options.profiler.directory) printf("Traces: treadle profile %s\n", run->folder);
}

/* Member key: the loss among metrics, null when there is none. */
static void put_loss(const cli_run *run, trd__json_writer *w, const char *key,
                     const trd_step_metrics *metrics)
{
    double loss = NAN;
    size_t prefix = strlen(trd_config_get(run->config, "metrics_prefix"));
    for (int i = 0; i < metrics->count; i++) {
        const char *name = metrics->metrics[i].name;
        if (strlen(name) > prefix && !strcmp(name + prefix, "loss")) loss = metrics->metrics[i].value;
    }
    trd__json_put_f64(w, key, loss);
}

static trd_status print_json(const cli_run *run)
{
    trd__json_writer w = {0};
    trd_step_metrics train, eval;
    TRD_TRY(trd_engine_get_metrics(run->engine, false, &train));
    TRD_TRY(trd_engine_get_eval_metrics(run->engine, &eval));
    trd__json_open_object(&w);
    trd__json_put_string(&w, "run", run->folder);
    trd__json_put_i64(&w, "step", trd_engine_step(run->engine));
    trd__json_put_i64(&w, "steps", run->options.steps);
    trd__json_put_bool(&w, "stopped", was_stopped(run));
    put_loss(run, &w, "loss", &train);
    put_loss(run, &w, "eval_loss", &eval);
    trd__json_close(&w);
    return cli_print_json(&w);
}

/* Without checkpoints a run begins anew, and would take the place of what a run with them has left. */
static trd_status check_folder(const cli_run *run)
{
    if (run->options.checkpoint_directory) return TRD_OK;
    trd__store *store = NULL;
    trd__store_name *names = NULL;
    size_t count = 0;
    char *folder = trd__path_join(run->folder, "checkpoints");
    trd_status status = folder ? trd__store_view(folder, &cli_log, &store) : TRD_NO_MEMORY;
    if (!status) status = trd__store_list(store, &names, &count);
    if (!status && count)
        status =
            trd__fail(TRD_STATE,
                      "%s holds checkpoints, but enable_checkpointing is off: training would begin anew over "
                      "that run's files; switch it on, or choose another run_name",
                      run->folder);
    trd__free(names);
    trd__store_close(store);
    trd__free(folder);
    return status;
}

static trd_status train(cli_run *run)
{
    TRD_TRY(check_folder(run));
    TRD_TRY(cli_run_data(run, true, true));
    cli_catch_signals();
    TRD_TRY(cli_run_engine(run, true));
    TRD_TRY(cli_run_save_config(run));
    if (run->resumed) printf("Going on from step %lld.\n", (long long)trd_engine_step(run->engine));
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
    bool json = false;
    const cli_option options[] = {{.name = "--json", .kind = CLI_FLAG, .target = &json}, {0}};
    int words, code = cli_parse(&cli_command_train, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_train, "needs a config file");
    cli_run run = {0};
    trd_status status = cli_run_config(&run, words, argv);
    if (!status) status = cli_run_folder(&run);
    if (!status) status = train(&run);
    if (!status && json) status = print_json(&run);
    if (status) {
        code = cli_fail();
        cli_run_close(&run);
        return code;
    }
    if (!json) say_result(&run);
    return cli_run_close(&run) ? cli_fail() : CLI_DONE;
}

const cli_command cli_command_train = {.name = "train",
                                       .summary =
                                           "fine-tune a model as a config says, or go on where a run stopped",
                                       .usage = "CONFIG.yml [key=value ...] [--json]",
                                       .help = "Trains and leaves in base_output_directory/run_name: "
                                               "metrics.jsonl, report.html, TensorBoard event files,\n"
                                               "the resolved config.yml, log.txt and checkpoints. With a "
                                               "checkpoint there it goes on from it, to the bit.\n"
                                               "Control-C (or SIGTERM) finishes the step, saves and exits 0. "
                                               "`treadle config --keys` lists the keys.\n\n"
                                               "  --json   one JSON object as the last line",
                                       .run = run_train};
