/* Out of memory anywhere: opening a loader, drawing batches and writing metrics fail with TRD_NO_MEMORY at
 * every single allocation, leak nothing, and work when the memory is there. */
#include "fixture.h"

#include <errno.h>

#include <treadle/report.h>

#ifdef TRD_SANITIZED
int main(void)
{
    return 0; /* the sanitizer owns the allocator */
}
#else
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t bytes);
void __libc_free(void *block);

static struct {
    bool armed;
    long until_failure; /* allocations that still succeed */
    long live;
} heap;

static bool fails(void)
{
    if (!heap.armed || heap.until_failure-- > 0) return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *block)
{
    if (heap.armed && block) heap.live++;
    return block;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : counted(__libc_calloc(count, size));
}

void *realloc(void *block, size_t bytes)
{
    if (fails()) return NULL;
    return block ? __libc_realloc(block, bytes) : counted(__libc_malloc(bytes));
}

void free(void *block)
{
    if (heap.armed && block) heap.live--;
    __libc_free(block);
}

static trd_status draw(const trd_data_options *options)
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

static trd_status report(const trd_data_options *options)
{
    (void)options;
    char path[128], page[128];
    trd_metric_sink sink;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    snprintf(page, sizeof page, "%s/report.html", folder);
    trd_status status = report_with(trd_report_jsonl(path, &sink), &sink);
    if (!status) status = report_with(trd_report_html(page, path, &sink), &sink);
    return status;
}

/* Fails allocation 0, 1, 2, ... of work until it gets through. */
static void fail_each(trd_status (*work)(const trd_data_options *), const trd_data_options *options)
{
    trd_status status = TRD_NO_MEMORY;
    long n = 0;
    for (; status != TRD_OK; n++) {
        heap.until_failure = n;
        heap.live = 0;
        heap.armed = true;
        status = work(options);
        heap.armed = false;
        if (status != TRD_OK && status != TRD_NO_MEMORY)
            fail_msg("allocation %ld: %s: %s", n, trd_status_text(status), trd_error_message());
        if (heap.live != 0) fail_msg("allocation %ld: %ld blocks are left", n, heap.live);
    }
    assert_true(n > 10);
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
    fail_each(draw, &options);
    free(path);
}

static void sinks(void **state)
{
    (void)state;
    free(file_of("metrics.jsonl", "{\"step\": 1, \"mode\": \"train\", \"loss\": 3}\n"));
    fail_each(report, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loader), cmocka_unit_test(sinks)};
    return cmocka_run_group_tests_name("data/no_memory", tests, set_up, tear_down);
}
#endif
