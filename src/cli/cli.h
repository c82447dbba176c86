/* The program's frame: commands, options, and how results and errors reach a person or a program. Only this
 * folder prints or exits. Exit codes: 0 done, 1 failed, 2 wrong usage. */
#ifndef TRD_CLI_CLI_H
#define TRD_CLI_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <treadle/log.h>

#include "formats/json.h"

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef struct cli_command {
    const char *name;
    const char *summary;               /* one line for `treadle --help` */
    const char *usage;                 /* what follows "treadle NAME " */
    const char *help;                  /* paragraphs and options for `treadle NAME --help` */
    int (*run)(int argc, char **argv); /* argv[0] is the first word after the command */
} cli_command;

/* cli_command_<file> of every command in commands.def. */
#define CLI_COMMAND(file) extern const cli_command cli_command_##file;
#include "cli/commands.def"
#undef CLI_COMMAND

/* The command list. */
int cli_command_count(void);
const cli_command *cli_command_at(int i);

typedef enum cli_kind { CLI_FLAG, CLI_TEXT, CLI_INT, CLI_REAL } cli_kind;

/* One option; tables end with a zeroed row. target: bool *, const char **, int64_t * or double *. */
typedef struct cli_option {
    const char *name; /* "--json" */
    cli_kind kind;
    void *target;
    double min, max; /* of numbers; both 0: any */
} cli_option;

/* Takes the options out of argv ("--name value" or "--name=value") and leaves the other words, their number
 * in *words. CLI_DONE, or CLI_USAGE after saying what is wrong and what is near. "--" ends the options. */
int cli_parse(const cli_command *command, const cli_option *options, int argc, char **argv, int *words);

/* "treadle NAME: message" plus the usage line; returns CLI_USAGE. */
int cli_usage_error(const cli_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "treadle: " and the thread's error message; returns CLI_FAILED. */
int cli_fail(void);
/* Prints the finished object as one line and frees the writer: what --json promises as the last line. */
trd_status cli_print_json(trd__json_writer *writer);

/* Says on standard error that a run has no checkpoint, and what stands in for it; path: of the weights it
 * starts from, NULL: random ones. */
void cli_say_start(const char *doing, const char *path);

/* Warnings and errors on standard error; what is merely of interest is for a log file. */
extern const trd_log_sink cli_log;

/* Set by SIGINT, SIGTERM and SIGHUP after cli_catch_signals; a later one ends the program at once. A reader
 * of the output that goes away does not end it. */
extern volatile int cli_stop;
void cli_catch_signals(void);

/* "1.23 GB", "456 MB" (1e9 and 1e6 bytes) in a static buffer of four in turn. */
const char *cli_bytes(uint64_t bytes);
/* "1.92 T" with prefixes k, M, G, T. */
const char *cli_count(double count);

uint64_t cli_peak_bytes(void); /* VmHWM of this process */
uint64_t cli_start_ns(void);   /* monotonic time at which this process was started */

#endif
