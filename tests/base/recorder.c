/* The recorder: tracks by name, spans in order from another thread, full rings, labels that outlive their
 * text. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/recorder.h"

static trd__recorder *create(void)
{
    trd__recorder *recorder;
    assert_int_equal(trd__recorder_create(&recorder), TRD_OK);
    return recorder;
}

static trd__track *track_of(trd__recorder *recorder, const char *name)
{
    trd__track *track;
    assert_int_equal(trd__recorder_track(recorder, name, false, &track), TRD_OK);
    return track;
}

static void tracks_and_labels(void **state)
{
    (void)state;
    trd__recorder *recorder = create();
    trd__track *host = track_of(recorder, "host"), *device = track_of(recorder, "device");
    assert_ptr_equal(track_of(recorder, "host"), host);
    assert_ptr_equal(recorder->tracks, host); /* in the order they were made */
    assert_ptr_equal(host->next, device);
    char text[8] = "matmul";
    const trd__label *label;
    assert_int_equal(trd__recorder_label(recorder, &(trd__label){.name = text, .flops = 3}, &label), TRD_OK);
    memset(text, 'x', sizeof text - 1);
    assert_string_equal(label->name, "matmul");
    assert_null(label->kernel);
    assert_true(label->flops == 3);
    assert_false(trd__recorder_on(NULL));
    assert_int_equal(trd__recorder_begin(NULL), 0);
    assert_int_equal(trd__recorder_begin(recorder), 0);
    trd__recorder_switch(recorder, true);
    assert_true(trd__recorder_begin(recorder) > 0);
    trd__recorder_free(recorder);
    trd__recorder_free(NULL);
}

static void full_rings_drop_the_newest(void **state)
{
    (void)state;
    static const trd__label label = {.name = "x"};
    trd__recorder *recorder = create();
    trd__track *track = track_of(recorder, "host");
    trd__span span;
    assert_false(trd__track_take(track, &span));
    for (uint64_t i = 0; i < TRD__TRACK_SPANS + 5; i++) trd__track_add(track, &label, i, i + 1, (int64_t)i);
    assert_int_equal(trd__track_take_dropped(track), 5);
    assert_int_equal(trd__track_take_dropped(track), 0);
    for (int64_t i = 0; i < TRD__TRACK_SPANS; i++) {
        assert_true(trd__track_take(track, &span));
        assert_int_equal(span.number, i);
    }
    assert_false(trd__track_take(track, &span));
    trd__track_add(track, &label, 7, 9, -1); /* room again */
    assert_true(trd__track_take(track, &span));
    assert_int_equal(span.end_ns - span.begin_ns, 2);
    trd__recorder_free(recorder);
}

enum { SPANS = 200000 };

static void *write_spans(void *context)
{
    static const trd__label label = {.name = "x"};
    for (uint64_t i = 0; i < SPANS; i++) trd__track_add(context, &label, i, 2 * i, (int64_t)(3 * i));
    return NULL;
}

/* A reader beside the writer sees whole spans in order. */
static void one_writer_one_reader(void **state)
{
    (void)state;
    trd__recorder *recorder = create();
    trd__track *track = track_of(recorder, "device");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_spans, track), 0);
    for (uint64_t i = 0; i < SPANS;) {
        trd__span span;
        if (!trd__track_take(track, &span)) continue;
        if (span.begin_ns != i || span.end_ns != 2 * i || span.number != (int64_t)(3 * i))
            fail_msg("span %llu is torn", (unsigned long long)i);
        i++;
    }
    pthread_join(thread, NULL);
    assert_int_equal(trd__track_take_dropped(track), 0);
    trd__recorder_free(recorder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tracks_and_labels),
                                       cmocka_unit_test(full_rings_drop_the_newest),
                                       cmocka_unit_test(one_writer_one_reader)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
