/* Tracks as Chrome trace events: one process, a thread for each track, complete events ("X") where spans nest
 * and pairs of async events ("b", "e") where they may overlap. Times are microseconds since the window began.
 * https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU */
#include "engine/trace_file.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/file.h"
#include "formats/json.h"

enum { PROCESS = 1 };

static double microseconds(uint64_t ns)
{
    return (double)ns / 1e3;
}

static void open_event(trd__json_writer *w, const char *phase, const char *name, int thread)
{
    trd__json_open_object(w);
    trd__json_put_string(w, "ph", phase);
    trd__json_put_string(w, "name", name);
    trd__json_put_i64(w, "pid", PROCESS);
    trd__json_put_i64(w, "tid", thread);
}

static void write_metadata(trd__json_writer *w, const char *kind, int thread, const char *name, int order)
{
    open_event(w, "M", kind, thread);
    trd__json_write_key(w, "args");
    trd__json_open_object(w);
    if (name)
        trd__json_put_string(w, "name", name);
    else
        trd__json_put_i64(w, "sort_index", order);
    trd__json_close(w);
    trd__json_close(w);
}

static void put_fingerprint(trd__json_writer *w, uint64_t fingerprint)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, fingerprint);
    trd__json_put_string(w, "fingerprint", text);
}

static void write_arguments(trd__json_writer *w, const trd__span *span)
{
    const trd__label *label = span->label;
    trd__json_write_key(w, "args");
    trd__json_open_object(w);
    trd__json_put_i64(w, "number", span->number);
    if (label->kernel) trd__json_put_string(w, "kernel", label->kernel);
    if (label->where) trd__json_put_string(w, "where", label->where);
    if (label->flops > 0) trd__json_put_f64(w, "flops", label->flops);
    if (label->bytes_read) trd__json_put_i64(w, "bytes_read", (int64_t)label->bytes_read);
    if (label->bytes_written) trd__json_put_i64(w, "bytes_written", (int64_t)label->bytes_written);
    if (label->fingerprint) put_fingerprint(w, label->fingerprint);
    trd__json_close(w);
}

static void write_complete(trd__json_writer *w, const trd__span *span, uint64_t since, int thread)
{
    open_event(w, "X", span->label->name, thread);
    trd__json_put_string(w, "cat", span->label->category);
    trd__json_put_f64(w, "ts", microseconds(span->begin_ns - since));
    trd__json_put_f64(w, "dur", microseconds(span->end_ns - span->begin_ns));
    write_arguments(w, span);
    trd__json_close(w);
}

static void write_pair(trd__json_writer *w, const trd__span *span, uint64_t since, int thread)
{
    const uint64_t times[] = {span->begin_ns, span->end_ns};
    static const char *const phases[] = {"b", "e"};
    for (int i = 0; i < 2; i++) {
        open_event(w, phases[i], span->label->name, thread);
        trd__json_put_string(w, "cat", "queue");
        trd__json_put_i64(w, "id", span->number);
        trd__json_put_f64(w, "ts", microseconds(times[i] - since));
        trd__json_close(w);
    }
}

static void write_track(trd__json_writer *w, trd__track *track, int thread, const trd__trace_window *window)
{
    trd__span span;
    write_metadata(w, "thread_name", thread, track->name, 0);
    write_metadata(w, "thread_sort_index", thread, NULL, thread);
    while (trd__track_take(track, &span)) {
        if (span.begin_ns < window->begin_ns || span.end_ns > window->end_ns) continue;
        if (track->overlapping)
            write_pair(w, &span, window->begin_ns, thread);
        else
            write_complete(w, &span, window->begin_ns, thread);
    }
}

static uint64_t write_window(trd__json_writer *w, trd__recorder *recorder, const trd__trace_window *window)
{
    uint64_t dropped = 0;
    int thread = 0;
    trd__json_open_object(w);
    trd__json_put_string(w, "displayTimeUnit", "ms");
    trd__json_write_key(w, "traceEvents");
    trd__json_open_array(w);
    write_metadata(w, "process_name", 0, "treadle", 0);
    for (trd__track *t = recorder->tracks; t; t = t->next) {
        write_track(w, t, ++thread, window);
        dropped += trd__track_take_dropped(t);
    }
    trd__json_close(w);
    trd__json_write_key(w, "otherData");
    trd__json_open_object(w);
    trd__json_put_string(w, "program", "treadle");
    trd__json_put_i64(w, "first_micro_step", window->first);
    trd__json_put_i64(w, "micro_steps", window->count);
    trd__json_put_f64(w, "duration_us", microseconds(window->end_ns - window->begin_ns));
    trd__json_put_i64(w, "workers", window->workers);
    trd__json_put_i64(w, "dropped_spans", (int64_t)dropped);
    trd__json_close(w);
    trd__json_close(w);
    return dropped;
}

trd_status trd__trace_file_write(trd__recorder *recorder, const trd__trace_window *window,
                                 const char *directory, uint64_t *dropped)
{
    char name[48];
    snprintf(name, sizeof name, "trace-%08" PRId64 ".json", window->first);
    trd__json_writer w = {0};
    *dropped = write_window(&w, recorder, window);
    trd_status status = trd__json_finish(&w);
    char *path = trd__path_join(directory, name);
    if (status == TRD_OK && !path) status = TRD_NO_MEMORY;
    if (status == TRD_OK) status = trd__make_directories(directory);
    if (status == TRD_OK) status = trd__file_save(path, w.text, w.bytes);
    trd__free(path);
    trd__json_writer_free(&w);
    return status;
}
