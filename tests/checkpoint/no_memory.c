/* Out of memory anywhere: opening weights and checkpoints, saving and exporting fail cleanly at every single
 * allocation, leave no block behind and harm no older checkpoint, and work when the memory is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/checkpoint.h>

#include "base/file.h"
#include "checkpoint/hub_export.h"
#include "checkpoint/store.h"
#include "checkpoint/weights.h"
#include "formats/tfevents.h"
#include "support/failing_heap.h"
#include "support/scratch.h"

static const char *folder;
static const float values[64];
static const trd_array arrays[] = {{"a", TRD_F32, {1, {64}}, values}, {"b", TRD_F32, {2, {4, 8}}, values}};

static trd_status open_gguf(void *unused)
{
    (void)unused;
    trd__weights *w;
    trd_status status = trd__weights_open("checkpoint/data/llama.gguf", &w);
    if (!status) trd__weights_close(w);
    return status;
}

static trd_status export_and_open(void *unused)
{
    (void)unused;
    trd__hub_export_options options = {"{\"model_type\": \"llama\", \"rope_theta\": 1e4}", TRD_BF16, 128,
                                       NULL};
    trd_contents *contents;
    const char *hub = scratch_path(folder, "hub");
    TRD_TRY(trd__hub_export(hub, arrays, 2, &options));
    TRD_TRY(trd_contents_open(hub, &contents));
    trd_contents_close(contents);
    return TRD_OK;
}

static trd_status save_and_open(void *unused)
{
    (void)unused;
    trd__store *store;
    trd__stored *stored;
    TRD_TRY(trd__store_open(scratch_path(folder, "store"), NULL, &store));
    trd_status status = trd__store_save(store, (trd__store_name){2, 0}, arrays, 2, "{}", 2, NULL);
    if (!status) status = trd__store_prune(store, 2, 0);
    if (!status) status = trd__store_read_newest(store, &stored);
    if (!status) trd__stored_close(stored);
    trd__store_close(store);
    return status;
}

static trd_status write_events(void *unused)
{
    (void)unused;
    trd__tfevents *events;
    TRD_TRY(trd__tfevents_open(folder, &events));
    trd_status status = trd__tfevents_scalar(events, "train/loss", 1, 2);
    trd_status closed = trd__tfevents_close(events);
    return status ? status : closed;
}

static void weights(void **state)
{
    folder = *state;
    assert_true(heap_fail_each("open GGUF", open_gguf, NULL, true, 1, NULL) >= 3);
}

static void hub(void **state)
{
    folder = *state;
    assert_true(heap_fail_each("export", export_and_open, NULL, true, 1, NULL) >= 3);
}

static void older_is_intact(trd_status status)
{
    (void)status;
    trd__stored *stored;
    if (trd__stored_open(scratch_path(folder, "store/step-1"), &stored)) fail_msg("%s", trd_error_message());
    trd__stored_close(stored);
}

static void store(void **state)
{
    trd__store *s;
    folder = *state;
    assert_int_equal(trd__store_open(scratch_path(folder, "store"), NULL, &s), TRD_OK);
    assert_int_equal(trd__store_save(s, (trd__store_name){1, 0}, arrays, 2, "{}", 2, NULL), TRD_OK);
    trd__store_close(s);
    assert_true(heap_fail_each("save", save_and_open, NULL, true, 1, older_is_intact) >= 3);
    assert_true(heap_fail_each("save again", save_and_open, NULL, true, 1, older_is_intact) >= 3);
}

static void events(void **state)
{
    folder = *state;
    assert_true(heap_fail_each("events", write_events, NULL, true, 1, NULL) >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights), cmocka_unit_test(hub),
                                       cmocka_unit_test(store), cmocka_unit_test(events)};
    return cmocka_run_group_tests_name("checkpoint/no_memory", tests, scratch_create, scratch_remove);
}
