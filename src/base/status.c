/* The thread-local error message and the texts of the status codes. Invariant: the message is always a
 * terminated string, whatever was formatted into it. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 2048 };

static _Thread_local char message[MESSAGE_BYTES];

const char *trd_status_text(trd_status status)
{
    switch (status) {
#define TRD_STATUS_TEXT(name, text)                                                                          \
    case TRD_##name:                                                                                         \
        return text;
        TRD_STATUS_LIST(TRD_STATUS_TEXT)
#undef TRD_STATUS_TEXT
    }
    return "unknown status";
}

const char *trd_error_message(void)
{
    return message;
}

void trd__set_error_message(const char *text)
{
    snprintf(message, sizeof message, "%s", text);
}

trd_status trd__fail(trd_status status, const char *format, ...)
{
    /* Formatted aside first: an argument may be the current message. */
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof message);
    return status;
}

trd_status trd__fail_in(trd_status status, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (used < 0) used = 0;
    if (used < MESSAGE_BYTES - 3)
        snprintf(text + used, sizeof text - (size_t)used, ": %.*s", MESSAGE_BYTES - 3 - used, message);
    memcpy(message, text, sizeof message);
    return status;
}
