/* Status codes and the thread's last error message.
 *
 * Every function of the library that can fail returns a trd_status; TRD_OK is 0. The message of the last
 * failure on the calling thread says what was being done, what was expected, what was found and what to do.
 * Thread-safety: the message is thread-local, the one piece of state that no object owns. */
#ifndef TREADLE_STATUS_H
#define TREADLE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Marks what the shared library exports. */
#if defined(__GNUC__)
#define TRD_API __attribute__((visibility("default")))
#else
#define TRD_API
#endif

/* X(name, text): the only list of status codes. */
#define TRD_STATUS_LIST(X)                                                                                   \
    X(OK, "ok")                                                                                              \
    X(INVALID_ARGUMENT, "invalid argument")                                                                  \
    X(NOT_FOUND, "not found")                                                                                \
    X(NO_MEMORY, "out of memory")                                                                            \
    X(IO, "input/output error")                                                                              \
    X(CORRUPT, "corrupt data")                                                                               \
    X(UNSUPPORTED, "not supported")                                                                          \
    X(SHAPE, "shape or type mismatch")                                                                       \
    X(DELETED, "array was donated")                                                                          \
    X(STATE, "wrong state for this call")                                                                    \
    X(BUSY, "in use by another process")                                                                     \
    X(END, "end of data")                                                                                    \
    X(INTERNAL, "internal error")

/* TRD_OK, TRD_INVALID_ARGUMENT and so on, as listed in TRD_STATUS_LIST. */
typedef enum trd_status {
#define TRD_STATUS_ENUM(name, text) TRD_##name,
    TRD_STATUS_LIST(TRD_STATUS_ENUM)
#undef TRD_STATUS_ENUM
} trd_status;

/* The code's text, for example "not found". Never NULL. */
TRD_API const char *trd_status_text(trd_status status);

/* Message of the last failure on this thread, "" when there was none. Valid until the next failing call. */
TRD_API const char *trd_error_message(void);

#ifdef __cplusplus
}
#endif
#endif
