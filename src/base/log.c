/* Formats log lines for the caller's sink. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void trd__log(const trd_log_sink *sink, trd_log_level level, const char *format, ...)
{
    if (!sink || !sink->write) return;
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    sink->write(sink->user, level, line);
}
