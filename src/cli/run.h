/* A run: config, folder, log file, metric sinks, data and engine, set up in the order that train, eval and
 * export share, and torn down in reverse. */
#ifndef TRD_CLI_RUN_H
#define TRD_CLI_RUN_H

#include <treadle/treadle.h>

#include "cli/cli.h"

typedef struct cli_run {
    trd_config *config;
    trd_engine_options options; /* a copy that may be changed before cli_run_engine */
    char *folder;               /* base_output_directory/run_name */
    FILE *log_file;
    trd_run_setting *settings; /* the config as the sinks show it */
    trd_loader *train, *eval;
    trd_engine *engine;
    bool resumed; /* a checkpoint was found */
} cli_run;

/* Loads the config; words are CONFIG.yml and overrides. */
trd_status cli_run_config(cli_run *run, int words, char **argv);
/* Makes the run's folder with log.txt; log lines go to the file, warnings and errors to standard error
 * too. */
trd_status cli_run_folder(cli_run *run);
/* Writes config.yml, once the engine holds the folder's lock: a second process must not change it. */
trd_status cli_run_save_config(const cli_run *run);
/* Opens the loaders; steps follow from num_epochs when the config gives no steps. */
trd_status cli_run_data(cli_run *run, bool train, bool eval);
/* Engine with the supervised loss, restored from the newest checkpoint if there is one. with_sinks:
 * metrics.jsonl, TensorBoard, report.html and progress; without them the run's folder is only read, also
 * while another process trains it. */
trd_status cli_run_engine(cli_run *run, bool with_sinks);
/* Closes everything; returns the engine's last error. */
trd_status cli_run_close(cli_run *run);

#endif
