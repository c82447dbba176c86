/* Runs under way: the plugin executes and tells when each device is done, the queue puts that into the order
 * of dispatch.
 *
 * Invariants: a ticket is done when its run is, on all devices, and all earlier ones are; the first failure
 * is kept until reset. One thread dispatches; the plugin's threads report. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_QUEUE_H
#define TRD_BACKEND_PJRT_RUNTIME_QUEUE_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/pjrt/runtime/plugin.h"

/* What the runs of one program have cost; written by the queue. */
typedef struct trd__pjrt_counter {
    const char *program;     /* for messages */
    const trd__label *label; /* NULL without a recorder */
    _Atomic uint64_t runs, busy_ns, least_ns;
} trd__pjrt_counter;

typedef struct trd__pjrt_queue trd__pjrt_queue;

/* devices: events that each run has. recorder: NULL for none. */
trd_status trd__pjrt_queue_create(const PJRT_Api *api, int devices, trd__recorder *recorder,
                                  trd__pjrt_queue **queue);
void trd__pjrt_queue_free(trd__pjrt_queue *queue); /* drains first; NULL is fine */

/* Waits while the queue is full and returns the sticky error, if any; then a run may be dispatched. */
trd_status trd__pjrt_queue_ready(trd__pjrt_queue *queue);
/* A run was dispatched at dispatch_ns; done are its events, one a device, which the queue takes. Returns the
 * ticket. The counter must live until the ticket is done. */
uint64_t trd__pjrt_queue_add(trd__pjrt_queue *queue, trd__pjrt_counter *counter, PJRT_Event *const *done,
                             uint64_t dispatch_ns);
/* A run could not be dispatched: keeps the thread's message as the sticky error; returns status. */
trd_status trd__pjrt_queue_stick(trd__pjrt_queue *queue, trd_status status);

bool trd__pjrt_queue_done(trd__pjrt_queue *queue, uint64_t ticket);
void trd__pjrt_queue_wait(trd__pjrt_queue *queue, uint64_t ticket);
uint64_t trd__pjrt_queue_last(const trd__pjrt_queue *queue); /* newest ticket; dispatching thread only */
trd_status trd__pjrt_queue_error(trd__pjrt_queue *queue);    /* the sticky error, its message set */
void trd__pjrt_queue_reset(trd__pjrt_queue *queue);
trd__backend_stats trd__pjrt_queue_stats(const trd__pjrt_queue *queue);

#endif
