/* Keys and values that the processes of one run give each other while their plugins find one another: a
 * Redis server that all of them reach. Knows nothing of a plugin.
 *
 * Invariant: a start of the run has a name of its own ("job"), and no process takes a place in it twice, so
 * that what an earlier start left is never read. Thread-safety: any number of threads. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_EXCHANGE_H
#define TRD_BACKEND_PJRT_RUNTIME_EXCHANGE_H

#include <stddef.h>

#include "base/status.h"

typedef struct trd__exchange trd__exchange;

/* address: "redis://HOST[:PORT]/JOB" or "unix:PATH#JOB". Takes place `process` of the job; TRD_STATE where
 * it is taken. */
trd_status trd__exchange_open(const char *address, int process, trd__exchange **exchange);
void trd__exchange_close(trd__exchange *exchange); /* NULL is fine */

trd_status trd__exchange_put(trd__exchange *exchange, const char *key, size_t key_bytes, const char *value,
                             size_t value_bytes);
/* Waits until some process has put the key, at most wait_ms (0: looks once); then TRD_NOT_FOUND. *value is
 * the caller's, to be freed with trd__free. */
trd_status trd__exchange_get(trd__exchange *exchange, const char *key, size_t key_bytes, int wait_ms,
                             char **value, size_t *value_bytes);

#endif
