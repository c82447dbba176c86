/* The queue over a plugin whose events this test ends itself: in any order, with errors, or inside the
 * dispatch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/pjrt/runtime/queue.h"
#include "base/clock.h"
#include "support/plugins/fake_error.h"

struct PJRT_Event {
    PJRT_Event_OnReadyCallback callback;
    void *user;
    bool at_once, freed;
};

static PJRT_Error *on_ready(PJRT_Event_OnReady_Args *args)
{
    args->event->callback = args->callback;
    args->event->user = args->user_arg;
    if (args->event->at_once) args->callback(NULL, args->user_arg);
    return NULL;
}

static PJRT_Error *event_destroy(PJRT_Event_Destroy_Args *args)
{
    assert_false(args->event->freed);
    args->event->freed = true;
    return NULL;
}

static const PJRT_Api api = {.struct_size = sizeof(PJRT_Api),
                             .PJRT_Error_Destroy = error_destroy,
                             .PJRT_Error_Message = error_message,
                             .PJRT_Error_GetCode = error_code,
                             .PJRT_Event_OnReady = on_ready,
                             .PJRT_Event_Destroy = event_destroy};

static void finish(PJRT_Event *event, PJRT_Error *error)
{
    event->callback(error, event->user);
}

static trd__pjrt_queue *queue_of(int devices)
{
    trd__pjrt_queue *queue;
    assert_int_equal(trd__pjrt_queue_create(&api, devices, NULL, &queue), TRD_OK);
    return queue;
}

static uint64_t add(trd__pjrt_queue *queue, trd__pjrt_counter *counter, PJRT_Event *event)
{
    assert_int_equal(trd__pjrt_queue_ready(queue), TRD_OK);
    return trd__pjrt_queue_add(queue, counter, (PJRT_Event *[]){event}, trd__now_ns());
}

static void counts_in_order(void **state)
{
    (void)state;
    trd__pjrt_queue *queue = queue_of(1);
    trd__pjrt_counter counter = {.program = "p"};
    PJRT_Event events[3] = {0};
    for (uint64_t i = 0; i < 3; i++) assert_true(add(queue, &counter, &events[i]) == i + 1);
    finish(&events[2], NULL);
    finish(&events[1], NULL);
    assert_false(trd__pjrt_queue_done(queue, 1)); /* the first is still running */
    assert_false(trd__pjrt_queue_done(queue, 3));
    assert_int_equal(counter.runs, 0);
    finish(&events[0], NULL);
    assert_true(trd__pjrt_queue_done(queue, 3));
    trd__pjrt_queue_wait(queue, 3);
    assert_int_equal(counter.runs, 3);
    trd__backend_stats stats = trd__pjrt_queue_stats(queue);
    assert_int_equal(stats.executions, 3);
    assert_int_equal(stats.busy_ns, counter.busy_ns);
    assert_true(counter.least_ns > 0 && counter.least_ns <= counter.busy_ns);
    trd__pjrt_queue_free(queue);
    for (int i = 0; i < 3; i++) assert_true(events[i].freed);
}

static void keeps_the_first_failure(void **state)
{
    (void)state;
    trd__pjrt_queue *queue = queue_of(1);
    trd__pjrt_counter counter = {.program = "step"};
    PJRT_Error errors[2] = {{"first words", PJRT_Error_Code_RESOURCE_EXHAUSTED},
                            {"second words", PJRT_Error_Code_INTERNAL}};
    PJRT_Event events[3] = {0};
    for (int i = 0; i < 3; i++) add(queue, &counter, &events[i]);
    finish(&events[0], NULL);
    finish(&events[1], &errors[0]);
    finish(&events[2], &errors[1]);
    assert_int_equal(trd__pjrt_queue_error(queue), TRD_NO_MEMORY);
    assert_string_equal(trd_error_message(), "program \"step\": first words");
    assert_int_equal(trd__pjrt_queue_ready(queue), TRD_NO_MEMORY);
    assert_true(trd__pjrt_queue_done(queue, 3));
    trd__pjrt_queue_reset(queue);
    assert_int_equal(trd__pjrt_queue_error(queue), TRD_OK);
    assert_int_equal(trd__pjrt_queue_ready(queue), TRD_OK);
    trd__pjrt_queue_free(queue);
}

/* More than the ring holds, each over before its dispatch returns. */
static void goes_round(void **state)
{
    (void)state;
    enum { RUNS = 200 };
    trd__pjrt_queue *queue = queue_of(1);
    trd__pjrt_counter counter = {.program = "p"};
    PJRT_Event events[RUNS] = {0};
    for (int i = 0; i < RUNS; i++) {
        events[i].at_once = true;
        assert_true(trd__pjrt_queue_done(queue, add(queue, &counter, &events[i])));
    }
    assert_int_equal(counter.runs, RUNS);
    trd__pjrt_queue_free(queue);
    for (int i = 0; i < RUNS; i++) assert_true(events[i].freed);
}

/* A run on several devices is done when the last of them is, and failed when any of them did. */
static void waits_for_all_devices(void **state)
{
    (void)state;
    enum { DEVICES = 3 };
    trd__pjrt_queue *queue = queue_of(DEVICES);
    trd__pjrt_counter counter = {.program = "step"};
    PJRT_Error error = {"words", PJRT_Error_Code_INTERNAL};
    PJRT_Event events[2][DEVICES] = {0};
    for (int run = 0; run < 2; run++) {
        PJRT_Event *done[DEVICES] = {&events[run][0], &events[run][1], &events[run][2]};
        assert_int_equal(trd__pjrt_queue_ready(queue), TRD_OK);
        trd__pjrt_queue_add(queue, &counter, done, trd__now_ns());
    }
    finish(&events[0][2], NULL);
    for (int d = 0; d < DEVICES; d++) finish(&events[1][d], NULL);
    finish(&events[0][0], &error);
    assert_false(trd__pjrt_queue_done(queue, 1));
    finish(&events[0][1], NULL);
    assert_true(trd__pjrt_queue_done(queue, 2));
    assert_int_equal(counter.runs, 2);
    assert_int_not_equal(trd__pjrt_queue_error(queue), TRD_OK);
    trd__pjrt_queue_free(queue);
    for (int run = 0; run < 2; run++)
        for (int d = 0; d < DEVICES; d++) assert_true(events[run][d].freed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts_in_order),
                                       cmocka_unit_test(keeps_the_first_failure),
                                       cmocka_unit_test(goes_round), cmocka_unit_test(waits_for_all_devices)};
    return cmocka_run_group_tests_name("backend/pjrt_queue", tests, NULL, NULL);
}
