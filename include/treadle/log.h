/* Where the library's log lines go. The caller fills a sink; a zeroed sink drops every line. */
#ifndef TREADLE_LOG_H
#define TREADLE_LOG_H

#include <treadle/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How much a line matters. */
typedef enum trd_log_level {
    TRD_LOG_INFO,    /* what is going on */
    TRD_LOG_WARNING, /* work goes on, but someone should know */
    TRD_LOG_ERROR    /* something failed that no call can return */
} trd_log_level;

/* A function that takes lines, and what it is called with. */
typedef struct trd_log_sink {
    /* Called with one line without newline, possibly from several threads at a time. */
    void (*write)(void *user, trd_log_level level, const char *line);
    void *user; /* passed to write */
} trd_log_sink;

#ifdef __cplusplus
}
#endif
#endif
