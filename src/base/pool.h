/* A fixed set of threads that run one task at a time together. The split of work is a function of (worker,
 * workers) alone, so results never depend on timing. Waiting spins briefly, then sleeps. */
#ifndef TRD_BASE_POOL_H
#define TRD_BASE_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct trd__pool trd__pool;

/* Called once per worker, 0 <= worker < workers. Worker 0 is the thread that called trd__pool_run. */
typedef void (*trd__pool_task)(void *context, int worker, int workers);

trd_status trd__pool_create(int workers, trd__pool **pool); /* workers >= 1 */
void trd__pool_free(trd__pool *pool);                       /* NULL is fine */
int trd__pool_workers(const trd__pool *pool);

/* Runs task on all workers and returns when every one is done. One caller at a time. */
void trd__pool_run(trd__pool *pool, trd__pool_task task, void *context);

/* Runs one task over so many bytes of memory on threads made for it: no more than `workers` or than the
 * memory has use for, and the caller alone where the bytes are few or the system refuses a thread. */
void trd__pool_once(int workers, size_t bytes, trd__pool_task task, void *context);

/* Processors this process may use (its affinity mask), at least 1. */
int trd__processor_count(void);

/* Worker's part [*begin, *end) of total items cut into equal runs that are multiples of grain (but the last).
 */
void trd__partition(int worker, int workers, int64_t total, int64_t grain, int64_t *begin, int64_t *end);

#endif
