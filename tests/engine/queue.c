/* The throttler on a device that claims never to be ready: which call waits, and for what. Metrics on one
 * that is always done: what is written when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/internal.h"
#include "support/engine.h"

static const trd__backend_table *device; /* the real one */
static int waits;
static uint64_t last_event, newest_event;

static bool never_ready(trd__backend *backend, trd__event event)
{
    (void)backend;
    (void)event;
    return false;
}

static trd_status counted_wait(trd__backend *backend, trd__event event)
{
    waits++;
    last_event = event.ticket;
    return device->event_wait(backend, event);
}

static trd_status counted_execute(trd__backend *backend, trd__executable *executable, trd__set *const *sets,
                                  trd__event *event)
{
    trd_status status = device->execute(backend, executable, sets, event);
    newest_event = event->ticket;
    return status;
}

static trd_engine *slow_engine(const trd_engine_options *o, trd__backend_table *table)
{
    trd_engine *engine = test_engine(o);
    device = engine->backend->table;
    *table = *device;
    table->event_ready = never_ready;
    table->event_wait = counted_wait;
    table->execute = counted_execute;
    engine->backend->table = table;
    waits = 0;
    return engine;
}

/* Calls return without waiting while fewer than max_inflight runs are unfinished; the next waits for the
 * oldest, once. Updates, evaluation and forward graphs take the same queue. */
static void a_full_queue_waits_for_the_oldest(void **state)
{
    (void)state;
    for (int inflight = 1; inflight <= 4; inflight++) {
        trd_engine_options o = test_options();
        trd__backend_table table;
        test_batch b;
        uint64_t events[4] = {0};
        float logprobs[TEST_ROWS * TEST_LENGTH];
        o.max_inflight_computations = inflight;
        trd_engine *engine = slow_engine(&o, &table);
        test_batch_fill(&b, 1);
        OK(trd_engine_compile(engine, &b.batch));
        waits = 0;
        for (int i = 0; i < inflight; i++) {
            OK(trd_engine_fwd_bwd(engine, &b.batch));
            events[i] = newest_event;
            assert_int_equal(waits, 0);
        }
        OK(trd_engine_update(engine));
        assert_int_equal(waits, 1);
        assert_int_equal(last_event, events[0]);
        uint64_t update = newest_event;
        OK(trd_engine_eval_step(engine, &b.batch));
        assert_int_equal(waits, 2);
        assert_int_equal(last_event, inflight > 1 ? events[1] : update);
        assert_int_equal(engine->dispatched - engine->finished, inflight);
        waits = 0;
        OK(trd_engine_fwd_only(engine, trd_forward_token_logprobs, NULL, &b.batch, logprobs,
                               sizeof logprobs));
        assert_true(waits >= 1 && engine->dispatched - engine->finished <= (uint64_t)inflight);
        engine->backend->table = device;
        OK(trd_engine_close(engine));
    }
}

static bool done_at_once(trd__backend *backend, trd__event event)
{
    return device->event_wait(backend, event) == TRD_OK;
}

static int steps_written;

static trd_status count_write(void *user, trd_metric_mode mode, int64_t step, const trd_metric *metrics,
                              int count)
{
    (void)user;
    (void)mode;
    (void)metrics;
    (void)count;
    assert_int_equal(step, ++steps_written);
    return TRD_OK;
}

/* However fast the device is, a step's numbers are written once the next run is queued, not before. */
static void metrics_wait_for_the_next_dispatch(void **state)
{
    (void)state;
    const trd_metric_sink sink = {.write = count_write};
    trd_engine_options o = test_options();
    trd__backend_table table;
    trd_step_metrics metrics;
    test_batch b;
    o.sinks = &sink;
    o.sink_count = 1;
    trd_engine *engine = slow_engine(&o, &table);
    table.event_ready = done_at_once;
    steps_written = 0;
    test_batch_fill(&b, 1);
    for (int step = 0; step < 3; step++) {
        OK(trd_engine_fwd_bwd(engine, &b.batch));
        assert_int_equal(steps_written, step);
        OK(trd_engine_update(engine));
        assert_int_equal(steps_written, step);
    }
    OK(trd_engine_get_metrics(engine, false, &metrics));
    assert_int_equal(steps_written, 3);
    engine->backend->table = device;
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_full_queue_waits_for_the_oldest),
                                       cmocka_unit_test(metrics_wait_for_the_next_dispatch)};
    return cmocka_run_group_tests_name("engine/queue", tests, NULL, NULL);
}
