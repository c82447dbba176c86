/* The metric sinks: what they leave in files and on streams, and what a resumed run keeps. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <treadle/report.h>

#include "base/file.h"
#include "support/scratch.h"

static char *content_of(const char *path)
{
    static char text[1 << 18];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void begin_at(trd_metric_sink *sink, int64_t resumed_step)
{
    static const trd_run_setting settings[] = {{"model_name", "smollm2-135m"}, {"note", "<b>\"&'"}};
    trd_run_info info = {.run_name = "run <1>",
                         .resumed_step = resumed_step,
                         .total_steps = 4,
                         .setting_count = 2,
                         .settings = settings};
    assert_int_equal(sink->begin(sink->user, &info), TRD_OK);
}

static void write_step(trd_metric_sink *sink, trd_metric_mode mode, int64_t step, double loss)
{
    trd_metric metrics[] = {{"loss", loss}, {"learning_rate", 3e-4}, {"tokens_per_second", 1000}};
    assert_int_equal(sink->write(sink->user, mode, step, metrics, mode == TRD_METRIC_TRAIN ? 3 : 1), TRD_OK);
}

static void close_sink(trd_metric_sink *sink)
{
    assert_int_equal(sink->close(sink->user), TRD_OK);
}

static void jsonl_lines(void **state)
{
    trd_metric_sink sink;
    assert_int_equal(trd_report_jsonl(scratch_path(*state, "metrics.jsonl"), &sink), TRD_OK);
    assert_false(trd__file_exists(scratch_path(*state, "metrics.jsonl")));
    begin_at(&sink, -1);
    write_step(&sink, TRD_METRIC_TRAIN, 1, 2.5);
    write_step(&sink, TRD_METRIC_EVAL, 1, NAN);
    assert_int_equal(sink.flush(sink.user), TRD_OK);
    assert_string_equal(
        content_of(scratch_path(*state, "metrics.jsonl")),
        "{\"step\": 1, \"mode\": \"train\", \"loss\": 2.5, \"learning_rate\": 0.0003, "
        "\"tokens_per_second\": 1000.0}\n{\"step\": 1, \"mode\": \"eval\", \"loss\": null}\n");
    close_sink(&sink);
}

static void jsonl_resume(void **state)
{
    const char *path = scratch_path(*state, "resume.jsonl");
    trd_metric_sink sink;
    assert_int_equal(trd_report_jsonl(path, &sink), TRD_OK);
    begin_at(&sink, -1);
    for (int step = 1; step <= 5; step++) write_step(&sink, TRD_METRIC_TRAIN, step, step);
    write_step(&sink, TRD_METRIC_EVAL, 5, 1);
    close_sink(&sink);
    FILE *file = fopen(path, "ab"); /* what a kill in the middle of a write leaves */
    fputs("{\"step\": 2, \"mo", file);
    fclose(file);

    assert_int_equal(trd_report_jsonl(path, &sink), TRD_OK);
    begin_at(&sink, 3);
    write_step(&sink, TRD_METRIC_TRAIN, 4, 40);
    close_sink(&sink);
    const char *text = content_of(path);
    assert_non_null(strstr(text, "{\"step\": 3, \"mode\": \"train\", \"loss\": 3.0,"));
    assert_non_null(strstr(text, "{\"step\": 4, \"mode\": \"train\", \"loss\": 40.0,"));
    assert_null(strstr(text, "\"loss\": 4.0,"));
    assert_null(strstr(text, "\"step\": 5"));
    assert_null(strstr(text, "\"mo{"));
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    assert_int_equal(lines, 4);

    begin_at((assert_int_equal(trd_report_jsonl(path, &sink), TRD_OK), &sink),
             -1); /* a fresh run starts over */
    close_sink(&sink);
    assert_string_equal(content_of(path), "");
}

static void jsonl_errors(void **state)
{
    trd_metric_sink sink;
    trd_run_info info = {.resumed_step = -1};
    assert_int_equal(trd_report_jsonl(scratch_path(*state, "absent/metrics.jsonl"), &sink), TRD_OK);
    trd_metric metric = {"loss", 1};
    assert_int_equal(sink.write(sink.user, TRD_METRIC_TRAIN, 1, &metric, 1), TRD_STATE);
    assert_int_equal(sink.begin(sink.user, &info), TRD_IO);
    assert_non_null(strstr(trd_error_message(), "absent/metrics.jsonl"));
    close_sink(&sink);
}

static char *progress_text(bool terminal, int64_t period)
{
    static char text[1 << 14];
    FILE *stream = fmemopen(text, sizeof text, "w");
    assert_non_null(stream);
    trd_progress_options options = {.output = stream, .terminal = terminal, .log_period = period};
    trd_metric_sink sink;
    assert_int_equal(trd_report_progress(&options, &sink), TRD_OK);
    begin_at(&sink, -1);
    for (int step = 1; step <= 4; step++) {
        write_step(&sink, TRD_METRIC_TRAIN, step, 2.0 + step);
        if (step == 2) write_step(&sink, TRD_METRIC_EVAL, step, 9.5);
    }
    close_sink(&sink);
    fclose(stream);
    return text;
}

/* Found out before anything is trained. */
static void another_kind_is_in_the_way(void **state)
{
    trd_metric_sink sink;
    const char *folder = scratch_path(*state, "metrics"), *file = scratch_path(*state, "file");
    assert_int_equal(trd__make_directories(folder), TRD_OK);
    scratch_write(file, "x", 1);
    assert_int_equal(trd_report_jsonl(folder, &sink), TRD_IO);
    expect_message("metrics: expected a file there or nothing, found a folder");
    assert_int_equal(trd_report_html(folder, NULL, &sink), TRD_IO);
    assert_int_equal(trd_report_tensorboard(file, &sink), TRD_IO);
    expect_message("file: expected a folder there or nothing, found a file");
}

static void progress_plain(void **state)
{
    (void)state;
    const char *text = progress_text(false, 3);
    assert_non_null(strstr(text, "step 1/4  loss 3.0000  learning_rate 0.0003  tokens_per_second 1000\n"));
    assert_null(strstr(text, "step 2/4"));
    assert_non_null(strstr(text, "step 3/4  loss 5.0000"));
    assert_non_null(strstr(text, "step 4/4  loss 6.0000"));
    assert_non_null(strstr(text, "eval at step 2  loss 9.5000\n"));
    assert_non_null(strstr(text, "  ETA 0:00\n"));
    assert_null(strchr(text, '\x1b'));
    assert_null(strchr(text, '\r'));
}

static void progress_bar(void **state)
{
    (void)state;
    const char *text = progress_text(true, 1);
    assert_non_null(strstr(text, "\r\x1b[Keval at step 2  loss 9.5000\n"));
    assert_non_null(strstr(text, "[==============================] step 4/4  loss 6.0000  1000 tokens/s"));
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (const char *line = text; line && *line;
         line = strchr(line, '\r')) { /* no redraw wraps on 80 columns */
        size_t width = strcspn(line + (*line == '\r'), "\r\n");
        assert_in_range(width, 0, 79 + 3);
        if (*line == '\r') line++;
    }
}

static void progress_without_total(void **state)
{
    (void)state;
    static char text[4096];
    FILE *stream = fmemopen(text, sizeof text, "w");
    trd_progress_options options = {.output = stream, .terminal = true, .columns = 40};
    trd_metric_sink sink;
    assert_int_equal(trd_report_progress(&options, &sink), TRD_OK);
    trd_run_info info = {.resumed_step = -1, .metrics_prefix = "sft/"};
    assert_int_equal(sink.begin(sink.user, &info), TRD_OK);
    trd_metric metrics[] = {{"loss", 9}, {"sft/loss", 1.5}};
    assert_int_equal(sink.write(sink.user, TRD_METRIC_TRAIN, 7, metrics, 2), TRD_OK);
    close_sink(&sink);
    fclose(stream);
    assert_string_equal(text, "step 7  loss 1.5000\n");
    options.output = NULL;
    assert_int_equal(trd_report_progress(&options, &sink), TRD_INVALID_ARGUMENT);
}

static void html_page(void **state)
{
    char metrics[128], page[128];
    snprintf(metrics, sizeof metrics, "%s", scratch_path(*state, "html.jsonl"));
    snprintf(page, sizeof page, "%s", scratch_path(*state, "report.html"));
    FILE *file = fopen(metrics, "wb");
    fputs(
        "{\"step\": 1, \"mode\": \"train\", \"loss\": 8}\n{\"step\": 9, \"mode\": \"train\", \"loss\": 1}\n",
        file);
    fclose(file);
    trd_metric_sink sink;
    assert_int_equal(trd_report_html(page, metrics, &sink), TRD_OK);
    begin_at(&sink, 1);
    write_step(&sink, TRD_METRIC_TRAIN, 2, 7);
    write_step(&sink, TRD_METRIC_EVAL, 2, 7.5);
    close_sink(&sink);
    const char *text = content_of(page);
    assert_memory_equal(text, "<!doctype html>", 15);
    assert_non_null(strstr(text, "<h1>run &lt;1&gt;</h1>"));
    assert_non_null(strstr(text, "<td>note<td>&lt;b&gt;&quot;&amp;&#39;"));
    assert_non_null(
        strstr(text, "<polyline class=\"train\" points=\"64.0,")); /* steps 1 (from the file) and 2 */
    assert_non_null(strstr(text, ">Learning rate<"));
    assert_null(strstr(text, ">Gradient norm<")); /* nothing to draw */
    assert_non_null(strstr(text, "<h2>Newest evaluation: 2</h2>"));
    assert_null(strstr(text, "http")); /* no external resources */
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
}

static void html_of_nothing(void **state)
{
    trd_metric_sink sink;
    char page[128];
    snprintf(page, sizeof page, "%s", scratch_path(*state, "empty.html"));
    assert_int_equal(trd_report_html(page, NULL, &sink), TRD_OK);
    trd_run_info info = {.resumed_step = -1};
    assert_int_equal(sink.begin(sink.user, &info), TRD_OK);
    write_step(&sink, TRD_METRIC_TRAIN, 1, INFINITY);
    close_sink(&sink);
    assert_non_null(strstr(content_of(page), "</html>"));
    assert_null(strstr(content_of(page), "<title>Loss"));
}

/* A run that fails before its first step leaves the page of the run before. */
static void html_without_a_begin(void **state)
{
    char page[128];
    snprintf(page, sizeof page, "%s", scratch_path(*state, "kept.html"));
    trd_metric_sink sink;
    assert_int_equal(trd_report_html(page, NULL, &sink), TRD_OK);
    close_sink(&sink);
    assert_false(trd__file_exists(page));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jsonl_lines),
        cmocka_unit_test(jsonl_resume),
        cmocka_unit_test(jsonl_errors),

        cmocka_unit_test(another_kind_is_in_the_way),
        cmocka_unit_test(progress_plain),
        cmocka_unit_test(progress_bar),
        cmocka_unit_test(progress_without_total),
        cmocka_unit_test(html_page),
        cmocka_unit_test(html_of_nothing),
        cmocka_unit_test(html_without_a_begin),
    };
    return cmocka_run_group_tests_name("report/sinks", tests, scratch_create, scratch_remove);
}
