/* How the library reports failure: set the thread's message and return the code in one expression. */
#ifndef TRD_BASE_STATUS_H
#define TRD_BASE_STATUS_H

#include <treadle/status.h>

/* Sets the thread's message (truncated to 2 KiB) and returns status. */
trd_status trd__fail(trd_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " before the current message and returns status: for callers that know more than the callee.
 */
trd_status trd__fail_in(trd_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Replaces the current message without a code (used to carry an error from a worker thread to its caller). */
void trd__set_error_message(const char *message);

#define TRD_TRY(expression)                                                                                  \
    do {                                                                                                     \
        trd_status try_status_ = (expression);                                                               \
        if (try_status_ != TRD_OK) return try_status_;                                                       \
    } while (0)

#endif
