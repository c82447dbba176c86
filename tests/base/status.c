/* Status codes, the thread's message, log lines, "did you mean", and checksums. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/status.h"

static void messages(void **state)
{
    (void)state;
    assert_int_equal(trd__fail(TRD_IO, "reading %s: %d", "x", 5), TRD_IO);
    assert_string_equal(trd_error_message(), "reading x: 5");
    assert_int_equal(trd__fail_in(TRD_SHAPE, "layer %d", 3), TRD_SHAPE);
    assert_string_equal(trd_error_message(), "layer 3: reading x: 5");
    trd__fail(TRD_IO, "again: %s", trd_error_message()); /* the old message as an argument */
    assert_string_equal(trd_error_message(), "again: layer 3: reading x: 5");
    trd__set_error_message("carried");
    assert_string_equal(trd_error_message(), "carried");
}

static void long_messages_are_cut(void **state)
{
    (void)state;
    char text[5000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    trd__fail(TRD_IO, "%s", text);
    size_t longest = strlen(trd_error_message());
    assert_in_range(longest, 2000, 2048);
    trd__fail_in(TRD_IO, "outer");
    assert_int_equal(strncmp(trd_error_message(), "outer: aaaa", 11), 0);
    assert_true(strlen(trd_error_message()) <= longest);
    trd__fail(TRD_IO, "inner");
    trd__fail_in(TRD_IO, "%s", text);
    assert_true(strlen(trd_error_message()) <= longest);
}

static void *other_thread(void *context)
{
    (void)context;
    assert_string_equal(trd_error_message(), "");
    trd__fail(TRD_IO, "of the other thread");
    return NULL;
}

static void one_message_a_thread(void **state)
{
    (void)state;
    pthread_t thread;
    trd__fail(TRD_IO, "mine");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(trd_error_message(), "mine");
}

static void texts_of_codes(void **state)
{
    (void)state;
    assert_string_equal(trd_status_text(TRD_OK), "ok");
    for (int s = TRD_OK; s <= TRD_INTERNAL; s++) assert_true(strlen(trd_status_text((trd_status)s)) > 1);
    assert_string_equal(trd_status_text((trd_status)999), "unknown status");
}

static void nearest(void **state)
{
    (void)state;
    static const char *const known[] = {"steps", "learning_rate", "lr_schedule_type", "run_name", "dtype"};
    const struct {
        const char *typed, *meant;
    } cases[] = {{"stpes", "steps"},
                 {"step", "steps"},
                 {"learnig_rate", "learning_rate"},
                 {"learning-rate", "learning_rate"},
                 {"lr_schedule", "lr_schedule_type"}, /* a part of the name */
                 {"dtyp", "dtype"},
                 {"type", "dtype"},
                 {"wholly_different", NULL},
                 {"x", NULL},
                 {"", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = trd__nearest(cases[i].typed, known, 5);
        if (!cases[i].meant && found) fail_msg("\"%s\": found \"%s\"", cases[i].typed, found);
        if (cases[i].meant) assert_string_equal(found ? found : "none", cases[i].meant);
    }
    assert_null(trd__nearest("steps", known, 0));
    char longest[300];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(trd__nearest(longest, known, 5));
}

static void keep_line(void *user, trd_log_level level, const char *line)
{
    snprintf(user, 64, "%d %s", (int)level, line);
}

static void log_lines(void **state)
{
    (void)state;
    char line[64] = "";
    const trd_log_sink sink = {.write = keep_line, .user = line}, empty = {0};
    trd__log(&sink, TRD_LOG_WARNING, "%s %d", "step", 3);
    assert_string_equal(line, "1 step 3");
    trd__log(&empty, TRD_LOG_ERROR, "nobody listens");
    trd__log(NULL, TRD_LOG_ERROR, "nobody listens");
}

static void checksums(void **state)
{
    (void)state;
    assert_true(trd__checksum("abc", 3) == trd__checksum("abc", 3));
    assert_true(trd__checksum("abc", 3) != trd__checksum("abd", 3));
    assert_true(trd__checksum("abc", 3) != trd__checksum("abc", 2));
    uint64_t ab = trd__checksum_more(trd__checksum_more(0, "a", 1), "b", 1);
    uint64_t ba = trd__checksum_more(trd__checksum_more(0, "b", 1), "a", 1);
    assert_true(ab != ba);
    uint64_t now = trd__now_ns();
    assert_true(trd__now_ns() >= now);
    assert_true(trd__wall_seconds() > 1.7e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(one_message_a_thread),
        cmocka_unit_test(texts_of_codes),
        cmocka_unit_test(nearest),
        cmocka_unit_test(log_lines),
        cmocka_unit_test(checksums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
