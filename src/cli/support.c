/* What commands share: log lines, signals, readable sizes, facts of this process. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

int cli_fail(void)
{
    fprintf(stderr, "treadle: %s\n", trd_error_message());
    return CLI_FAILED;
}

trd_status cli_print_json(trd__json_writer *writer)
{
    trd_status status = trd__json_finish(writer);
    if (status == TRD_OK) printf("%s\n", writer->text);
    trd__json_writer_free(writer);
    return status;
}

void cli_say_start(const char *doing, const char *path)
{
    fprintf(stderr, "no checkpoint of this run yet: %s %s\n", doing,
            path ? "the weights it starts from" : "its random starting weights");
}

static void write_line(void *user, trd_log_level level, const char *line)
{
    (void)user;
    if (level != TRD_LOG_INFO)
        fprintf(stderr, "%s: %s\n", level == TRD_LOG_WARNING ? "warning" : "error", line);
}

const trd_log_sink cli_log = {.write = write_line};

volatile int cli_stop;

/* One wish to stop may arrive twice: `timeout` signals its child and then its whole group. */
static const uint64_t same_wish_ns = 500000000;

static void on_signal(int number)
{
    static const char note[] = "\nstopping; once more ends the program at once\n";
    static _Atomic uint64_t first_ns;
    uint64_t now = trd__now_ns();
    if (cli_stop && now - first_ns > same_wish_ns) _exit(128 + number);
    if (cli_stop) return;
    first_ns = now;
    cli_stop = 1;
    if (write(STDERR_FILENO, note, sizeof note - 1) < 0) return; /* nobody listens: it stops all the same */
}

void cli_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigfillset(&action.sa_mask); /* the handler is not interrupted by itself */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* A closed terminal is a wish to stop too, but nohup has the last word. */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a reader that has seen enough does not end the work */
}

enum { BUFFERS = 4, WIDTH = 32 };

static char *next_buffer(void)
{
    static char buffers[BUFFERS][WIDTH];
    static int turn;
    return buffers[turn++ % BUFFERS];
}

const char *cli_count(double count)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    size_t p = 0;
    while (count >= 1000 && p + 1 < sizeof prefixes / sizeof *prefixes) {
        count /= 1000;
        p++;
    }
    char *text = next_buffer();
    snprintf(text, WIDTH, p ? "%.2f %s" : "%.0f %s", count, prefixes[p]);
    return text;
}

const char *cli_bytes(uint64_t bytes)
{
    char *text = next_buffer();
    if (bytes >= 1000000000u)
        snprintf(text, WIDTH, "%.2f GB", (double)bytes / 1e9);
    else if (bytes >= 1000000u)
        snprintf(text, WIDTH, "%.1f MB", (double)bytes / 1e6);
    else
        snprintf(text, WIDTH, "%.1f kB", (double)bytes / 1e3);
    return text;
}

uint64_t cli_peak_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %llu kB", &kib) == 1) break;
    if (file) fclose(file);
    return (uint64_t)kib * 1024;
}

/* Field 22 of /proc/self/stat: start in clock ticks since boot, on the clock that CLOCK_MONOTONIC runs by. */
uint64_t cli_start_ns(void)
{
    FILE *file = fopen("/proc/self/stat", "r");
    char line[1024];
    unsigned long long ticks = 0;
    if (file && fgets(line, sizeof line, file)) {
        char *after_name = strrchr(line, ')');
        if (after_name)
            sscanf(after_name + 1,
                   " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                   &ticks);
    }
    if (file) fclose(file);
    long hertz = sysconf(_SC_CLK_TCK);
    return ticks && hertz > 0 ? (uint64_t)ticks * (1000000000u / (uint64_t)hertz) : trd__now_ns();
}
