/* The treadle program: finds the command and runs it. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/nearest.h"
#include "cli/cli.h"

static const cli_command *const commands[] = {
#define CLI_COMMAND(file) &cli_command_##file,
#include "cli/commands.def"
#undef CLI_COMMAND
};
enum { COMMANDS = sizeof commands / sizeof *commands };

int cli_command_count(void)
{
    return COMMANDS;
}
const cli_command *cli_command_at(int i)
{
    return commands[i];
}

static void print_overview(FILE *stream)
{
    fprintf(stream,
            "Treadle trains transformer language models.\n\nusage: treadle COMMAND [ARGUMENT ...]\n\n");
    for (int i = 0; i < COMMANDS; i++)
        fprintf(stream, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(
        stream,
        "\n`treadle COMMAND --help` explains a command. Start with: treadle bench step configs/tiny.yml\n");
}

static void print_help(const cli_command *command)
{
    printf("usage: treadle %s %s\n\n%s\n", command->name, command->usage, command->help);
}

static int unknown(const char *name)
{
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) names[i] = commands[i]->name;
    const char *nearest = trd__nearest(name, names, COMMANDS);
    fprintf(stderr, "treadle: unknown command \"%s\"", name);
    if (nearest) fprintf(stderr, "; did you mean \"%s\"?", nearest);
    fprintf(stderr, "\n`treadle --help` lists the commands.\n");
    return CLI_USAGE;
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

/* What a command printed must have reached the reader: a full disk or a closed pipe is a failure. */
static int flushed(int code)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "treadle: writing standard output failed\n");
        return code == CLI_DONE ? CLI_FAILED : code;
    }
    return code;
}

/* A standard stream that the caller closed gets a descriptor that refuses every use: else the next file
 * opened would take its number, and what is printed would end up in a checkpoint. */
static void reserve_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* XLA's own log would be lines of internals amid a run's output, at every compile over a mesh; what it
 * refuses comes back as an error in any case. Who wants them sets the variable. */
static void quiet_plugins(void)
{
    setenv("TF_CPP_MIN_LOG_LEVEL", "2", 0);
}

int main(int argc, char **argv)
{
    reserve_streams();
    quiet_plugins();
    signal(SIGXFSZ, SIG_IGN); /* a file that grows beyond the shell's limit is a failed write, not a death */
    if (argc < 2) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_overview(stdout);
        return flushed(CLI_DONE);
    }
    if (!strcmp(name, "--version")) name = "version";
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) != 0) continue;
        if (wants_help(argc - 2, argv + 2)) {
            print_help(commands[i]);
            return flushed(CLI_DONE);
        }
        return flushed(commands[i]->run(argc - 2, argv + 2));
    }
    return unknown(name);
}
