/* Setting a run up and tearing it down; see run.h. Invariant: cli_run_close undoes any prefix of the set-up.
 */
#include "cli/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

enum { MOST_SINKS = 4 };

/* Everything goes to the log file, what a person must know to standard error too. */
static void log_line(void *user, trd_log_level level, const char *line)
{
    const cli_run *run = user;
    cli_log.write(NULL, level, line);
    if (run->log_file) {
        static const char *const marks[] = {"info", "warning", "error"};
        fprintf(run->log_file, "%s: %s\n", marks[level], line);
        fflush(run->log_file);
    }
}

trd_status cli_run_config(cli_run *run, int words, char **argv)
{
    *run = (cli_run){0};
    trd_status status = trd_config_load(argv[0], (const char *const *)argv + 1, words - 1, &run->config);
    if (status) return status;
    trd_config_set_log(run->config, (trd_log_sink){.write = log_line, .user = run});
    run->options = *trd_config_engine(run->config);
    run->folder = trd__path_join(trd_config_get(run->config, "base_output_directory"),
                                 trd_config_get(run->config, "run_name"));
    return run->folder ? TRD_OK : TRD_NO_MEMORY;
}

trd_status cli_run_save_config(const cli_run *run)
{
    if (run->options.mesh.process != 0) return TRD_OK; /* of several processes one writes */
    if (run->options
            .checkpoint_directory) /* so the folder is locked: what is left is of a run that was killed */
        TRD_TRY(trd__file_sweep(run->folder));
    char *yaml = NULL, *path = trd__path_join(run->folder, "config.yml");
    trd_status status = path ? trd_config_to_yaml(run->config, &yaml) : TRD_NO_MEMORY;
    if (!status) status = trd__file_save(path, yaml, strlen(yaml));
    trd_text_free(yaml);
    trd__free(path);
    return status;
}

trd_status cli_run_folder(cli_run *run)
{
    TRD_TRY(trd__make_directories(run->folder));
    char *path = trd__path_join(run->folder, "log.txt");
    if (!path) return TRD_NO_MEMORY;
    run->log_file = fopen(path, "a");
    trd_status status = run->log_file ? TRD_OK : trd__fail(TRD_IO, "opening %s: %s", path, strerror(errno));
    trd__free(path);
    return status;
}

static void log_stats(cli_run *run, const char *what, const trd_loader *loader)
{
    trd_data_stats s = trd_loader_stats(loader);
    char line[256];
    snprintf(line, sizeof line, "%s data: %llu samples, %llu tokens, %llu carry loss, %llu rows an epoch",
             what, (unsigned long long)s.samples, (unsigned long long)s.tokens,
             (unsigned long long)s.loss_tokens, (unsigned long long)s.rows_per_epoch);
    log_line(run, TRD_LOG_INFO, line);
    if (run->log_file) printf("%s\n", line); /* a training run; eval and bench print their result only */
    if (!s.truncated && !s.dropped && !s.bad_lines) return;
    snprintf(line, sizeof line, "%s data: %llu samples truncated, %llu dropped, %llu bad lines skipped", what,
             (unsigned long long)s.truncated, (unsigned long long)s.dropped, (unsigned long long)s.bad_lines);
    log_line(run, TRD_LOG_WARNING, line);
}

/* Updates that num_epochs (or the default of one) comes to. */
static int64_t steps_of_epochs(const cli_run *run)
{
    int64_t epochs = strtoll(trd_config_get(run->config, "num_epochs"), NULL, 10);
    int64_t rows = (int64_t)trd_loader_stats(run->train).rows_per_epoch * (epochs ? epochs : 1);
    int64_t per_step = (int64_t)run->options.rows * run->options.gradient_accumulation_steps;
    return (rows + per_step - 1) / per_step;
}

trd_status cli_run_data(cli_run *run, bool train, bool eval)
{
    const trd_data_options *data;
    if (train) {
        TRD_TRY(trd_config_data(run->config, &data));
        TRD_TRY(trd_loader_open(data, &run->train));
        log_stats(run, "training", run->train);
        if (!run->options.steps) run->options.steps = steps_of_epochs(run);
        if (run->options.schedule.schedule_steps <= 0)
            run->options.schedule.schedule_steps = run->options.steps;
    }
    if (eval && trd_config_has_eval(run->config)) {
        TRD_TRY(trd_config_eval_data(run->config, &data));
        TRD_TRY(trd_loader_open(data, &run->eval));
        log_stats(run, "evaluation", run->eval);
    }
    return TRD_OK;
}

static bool is_true(const cli_run *run, const char *key)
{
    return !strcmp(trd_config_get(run->config, key), "true");
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static trd_status make_sinks(cli_run *run, trd_metric_sink *sinks, int *count)
{
    trd_progress_options progress = {.output = stdout,
                                     .terminal = isatty(STDOUT_FILENO) != 0,
                                     .columns = terminal_columns(),
                                     .log_period =
                                         strtoll(trd_config_get(run->config, "log_period"), NULL, 10)};
    char *metrics = trd__path_join(run->folder, "metrics.jsonl");
    char *events = trd__path_join(run->folder, "tensorboard"),
         *page = trd__path_join(run->folder, "report.html");
    trd_status status = metrics && events && page ? TRD_OK : TRD_NO_MEMORY;
    if (!status) status = trd_report_jsonl(metrics, &sinks[*count]);
    if (!status) (*count)++;
    if (!status && is_true(run, "enable_tensorboard") &&
        !(status = trd_report_tensorboard(events, &sinks[*count])))
        (*count)++;
    if (!status && is_true(run, "enable_html_report") &&
        !(status = trd_report_html(page, metrics, &sinks[*count])))
        (*count)++;
    if (!status && !(status = trd_report_progress(&progress, &sinks[*count]))) (*count)++;
    trd__free(metrics);
    trd__free(events);
    trd__free(page);
    return status;
}

/* The config for the sinks; the texts stay the config's. */
static trd_status make_settings(cli_run *run)
{
    trd_config_key key;
    int count = 0;
    while (trd_config_describe(count, &key)) count++;
    run->settings = trd__alloc((size_t)count, sizeof *run->settings);
    if (!run->settings) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        trd_config_describe(i, &key);
        run->settings[i] = (trd_run_setting){key.name, trd_config_get(run->config, key.name)};
    }
    run->options.settings = run->settings;
    run->options.setting_count = count;
    run->options.run_name = trd_config_get(run->config, "run_name");
    return TRD_OK;
}

/* Ids beyond the model's vocabulary stop a run when they come up, which may be late. */
static trd_status compare_vocabularies(cli_run *run)
{
    const trd_tokenizer *tokenizer;
    if (!run->train && !run->eval) return TRD_OK;
    TRD_TRY(trd_config_tokenizer(run->config, &tokenizer));
    long long have = trd_tokenizer_vocab_size(tokenizer);
    long long fit = trd_model_describe(trd_engine_model(run->engine)).vocab;
    if (have <= fit) return TRD_OK;
    char line[192];
    snprintf(
        line, sizeof line,
        "the tokenizer has %lld ids but the model a vocabulary of %lld: is it another model's? A text with "
        "an id above %lld stops the run",
        have, fit, fit - 1);
    log_line(run, TRD_LOG_WARNING, line);
    return TRD_OK;
}

trd_status cli_run_engine(cli_run *run, bool with_sinks)
{
    with_sinks = with_sinks && run->options.mesh.process == 0; /* of several processes one writes */
    run->options.read_only_checkpoints = !with_sinks;
    trd_metric_sink sinks[MOST_SINKS] = {0};
    int count = 0;
    trd_status status = with_sinks ? make_settings(run) : TRD_OK;
    if (!status && with_sinks) status = make_sinks(run, sinks, &count);
    run->options.sinks = sinks;
    run->options.sink_count = count;
    if (!status) status = trd_engine_create(&run->options, &run->engine);
    if (status) {
        for (int i = 0; i < count; i++)
            if (sinks[i].close) sinks[i].close(sinks[i].user);
        return status;
    }
    TRD_TRY(compare_vocabularies(run));
    status = run->options.checkpoint_directory ? trd_engine_restore(run->engine, -1, NULL) : TRD_NOT_FOUND;
    run->resumed = status == TRD_OK;
    return status == TRD_NOT_FOUND ? TRD_OK : status;
}

trd_status cli_run_close(cli_run *run)
{
    trd_status status = trd_engine_close(run->engine);
    trd_loader_close(run->eval);
    trd_loader_close(run->train);
    if (run->log_file) fclose(run->log_file);
    trd__free(run->folder);
    trd__free(run->settings);
    trd_config_free(run->config);
    return status;
}
