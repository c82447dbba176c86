/* The executor: one thread takes runs from a fixed ring, in order, so dispatch returns at once and allocates
 * nothing. A run's ticket is its number; tickets finish in order, so one counter says what is done.
 * Invariant: once a kernel has failed, later runs finish without being executed until the reset. */
#include <pthread.h>
#include <stdatomic.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/clock.h"

enum { RING = 64 };

struct trd__executor {
    trd__runner *runner;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t submitted, finished;
    trd__run ring[RING];
    uint64_t submitted_ticket; /* under mutex; written by the dispatching thread */
    _Atomic uint64_t finished_ticket;
    _Atomic uint64_t busy_ns, executions;
    bool stop;
    trd__recorder *recorder;    /* NULL: nothing is recorded */
    trd__track *queue, *device; /* written by the executor's thread */
};

static void record(const trd__executor *executor, const trd__run *run, uint64_t begin_ns, uint64_t end_ns)
{
    int64_t ticket = (int64_t)run->ticket;
    trd__track_add(executor->queue, run->executable->label, run->submitted_ns, begin_ns, ticket);
    trd__track_add(executor->device, run->executable->label, begin_ns, end_ns, ticket);
}

static void execute(trd__executor *executor, const trd__run *run)
{
    if (trd__runner_fault(executor->runner)) return;
    uint64_t begin = trd__now_ns();
    trd__runner_run(executor->runner, run, run->submitted_ns ? executor->device : NULL);
    uint64_t end = trd__now_ns(), busy_ns = end - begin;
    if (run->submitted_ns) record(executor, run, begin, end);
    atomic_fetch_add(&executor->busy_ns, busy_ns);
    atomic_fetch_add(&executor->executions, 1);
    atomic_fetch_add(&run->executable->busy_ns, busy_ns);
    atomic_fetch_add(&run->executable->runs, 1);
    uint64_t least_ns = atomic_load(&run->executable->least_ns); /* written by this thread only */
    if (!least_ns || busy_ns < least_ns) atomic_store(&run->executable->least_ns, busy_ns);
}

static void *executor_main(void *argument)
{
    trd__executor *executor = argument;
    for (uint64_t ticket = 1;; ticket++) {
        pthread_mutex_lock(&executor->mutex);
        while (executor->submitted_ticket < ticket && !executor->stop)
            pthread_cond_wait(&executor->submitted, &executor->mutex);
        bool stop = executor->submitted_ticket < ticket;
        pthread_mutex_unlock(&executor->mutex);
        if (stop) return NULL;
        execute(executor, &executor->ring[ticket % RING]);
        pthread_mutex_lock(&executor->mutex);
        atomic_store(&executor->finished_ticket, ticket);
        pthread_cond_broadcast(&executor->finished);
        pthread_mutex_unlock(&executor->mutex);
    }
}

bool trd__executor_done(trd__executor *executor, uint64_t ticket)
{
    return atomic_load(&executor->finished_ticket) >= ticket;
}

void trd__executor_wait(trd__executor *executor, uint64_t ticket)
{
    if (trd__executor_done(executor, ticket)) return;
    pthread_mutex_lock(&executor->mutex);
    while (!trd__executor_done(executor, ticket)) pthread_cond_wait(&executor->finished, &executor->mutex);
    pthread_mutex_unlock(&executor->mutex);
}

uint64_t trd__executor_last(const trd__executor *executor)
{
    return executor->submitted_ticket;
}

trd_status trd__executor_submit(trd__executor *executor, trd__run *run)
{
    TRD_TRY(trd__executor_error(executor));
    uint64_t ticket = executor->submitted_ticket + 1;
    if (ticket > RING) trd__executor_wait(executor, ticket - RING);
    run->ticket = ticket;
    run->submitted_ns = trd__recorder_on(executor->recorder) ? trd__now_ns() : 0;
    executor->ring[ticket % RING] = *run;
    pthread_mutex_lock(&executor->mutex);
    executor->submitted_ticket = ticket;
    pthread_cond_signal(&executor->submitted);
    pthread_mutex_unlock(&executor->mutex);
    return TRD_OK;
}

trd_status trd__executor_error(trd__executor *executor)
{
    const char *message = trd__runner_fault(executor->runner);
    return message ? trd__fail(TRD_INTERNAL, "%s", message) : TRD_OK;
}

void trd__executor_reset(trd__executor *executor)
{
    trd__executor_wait(executor, executor->submitted_ticket);
    trd__runner_reset(executor->runner);
}

trd__backend_stats trd__executor_stats(const trd__executor *executor)
{
    return (trd__backend_stats){.busy_ns = atomic_load(&executor->busy_ns),
                                .executions = atomic_load(&executor->executions)};
}

static trd_status make_tracks(trd__executor *executor, trd__recorder *recorder)
{
    if (!recorder) return TRD_OK;
    executor->recorder = recorder;
    TRD_TRY(trd__recorder_track(recorder, "queue", true, &executor->queue));
    return trd__recorder_track(recorder, "device", false, &executor->device);
}

trd_status trd__executor_create(int workers, trd__recorder *recorder, trd__executor **out)
{
    *out = NULL;
    trd__executor *executor = trd__calloc(1, sizeof *executor);
    if (!executor) return TRD_NO_MEMORY;
    trd_status status = make_tracks(executor, recorder);
    if (!status) status = trd__runner_create(workers, &executor->runner);
    if (status) {
        trd__free(executor);
        return status;
    }
    pthread_mutex_init(&executor->mutex, NULL);
    pthread_cond_init(&executor->submitted, NULL);
    pthread_cond_init(&executor->finished, NULL);
    if (pthread_create(&executor->thread, NULL, executor_main, executor) == 0) {
        *out = executor;
        return TRD_OK;
    }
    pthread_cond_destroy(&executor->finished);
    pthread_cond_destroy(&executor->submitted);
    pthread_mutex_destroy(&executor->mutex);
    trd__runner_free(executor->runner);
    trd__free(executor);
    return trd__fail(TRD_NO_MEMORY, "backend cpu: the system refused the executor's thread");
}

void trd__executor_free(trd__executor *executor)
{
    if (!executor) return;
    pthread_mutex_lock(&executor->mutex);
    executor->stop = true;
    pthread_cond_signal(&executor->submitted);
    pthread_mutex_unlock(&executor->mutex);
    pthread_join(executor->thread, NULL); /* it leaves only when the ring is empty */
    pthread_cond_destroy(&executor->finished);
    pthread_cond_destroy(&executor->submitted);
    pthread_mutex_destroy(&executor->mutex);
    trd__runner_free(executor->runner);
    trd__free(executor);
}
