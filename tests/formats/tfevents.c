/* TensorBoard event files: the bytes of a record against a fixed example, framing of many records, and that
 * older files are never touched. That TensorBoard itself reads them was checked with its Python package
 * (docs/dependencies.md). */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "formats/tfevents.h"
#include "support/scratch.h"

/* Newest event file of a folder by name. */
static int event_files(const char *folder, char *last, size_t bytes)
{
    int count = 0;
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    *last = '\0';
    for (struct dirent *entry; (entry = readdir(directory));)
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            count++;
            if (strcmp(entry->d_name, last) > 0) snprintf(last, bytes, "%s", entry->d_name);
        }
    closedir(directory);
    return count;
}

static uint64_t number(const unsigned char *data, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)data[i] << 8 * i;
    return value;
}

static void records(void **state)
{
    char name[300];
    size_t bytes;
    trd__tfevents *events;
    const char *folder = scratch_path(*state, "events");
    assert_int_equal(trd__make_directories(folder), TRD_OK);
    assert_int_equal(trd__tfevents_open(folder, &events), TRD_OK);
    for (int step = 0; step < 3000; step++)
        assert_int_equal(trd__tfevents_scalar(events, "train/loss", step, step == 0 ? 0 : 1.5), TRD_OK);
    assert_int_equal(trd__tfevents_close(events), TRD_OK);
    assert_int_equal(event_files(folder, name, sizeof name), 1);
    unsigned char *data = scratch_read(scratch_path(folder, name), &bytes);
    /* The length 24 of the first message and its masked CRC-32C, as TensorFlow writes them in every event
     * file. */
    static const unsigned char head[12] = {24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22};
    assert_memory_equal(data, head, 12);
    assert_memory_equal(data + 12 + 9,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15);
    size_t at = 0, count = 0;
    while (at < bytes) {
        size_t length = (size_t)number(data + at, 8);
        const unsigned char *message = data + at + 12;
        if (count > 0) { /* wall time, step, summary { value { tag, simple_value } } */
            assert_int_equal(message[0], 9);
            float value = count == 1 ? 0.0f : 1.5f;
            assert_memory_equal(message + length - 4, &value, 4);
            assert_int_equal(message[length - 5], 0x15);
            assert_memory_equal(message + length - 15, "train/loss", 10);
        }
        at += length + 16;
        count++;
    }
    assert_int_equal(at, bytes);
    assert_int_equal(count, 3001);
    free(data);

    assert_int_equal(trd__tfevents_open(folder, &events), TRD_OK);
    assert_int_equal(trd__tfevents_close(events), TRD_OK);
    assert_int_equal(event_files(folder, name, sizeof name), 2);
}

static void failures(void **state)
{
    trd__tfevents *events;
    static char tag[70000];
    assert_int_equal(trd__tfevents_open(scratch_path(*state, "none"), &events), TRD_NOT_FOUND);
    assert_null(events);
    memset(tag, 'x', sizeof tag - 1);
    assert_int_equal(trd__tfevents_open(*state, &events), TRD_OK);
    assert_int_equal(trd__tfevents_scalar(events, tag, 1, 1), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd__tfevents_close(events), TRD_OK);
    assert_int_equal(trd__tfevents_close(NULL), TRD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(records), cmocka_unit_test(failures)};
    return cmocka_run_group_tests_name("formats/tfevents", tests, scratch_create, scratch_remove);
}
