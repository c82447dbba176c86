/* A log sink the caller owns: the library never prints, it hands finished lines to whoever asked for them. */
#ifndef TRD_BASE_LOG_H
#define TRD_BASE_LOG_H

#include <treadle/log.h>

/* Formats one line (no newline) to sink; does nothing when sink is NULL or has no function. */
void trd__log(const trd_log_sink *sink, trd_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
