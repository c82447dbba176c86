/* The queue: a ring of runs, each finished by the plugin's callback in any order and counted in order.
 * A run's time on the device begins when it was dispatched or when the run before it ended, whichever is
 * later. */
#include "backend/pjrt/runtime/queue.h"

#include <pthread.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"

enum { RING = 64, MESSAGE = 2048 };

typedef struct run {
    trd__pjrt_queue *queue;
    trd__pjrt_counter *counter;
    PJRT_Event **events; /* by device; freed by the dispatching thread when it takes the place again */
    int pending;         /* devices that are not done; under the mutex */
    uint64_t dispatch_ns, end_ns;
    bool recorded, finished;
} run;

struct trd__pjrt_queue {
    const PJRT_Api *api;
    int devices;
    PJRT_Event **events; /* of all runs */
    pthread_mutex_t mutex;
    pthread_cond_t done;
    run ring[RING];
    uint64_t last; /* newest ticket; under mutex, written by the dispatching thread */
    _Atomic uint64_t done_ticket;
    uint64_t end_ns; /* of the newest run that is done; under mutex, as are the next two */
    trd_status failure;
    char message[MESSAGE];
    _Atomic uint64_t busy_ns, executions;
    trd__recorder *recorder; /* NULL: nothing is recorded */
    trd__track *waiting, *device;
};

/* Under the mutex: counts a run that is the oldest not counted yet. */
static void count(trd__pjrt_queue *q, run *r, uint64_t ticket)
{
    uint64_t begin_ns = r->dispatch_ns > q->end_ns ? r->dispatch_ns : q->end_ns;
    if (r->end_ns > q->end_ns) q->end_ns = r->end_ns;
    /* Ended before the one before it: its time went by beside it, and 0 would say that it never ran. */
    uint64_t end_ns = q->end_ns > begin_ns ? q->end_ns : begin_ns + 1, busy_ns = end_ns - begin_ns;
    trd__pjrt_counter *counter = r->counter;
    if (r->recorded) {
        trd__track_add(q->waiting, counter->label, r->dispatch_ns, begin_ns, (int64_t)ticket);
        trd__track_add(q->device, counter->label, begin_ns, end_ns, (int64_t)ticket);
    }
    atomic_fetch_add(&q->busy_ns, busy_ns);
    atomic_fetch_add(&q->executions, 1);
    atomic_fetch_add(&counter->busy_ns, busy_ns);
    atomic_fetch_add(&counter->runs, 1);
    uint64_t least_ns = atomic_load(&counter->least_ns);
    if (!least_ns || busy_ns < least_ns) atomic_store(&counter->least_ns, busy_ns);
}

/* Under the mutex: keeps the thread's message. */
static void keep_failure(trd__pjrt_queue *q, trd_status status)
{
    if (q->failure) return;
    q->failure = status;
    snprintf(q->message, sizeof q->message, "%s", trd_error_message());
}

/* On a thread of the plugin's, or inside the dispatch of a run that is over at once; once for each device. */
static void finished(PJRT_Error *error, void *user)
{
    run *r = user;
    trd__pjrt_queue *q = r->queue;
    uint64_t now = trd__now_ns();
    trd_status status = trd__pjrt_check(q->api, error, "program \"%s\"", r->counter->program);
    pthread_mutex_lock(&q->mutex);
    if (status) keep_failure(q, status);
    r->end_ns = now;
    r->finished = --r->pending == 0;
    uint64_t ticket = atomic_load(&q->done_ticket);
    while (ticket < q->last && q->ring[(ticket + 1) % RING].finished) {
        ticket++;
        count(q, &q->ring[ticket % RING], ticket);
        q->ring[ticket % RING].finished = false;
    }
    atomic_store(&q->done_ticket, ticket);
    pthread_cond_broadcast(&q->done);
    pthread_mutex_unlock(&q->mutex);
}

bool trd__pjrt_queue_done(trd__pjrt_queue *q, uint64_t ticket)
{
    return atomic_load(&q->done_ticket) >= ticket;
}

void trd__pjrt_queue_wait(trd__pjrt_queue *q, uint64_t ticket)
{
    if (trd__pjrt_queue_done(q, ticket)) return;
    pthread_mutex_lock(&q->mutex);
    while (!trd__pjrt_queue_done(q, ticket)) pthread_cond_wait(&q->done, &q->mutex);
    pthread_mutex_unlock(&q->mutex);
}

uint64_t trd__pjrt_queue_last(const trd__pjrt_queue *q)
{
    return q->last;
}

static void free_events(const trd__pjrt_queue *q, run *r)
{
    for (int d = 0; d < q->devices; d++) {
        trd__pjrt_event_free(q->api, r->events[d]);
        r->events[d] = NULL;
    }
}

trd_status trd__pjrt_queue_ready(trd__pjrt_queue *q)
{
    TRD_TRY(trd__pjrt_queue_error(q));
    uint64_t ticket = q->last + 1;
    if (ticket > RING) trd__pjrt_queue_wait(q, ticket - RING);
    run *r = &q->ring[ticket % RING];
    free_events(q, r);
    return TRD_OK;
}

uint64_t trd__pjrt_queue_add(trd__pjrt_queue *q, trd__pjrt_counter *counter, PJRT_Event *const *done,
                             uint64_t dispatch_ns)
{
    pthread_mutex_lock(&q->mutex);
    uint64_t ticket = ++q->last;
    run *r = &q->ring[ticket % RING];
    *r = (run){.queue = q,
               .counter = counter,
               .events = r->events,
               .pending = q->devices,
               .dispatch_ns = dispatch_ns,
               .recorded = trd__recorder_on(q->recorder)};
    for (int d = 0; d < q->devices; d++) r->events[d] = done[d];
    pthread_mutex_unlock(&q->mutex);
    for (int d = 0; d < q->devices; d++) {
        PJRT_Event_OnReady_Args when =
            TRD__PJRT(PJRT_Event_OnReady_Args, .event = done[d], .callback = finished, .user_arg = r);
        PJRT_Error *error = q->api->PJRT_Event_OnReady(&when);
        if (error) finished(error, r); /* it will not be called: the run counts as failed */
    }
    return ticket;
}

trd_status trd__pjrt_queue_stick(trd__pjrt_queue *q, trd_status status)
{
    pthread_mutex_lock(&q->mutex);
    keep_failure(q, status);
    pthread_mutex_unlock(&q->mutex);
    return status;
}

trd_status trd__pjrt_queue_error(trd__pjrt_queue *q)
{
    pthread_mutex_lock(&q->mutex);
    trd_status status = q->failure ? trd__fail(q->failure, "%s", q->message) : TRD_OK;
    pthread_mutex_unlock(&q->mutex);
    return status;
}

void trd__pjrt_queue_reset(trd__pjrt_queue *q)
{
    trd__pjrt_queue_wait(q, q->last);
    pthread_mutex_lock(&q->mutex);
    q->failure = TRD_OK;
    pthread_mutex_unlock(&q->mutex);
}

trd__backend_stats trd__pjrt_queue_stats(const trd__pjrt_queue *q)
{
    return (trd__backend_stats){.busy_ns = atomic_load(&q->busy_ns),
                                .executions = atomic_load(&q->executions)};
}

static trd_status make_tracks(trd__pjrt_queue *q, trd__recorder *recorder)
{
    if (!recorder) return TRD_OK;
    q->recorder = recorder;
    TRD_TRY(trd__recorder_track(recorder, "queue", true, &q->waiting));
    return trd__recorder_track(recorder, "device", false, &q->device);
}

trd_status trd__pjrt_queue_create(const PJRT_Api *api, int devices, trd__recorder *recorder,
                                  trd__pjrt_queue **out)
{
    *out = NULL;
    trd__pjrt_queue *q = trd__calloc(1, sizeof *q);
    if (!q) return TRD_NO_MEMORY;
    q->api = api;
    q->devices = devices;
    q->events = trd__calloc(RING * (size_t)devices, sizeof(PJRT_Event *));
    trd_status status = q->events ? make_tracks(q, recorder) : TRD_NO_MEMORY;
    if (status) {
        trd__free(q->events);
        trd__free(q);
        return status;
    }
    for (int i = 0; i < RING; i++) q->ring[i].events = q->events + (ptrdiff_t)i * devices;
    pthread_mutex_init(&q->mutex, NULL);
    pthread_cond_init(&q->done, NULL);
    *out = q;
    return TRD_OK;
}

void trd__pjrt_queue_free(trd__pjrt_queue *q)
{
    if (!q) return;
    trd__pjrt_queue_wait(q, q->last);
    pthread_mutex_lock(&q->mutex); /* the last callback is out of it */
    pthread_mutex_unlock(&q->mutex);
    for (int i = 0; i < RING; i++) free_events(q, &q->ring[i]);
    trd__free(q->events);
    pthread_cond_destroy(&q->done);
    pthread_mutex_destroy(&q->mutex);
    trd__free(q);
}
