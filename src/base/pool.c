/* The thread pool: a generation counter that workers wait on, and a countdown that the caller waits on.
 * Invariant: between runs every worker waits for generation + 1; a run's task and context are written before
 * the counter is released. */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/alloc.h"

enum { SPINS = 4000 }; /* some tens of microseconds, then sleep */

typedef struct pool_thread {
    trd__pool *pool;
    pthread_t thread;
    int index;
} pool_thread;

struct trd__pool {
    int workers;
    int started; /* threads running beside the caller */
    pool_thread *threads;
    trd__pool_task task;
    void *context;
    _Atomic uint32_t generation;
    _Atomic int running;
    _Atomic int stop;
    pthread_mutex_t mutex;
    pthread_cond_t start;
    pthread_cond_t done;
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_for_generation(trd__pool *pool, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen) return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load_explicit(&pool->generation, memory_order_acquire) == seen)
        pthread_cond_wait(&pool->start, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *argument)
{
    pool_thread *self = argument;
    trd__pool *pool = self->pool;
    for (uint32_t seen = 0;; seen++) {
        wait_for_generation(pool, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) return NULL;
        pool->task(pool->context, self->index, pool->workers);
        if (atomic_fetch_sub_explicit(&pool->running, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

static void release(trd__pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->mutex);
}

trd_status trd__pool_create(int workers, trd__pool **out)
{
    *out = NULL;
    if (workers < 1 || workers > 1024)
        return trd__fail(TRD_INVALID_ARGUMENT, "thread pool: expected 1 to 1024 threads, found %d", workers);
    trd__pool *pool = trd__calloc(1, sizeof *pool);
    if (!pool) return TRD_NO_MEMORY;
    pool->workers = workers;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->threads = trd__calloc((size_t)workers, sizeof *pool->threads);
    if (!pool->threads) {
        trd__pool_free(pool);
        return TRD_NO_MEMORY;
    }
    for (int i = 1; i < workers; i++) {
        pool->threads[i] = (pool_thread){.pool = pool, .index = i};
        if (pthread_create(&pool->threads[i].thread, NULL, worker_main, &pool->threads[i]) != 0) {
            trd__pool_free(pool);
            return trd__fail(TRD_NO_MEMORY, "thread pool: the system refused thread %d of %d", i + 1,
                             workers);
        }
        pool->started++;
    }
    *out = pool;
    return TRD_OK;
}

void trd__pool_free(trd__pool *pool)
{
    if (!pool) return;
    atomic_store_explicit(&pool->stop, 1, memory_order_release);
    release(pool);
    for (int i = 1; i <= pool->started; i++) pthread_join(pool->threads[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->mutex);
    trd__free(pool->threads);
    trd__free(pool);
}

int trd__pool_workers(const trd__pool *pool)
{
    return pool->workers;
}

void trd__pool_run(trd__pool *pool, trd__pool_task task, void *context)
{
    if (pool->workers == 1) {
        task(context, 0, 1);
        return;
    }
    pool->task = task;
    pool->context = context;
    atomic_store_explicit(&pool->running, pool->workers - 1, memory_order_relaxed);
    release(pool);
    task(context, 0, pool->workers);
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool->running, memory_order_acquire) == 0) return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load_explicit(&pool->running, memory_order_acquire) != 0)
        pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

void trd__pool_once(int workers, size_t bytes, trd__pool_task task, void *context)
{
    enum { MOST_WORKERS = 8, LEAST_BYTES = 1 << 22 };
    if (workers > MOST_WORKERS) workers = MOST_WORKERS;
    trd__pool *pool = NULL;
    if (bytes >= LEAST_BYTES && workers > 1 && trd__pool_create(workers, &pool) == TRD_OK)
        trd__pool_run(pool, task, context);
    else
        task(context, 0, 1);
    trd__pool_free(pool);
}

int trd__processor_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int count = CPU_COUNT(&set);
    return count > 0 ? count : 1;
}

void trd__partition(int worker, int workers, int64_t total, int64_t grain, int64_t *begin, int64_t *end)
{
    if (workers == 1) { /* most calls of a small model: no divisions */
        *begin = 0;
        *end = total;
        return;
    }
    int64_t units = (total + grain - 1) / grain;
    int64_t first = units * worker / workers * grain;
    int64_t last = units * (worker + 1) / workers * grain;
    *begin = first < total ? first : total;
    *end = last < total ? last : total;
}
