/* The profiler: windows counted in micro-steps, what is in a trace, and that nothing else changes. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "engine/internal.h"
#include "engine/trace_file.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { MAX_EVENTS = 20000, MAX_TRACKS = 16 };

typedef struct event {
    const char *name, *category, *phase;
    int64_t thread, number;
    double begin, end;
    trd__json json;
} event;

typedef struct trace {
    trd__json_doc *document;
    event events[MAX_EVENTS];
    int count;
    const char *tracks[MAX_TRACKS];
    double duration;
    int64_t first, micro_steps, dropped;
} trace;

static const char *trace_path(const char *folder, int64_t first)
{
    char name[64];
    snprintf(name, sizeof name, "trace-%08" PRId64 ".json", first);
    return scratch_path(folder, name);
}

static bool exists(const char *folder, int64_t first)
{
    return trd__file_exists(trace_path(folder, first));
}

static void read_event(trace *t, trd__json json)
{
    event *e = &t->events[t->count++];
    trd__json arguments;
    assert_true(t->count < MAX_EVENTS);
    *e = (event){.json = json, .category = ""};
    OK(trd__json_get_string(json, "ph", &e->phase));
    OK(trd__json_get_string(json, "name", &e->name));
    OK(trd__json_get_i64(json, "tid", &e->thread));
    assert_in_range(e->thread, 0, MAX_TRACKS - 1);
    if (strcmp(e->name, "thread_name") == 0) {
        OK(trd__json_get_object(json, "args", &arguments));
        OK(trd__json_get_string(arguments, "name", &t->tracks[e->thread]));
    }
    if (strcmp(e->phase, "M") == 0) return;
    OK(trd__json_get_string(json, "cat", &e->category));
    OK(trd__json_get_f64(json, "ts", &e->begin));
    e->end = e->begin;
    if (strcmp(e->phase, "X") != 0) return;
    double duration;
    OK(trd__json_get_f64(json, "dur", &duration));
    OK(trd__json_get_object(json, "args", &arguments));
    OK(trd__json_get_i64(arguments, "number", &e->number));
    e->end += duration;
}

static trace *open_trace(const char *folder, int64_t first)
{
    trace *t = calloc(1, sizeof *t);
    trd__json events, about;
    assert_non_null(t);
    OK(trd__json_parse_file(trace_path(folder, first), &t->document));
    OK(trd__json_get_object(trd__json_root(t->document), "otherData", &about));
    OK(trd__json_get_i64(about, "first_micro_step", &t->first));
    OK(trd__json_get_i64(about, "micro_steps", &t->micro_steps));
    OK(trd__json_get_i64(about, "dropped_spans", &t->dropped));
    OK(trd__json_get_f64(about, "duration_us", &t->duration));
    OK(trd__json_get_array(trd__json_root(t->document), "traceEvents", &events));
    for (trd__json v = trd__json_first(events); trd__json_exists(v); v = trd__json_next(v)) read_event(t, v);
    assert_int_equal(t->first, first);
    assert_int_equal(t->dropped, 0);
    return t;
}

static void close_trace(trace *t)
{
    trd__json_free(t->document);
    free(t);
}

static int count(const trace *t, const char *track, const char *phase, const char *name)
{
    int found = 0;
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->events[i];
        if (!t->tracks[e->thread] || strcmp(t->tracks[e->thread], track) != 0) continue;
        found += strcmp(e->phase, phase) == 0 && strcmp(e->name, name) == 0;
    }
    return found;
}

static int by_begin(const void *left, const void *right)
{
    const event *a = left, *b = right;
    if (a->thread != b->thread) return a->thread < b->thread ? -1 : 1;
    if (a->begin < b->begin || a->begin > b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end > b->end ? -1 : a->end < b->end;
}

/* Within the window, and on each track disjoint or one inside the other. */
static void expect_nested(trace *t)
{
    enum { DEEPEST = 4 };
    const double rounding = 1e-6;
    double open[DEEPEST];
    int depth = 0;
    int64_t thread = -1;
    qsort(t->events, (size_t)t->count, sizeof *t->events, by_begin);
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->events[i];
        if (strcmp(e->phase, "M") == 0) continue;
        assert_true(e->begin >= 0 && e->end <= t->duration + rounding && e->end >= e->begin);
        if (strcmp(e->phase, "X") != 0) continue;
        if (e->thread != thread) depth = 0;
        thread = e->thread;
        while (depth > 0 && open[depth - 1] <= e->begin + rounding) depth--;
        if (depth > 0 && e->end > open[depth - 1] + rounding)
            fail_msg("\"%s\" of track %s begins at %f and ends at %f, beyond what it is inside of: %f",
                     e->name, t->tracks[thread], e->begin, e->end, open[depth - 1]);
        assert_true(depth < DEEPEST);
        open[depth++] = e->end;
    }
}

static double number_of(const event *e, const char *key)
{
    trd__json arguments;
    double number = 0;
    OK(trd__json_get_object(e->json, "args", &arguments));
    OK(trd__json_opt_f64(arguments, key, &number));
    return number;
}

/* The kernel calls of each run of a program are those its report counts, with its costs. */
static void expect_ops_of_programs(const trace *t, const trd_engine *engine)
{
    for (int i = 0; i < t->count; i++) {
        const event *program = &t->events[i];
        if (strcmp(program->category, "program") != 0) continue;
        double flops = 0, read = 0, written = 0;
        int calls = 0, known = 0;
        for (int k = 0; k < t->count; k++) {
            const event *e = &t->events[k];
            if (strcmp(e->category, "op") != 0 || e->number != program->number) continue;
            assert_true(e->begin >= program->begin && e->end <= program->end);
            flops += number_of(e, "flops");
            read += number_of(e, "bytes_read");
            written += number_of(e, "bytes_written");
            calls++;
        }
        for (int k = 0; k < trd_engine_program_count(engine); k++) {
            trd_program_info info = trd_engine_program(engine, k);
            if (strcmp(info.name, program->name) != 0) continue;
            assert_int_equal(calls, info.kernels);
            assert_true((uint64_t)read == info.bytes_read && (uint64_t)written == info.bytes_written);
            assert_true(flops == info.flops && flops == number_of(program, "flops"));
            known++;
        }
        assert_int_equal(known, 1);
    }
}

static trd_engine_options profiled(const char *directory, int64_t skip, int64_t steps, int64_t period)
{
    trd_engine_options o = test_adamw();
    o.num_threads = 2;
    o.profiler = (trd_profiler_options){directory, skip, steps, period};
    return o;
}

/* Micro-batches number done .. until - 1, an update after every second one. */
static void run(trd_engine *engine, int done, int until)
{
    test_batch b;
    for (; done < until; done++) {
        OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, (uint64_t)done + 1)));
        if (done % 2) OK(trd_engine_update(engine));
    }
}

static void windows_are_counted_in_micro_steps(void **state)
{
    const char *folder = scratch_path(*state, "windows");
    trd_engine_options o = profiled(folder, 2, 3, 4);
    trd_engine *engine = test_engine(&o);
    run(engine, 0, 2);
    assert_false(trd__is_directory(folder));
    run(engine, 2, 5);
    assert_false(exists(folder, 2)); /* an update may still belong to it */
    run(engine, 5, 12);
    OK(trd_engine_close(engine));
    static const struct {
        int64_t first, micro_steps;
        int firsts, accums, updates;
    } windows[] = {{2, 3, 2, 1, 1}, {6, 3, 2, 1, 1}, {10, 2, 1, 1, 1}};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        trace *t = open_trace(folder, windows[i].first);
        assert_int_equal(t->micro_steps, windows[i].micro_steps);
        assert_int_equal(count(t, "host", "X", "fwd_bwd"), windows[i].micro_steps);
        assert_int_equal(count(t, "host", "X", "update"), windows[i].updates);
        assert_int_equal(count(t, "device", "X", "first"), windows[i].firsts);
        assert_int_equal(count(t, "device", "X", "accum"), windows[i].accums);
        assert_int_equal(count(t, "device", "X", "update"), windows[i].updates);
        assert_int_equal(count(t, "queue", "b", "first"), windows[i].firsts);
        assert_int_equal(count(t, "queue", "e", "first"), windows[i].firsts);
        close_trace(t);
    }
    for (int64_t first = 0; first < 14; first++)
        assert_int_equal(exists(folder, first), first == 2 || first == 6 || first == 10);
}

static void one_window_without_a_period(void **state)
{
    const char *folder = scratch_path(*state, "once");
    trd_engine_options o = profiled(folder, 0, 2, -1);
    trd_engine *engine = test_engine(&o);
    test_batch b;
    OK(trd_engine_train_step(engine, test_batch_fill(&b, 1)));
    OK(trd_engine_train_step(engine, &b.batch));
    OK(trd_engine_eval_begin(engine)); /* the window is complete */
    assert_true(exists(folder, 0));
    OK(trd_engine_eval_step(engine, &b.batch));
    OK(trd_engine_eval_end(engine));
    for (int i = 0; i < 4; i++) OK(trd_engine_train_step(engine, &b.batch));
    OK(trd_engine_close(engine));
    trace *t = open_trace(folder, 0);
    assert_int_equal(count(t, "host", "X", "train_step"), 2);
    assert_int_equal(count(t, "device", "X", "train_step"), 2);
    assert_int_equal(count(t, "device", "X", "eval"), 0);
    close_trace(t);
    for (int64_t first = 1; first < 8; first++) assert_false(exists(folder, first));
}

static void events_nest_and_add_up(void **state)
{
    const char *folder = scratch_path(*state, "nest");
    for (int threads = 1; threads <= 3; threads++) {
        trd_engine_options o = profiled(folder, 1, 6, -1);
        o.num_threads = threads;
        trd_engine *engine = test_engine(&o);
        test_batch b;
        run(engine, 0, 4);
        OK(trd_engine_eval_begin(engine)); /* inside the window */
        OK(trd_engine_eval_step(engine, test_batch_fill(&b, 9)));
        OK(trd_engine_eval_end(engine));
        run(engine, 4, 8);
        trace *t = open_trace(folder, 1);
        assert_int_equal(t->micro_steps, 6);
        assert_int_equal(count(t, "host", "X", "eval_step"), 1);
        assert_true(count(t, "host", "X", "wait for the device") > 0);
        expect_nested(t);
        expect_ops_of_programs(t, engine);
        close_trace(t);
        OK(trd_engine_close(engine));
    }
}

static void the_checkpoint_thread_is_on_its_track(void **state)
{
    const char *folder = scratch_path(*state, "saves");
    trd_engine_options o = profiled(folder, 0, 4, -1);
    o.checkpoint_directory = scratch_path(*state, "run");
    trd_engine *engine = test_engine(&o);
    run(engine, 0, 2);
    OK(trd_engine_save(engine, NULL, true, NULL));
    run(engine, 2, 4);
    OK(trd_engine_close(engine));
    trace *t = open_trace(folder, 0);
    assert_true(count(t, "host", "X", "save") >= 1);
    assert_true(count(t, "checkpoint", "X", "write a checkpoint") >= 1);
    expect_nested(t);
    close_trace(t);
}

static void no_bit_changes(void **state)
{
    trd_engine_options plain = test_adamw();
    plain.num_threads = 2;
    trd_engine_options o = profiled(scratch_path(*state, "bits"), 1, 2, 3);
    trd_engine *expected = test_engine(&plain), *engine = test_engine(&o);
    run(expected, 0, 12);
    run(engine, 0, 12);
    test_expect_same(expected, engine);
    assert_true(test_metric(expected, "loss") == test_metric(engine, "loss"));
    for (int i = 0; i < trd_engine_program_count(engine); i++)
        assert_true(trd_engine_program(engine, i).fingerprint == trd_engine_program(expected, i).fingerprint);
    OK(trd_engine_close(engine));
    OK(trd_engine_close(expected));
}

static trd_loss_output another_loss(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)model;
    (void)user;
    return trd_loss(trd_loss_mean(b, trd_sum_all(b, trd_square(b, in->parameters[0]))));
}

/* A trace tells of programs that are gone. */
static void programs_may_be_dropped(void **state)
{
    const char *folder = scratch_path(*state, "dropped");
    trd_engine_options o = profiled(folder, 0, 4, -1);
    trd_engine *engine = test_engine(&o);
    run(engine, 0, 2);
    OK(trd_engine_with_loss_fn(engine, another_loss, NULL));
    run(engine, 2, 4);
    OK(trd_engine_close(engine));
    trace *t = open_trace(folder, 0);
    assert_int_equal(count(t, "device", "X", "first"), 2);
    assert_true(count(t, "device", "X", "matmul") > 0);
    expect_nested(t);
    close_trace(t);
}

/* What threads had begun before a window, or ended after it, is no part of it. */
static void spans_outside_are_left_out(void **state)
{
    static const trd__label label = {.category = "data", .name = "span"};
    static const uint64_t spans[][2] = {{50, 90}, {90, 110}, {100, 120}, {150, 200}, {199, 201}, {250, 260}};
    const trd__trace_window window = {.first = 7, .count = 1, .begin_ns = 100, .end_ns = 200, .workers = 1};
    trd__recorder *recorder;
    trd__track *track;
    uint64_t dropped;
    OK(trd__recorder_create(&recorder));
    OK(trd__recorder_track(recorder, "data", false, &track));
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        trd__track_add(track, &label, spans[i][0], spans[i][1], (int64_t)i);
    OK(trd__trace_file_write(recorder, &window, *state, &dropped));
    assert_int_equal(dropped, 0);
    trace *t = open_trace(*state, 7);
    assert_int_equal(count(t, "data", "X", "span"), 2);
    expect_nested(t);
    close_trace(t);
    trd__recorder_free(recorder);
}

static void failures_are_told(void **state)
{
    const char *file = scratch_path(*state, "file");
    trd_engine_options o = profiled(file, 0, 1, -1);
    trd_engine *engine = test_engine(&o);
    test_batch b;
    scratch_write(file, "x", 1); /* no folder can be made here */
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 1)));
    assert_int_equal(trd_engine_fwd_bwd(engine, &b.batch), TRD_IO);
    expect_message("writing a profile");
    OK(trd_engine_fwd_bwd(engine, &b.batch)); /* told once; training goes on */
    OK(trd_engine_close(engine));
    assert_int_equal(trd__engine_create_with_model(&o, test_llama(), &engine),
                     TRD_IO); /* it is there already */
    expect_message("expected a folder there or nothing, found a file");
    o = profiled(file, 0, 4, 3);
    assert_int_equal(trd__engine_create_with_model(&o, test_llama(), &engine), TRD_INVALID_ARGUMENT);
    expect_message("profile_periodically_period");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(windows_are_counted_in_micro_steps),
                                       cmocka_unit_test(one_window_without_a_period),
                                       cmocka_unit_test(events_nest_and_add_up),
                                       cmocka_unit_test(no_bit_changes),
                                       cmocka_unit_test(programs_may_be_dropped),
                                       cmocka_unit_test(spans_outside_are_left_out),
                                       cmocka_unit_test(the_checkpoint_thread_is_on_its_track),
                                       cmocka_unit_test(failures_are_told)};
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
