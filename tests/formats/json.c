/* JSON: strictness, getters and their messages, the writer's round trip. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "formats/json.h"
#include "support/scratch.h"

static trd_status parse(const char *text, trd__json_doc **doc)
{
    return trd__json_parse(text, strlen(text), "t.json", doc);
}

static void refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "empty text"},
        {"{\"a\": NaN}", "NaN"},
        {"{\"a\": -Infinity}", "Infinity"},
        {"{\"a\": 1e999}", "a: expected a number that a double holds"},
        {"{\"a\": 01}", "malformed number"},
        {"{\"a\": 1.}", "malformed number"},
        {"[1,\n 2,\n tru]", "line 3, column 2"},
        {"{\"a\": 1, \"b\": {\"c\": 1, \"c\": 2}}", "b.c: expected each key once"},
        {"{\"a\": \"x", "without closing quote"},
        {"[1, 2", "truncated"},
        {"[1,\v2]", "neither JSON nor inside a string"},
        {"{} x", "more text after the value"},
        {"\"\x80\"", "not UTF-8"},
        {"\"\xed\xa0\x80\"", "not UTF-8"},
        {"\"\xc0\xaf\"", "not UTF-8"},
        {"\"a\tb\"", "control character"},
        {"\"a\\u0000b\"", "\\u0000"},
        {"\"\\ud800\"", "malformed"},
        {"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"},
        {"\n<!DOCTYPE html>", "HTML page"},
        {"[1111111111111111111111111111111111111111111111111111111111111111111111]", "63 characters"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trd__json_doc *doc;
        if (parse(cases[i].text, &doc) != TRD_CORRUPT) fail_msg("accepted: %s", cases[i].text);
        assert_null(doc);
        expect_message(cases[i].message);
    }
}

static void depth(void **state)
{
    (void)state;
    char text[2000];
    trd__json_doc *doc;
    memset(text, '[', 512);
    memset(text + 512, ']', 512);
    assert_int_equal(trd__json_parse(text, 1024, "deep", &doc), TRD_OK);
    trd__json_free(doc);
    memset(text, '[', 513);
    memset(text + 513, ']', 513);
    assert_int_equal(trd__json_parse(text, 1026, "deep", &doc), TRD_CORRUPT);
    expect_message("512 levels");
}

static void repeated_key_of_large_object(void **state)
{
    (void)state;
    static char text[400000];
    size_t used = 1;
    text[0] = '{';
    for (int i = 0; i < 20000; i++) used += (size_t)sprintf(text + used, "\"k%d\": %d,", i, i);
    trd__json_doc *doc;
    sprintf(text + used, "\"x\": 1}");
    assert_int_equal(parse(text, &doc), TRD_OK);
    assert_int_equal(trd__json_count(trd__json_root(doc)), 20001);
    trd__json_free(doc);
    sprintf(text + used, "\"k777\": 1}");
    assert_int_equal(parse(text, &doc), TRD_CORRUPT);
    expect_message("k777: expected each key once");
}

static void getters(void **state)
{
    (void)state;
    trd__json_doc *doc;
    assert_int_equal(
        parse("{\"s\": \"\\u00e9\\ud83d\\ude00\", \"n\": 9007199254740992, \"f\": 0.1, \"b\": true, "
              "\"z\": null, \"a\": [1, {\"q\": \"x\"}], \"big\": 1e300}",
              &doc),
        TRD_OK);
    trd__json root = trd__json_root(doc), array, element;
    const char *text = "kept";
    int64_t number = 5;
    double real;
    bool flag = false;
    assert_int_equal(trd__json_get_string(root, "s", &text), TRD_OK);
    assert_string_equal(text, "\xc3\xa9\xf0\x9f\x98\x80");
    assert_int_equal(trd__json_get_i64(root, "n", &number), TRD_OK);
    assert_true(number == INT64_C(9007199254740992));
    assert_int_equal(trd__json_get_f64(root, "f", &real), TRD_OK);
    assert_true(real == 0.1);
    assert_int_equal(trd__json_get_bool(root, "b", &flag), TRD_OK);
    assert_true(flag);
    assert_int_equal(trd__json_opt_i64(root, "z", &number), TRD_OK);
    assert_int_equal(trd__json_opt_i64(root, "missing", &number), TRD_OK);
    assert_true(number == INT64_C(9007199254740992));
    assert_int_equal(trd__json_opt_i64(root, "s", &number), TRD_CORRUPT);
    expect_message("t.json: s: expected a number, found a string");
    assert_int_equal(trd__json_get_i64(root, "f", &number), TRD_CORRUPT);
    expect_message("f: expected a whole number");
    assert_int_equal(trd__json_get_i64(root, "big", &number), TRD_CORRUPT);
    assert_int_equal(trd__json_get_i64(root, "N", &number), TRD_CORRUPT); /* case matters */
    expect_message("under the key \"N\"");
    assert_int_equal(trd__json_get_array(root, "a", &array), TRD_OK);
    element = trd__json_next(trd__json_first(array));
    assert_int_equal(trd__json_get_i64(element, "q", &number), TRD_CORRUPT);
    expect_message("a[1].q: expected a number, found a string");
    assert_false(trd__json_exists(trd__json_next(element)));
    trd__json_free(doc);
}

static void writer_round_trip(void **state)
{
    (void)state;
    trd__json_writer w = {.indent = 2};
    trd__json_doc *doc;
    static const double numbers[] = {0.1, 1.0 / 3, 1e-310, 1.7976931348623157e308, -0.0, 5};
    trd__json_open_object(&w);
    trd__json_put_string(&w, "quote \"\\\n\x01\x7f\xc3\xa9", "line\r\n\ttab");
    trd__json_put_i64(&w, "i", INT64_MIN);
    trd__json_put_bool(&w, "b", false);
    trd__json_put_f64(&w, "nan", (double)NAN);
    trd__json_write_key(&w, "list");
    trd__json_open_array(&w);
    for (size_t i = 0; i < 6; i++) trd__json_write_f64(&w, numbers[i]);
    trd__json_close(&w);
    trd__json_write_key(&w, "empty");
    trd__json_open_object(&w);
    trd__json_close(&w);
    trd__json_close(&w);
    assert_int_equal(trd__json_finish(&w), TRD_OK);
    assert_non_null(strstr(w.text, "\\u0001"));
    assert_int_equal(parse(w.text, &doc), TRD_OK);
    trd__json root = trd__json_root(doc), list;
    const char *text;
    assert_string_equal(trd__json_key(trd__json_first(root)), "quote \"\\\n\x01\x7f\xc3\xa9");
    assert_int_equal(trd__json_as_string(trd__json_first(root), &text), TRD_OK);
    assert_string_equal(text, "line\r\n\ttab");
    assert_int_equal(trd__json_kind_of(trd__json_find(root, "nan")), TRD__JSON_NULL);
    assert_int_equal(trd__json_get_array(root, "list", &list), TRD_OK);
    size_t i = 0;
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v), i++) {
        double number;
        assert_int_equal(trd__json_as_f64(v, &number), TRD_OK);
        assert_memory_equal(&number, &numbers[i], sizeof number);
    }
    trd__json_writer copy = {0};
    trd__json_write_value(&copy, trd__json_root(doc));
    assert_int_equal(trd__json_finish(&copy), TRD_OK);
    assert_null(strchr(copy.text, '\n'));
    trd__json_writer_free(&copy);
    trd__json_free(doc);
    trd__json_clear(&w);
    trd__json_open_array(&w);
    assert_int_equal(trd__json_finish(&w), TRD_INTERNAL);
    trd__json_writer_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refuses), cmocka_unit_test(depth),
                                       cmocka_unit_test(repeated_key_of_large_object),
                                       cmocka_unit_test(getters), cmocka_unit_test(writer_round_trip)};
    return cmocka_run_group_tests_name("formats/json", tests, NULL, NULL);
}
