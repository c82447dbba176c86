/* Out of memory anywhere: opening a loader, drawing batches and writing metrics fail with TRD_NO_MEMORY at
 * every single allocation, leak nothing, and work when the memory is there. */
#include "fixture.h"

#include <treadle/report.h>

#include "support/failing_heap.h"

static trd_status draw(void *options)
{
    trd_loader *loader;
    trd_batch batch;
    trd_status status = trd_loader_open(options, &loader);
    while (!status) status = trd_loader_next(loader, &batch);
    trd_loader_close(loader);
    return status == TRD_END ? TRD_OK : status;
}

static trd_status report_with(trd_status made, trd_metric_sink *sink)
{
    static const trd_run_setting setting = {"model_name", "smollm2-135m"};
    static const trd_metric metric = {"loss", 2.5};
    if (made) return made;
    trd_run_info info = {.run_name = "run", .resumed_step = 1, .setting_count = 1, .settings = &setting};
    trd_status status = sink->begin(sink->user, &info);
    if (!status) status = sink->write(sink->user, TRD_METRIC_TRAIN, 2, &metric, 1);
    trd_status closed = sink->close(sink->user);
    return status ? status : closed;
}

static trd_status report(void *unused)
{
    (void)unused;
    char path[128], page[128];
    trd_metric_sink sink;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    snprintf(page, sizeof page, "%s/report.html", folder);
    trd_status status = report_with(trd_report_jsonl(path, &sink), &sink);
    if (!status) status = report_with(trd_report_html(page, path, &sink), &sink);
    return status;
}

static void loader(void **state)
{
    (void)state;
    char *path = file_of("samples.jsonl", "{\"text\": \"abc\"}\n"
                                          "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                                          "{\"role\": \"assistant\", \"content\": \"b\"}]}\n");
    trd_data_options options = options_of((const char *const *)&path);
    options.length = 128;
    options.packing = options.shuffle = true;
    assert_int_equal(draw(&options), TRD_OK);
    assert_true(heap_fail_each("loader", draw, &options, true, 1, NULL) >= 10);
    free(path);
}

static void sinks(void **state)
{
    (void)state;
    free(file_of("metrics.jsonl", "{\"step\": 1, \"mode\": \"train\", \"loss\": 3}\n"));
    assert_true(heap_fail_each("sinks", report, NULL, true, 1, NULL) >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loader), cmocka_unit_test(sinks)};
    return cmocka_run_group_tests_name("data/no_memory", tests, set_up, tear_down);
}
