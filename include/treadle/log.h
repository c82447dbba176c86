/* Where the library's log lines go. The caller fills a sink; a zeroed sink drops every line. */
#ifndef TREADLE_LOG_H
#define TREADLE_LOG_H

#include <treadle/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum trd_log_level { TRD_LOG_INFO, TRD_LOG_WARNING, TRD_LOG_ERROR } trd_log_level;

typedef struct trd_log_sink {
    /* Called with one line without newline, possibly from several threads at a time. */
    void (*write)(void *user, trd_log_level level, const char *line);
    void *user;
} trd_log_sink;

#ifdef __cplusplus
}
#endif
#endif
