/* The hand-written matchers against PCRE2 on the same patterns, over texts that mix every class of character.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "tokenizer/split.h"

typedef struct words {
    const uint8_t *ends[2048];
    size_t count;
} words;

static trd_status record(void *context, const uint8_t *word, size_t bytes)
{
    words *w = context;
    assert_true(w->count < 2048 && bytes > 0);
    w->ends[w->count++] = word + bytes;
    return TRD_OK;
}

static size_t random_text(uint64_t round, char *text)
{
    static const struct {
        uint32_t first, count;
    } ranges[] = {{1, 0x7f},    {'a', 26},     {' ', 1},      {'\n', 1},     {'\r', 1},
                  {'0', 10},    {'\'', 1},     {0x80, 0x400}, {0x900, 0x80}, {0x2000, 0x60},
                  {0x4e00, 64}, {0x1d7ce, 50}, {0x1f600, 64}, {0x17f, 1},    {0x3000, 3}};
    size_t bytes = 0;
    for (uint64_t i = 0; i < 300; i++) {
        uint64_t kind = trd__rng_below(round, 1, i, sizeof ranges / sizeof ranges[0]);
        uint64_t repeat = 1 + trd__rng_below(round, 2, i, 3);
        uint32_t code = ranges[kind].first + (uint32_t)trd__rng_below(round, 3, i, ranges[kind].count);
        for (; repeat > 0; repeat--) bytes += trd__utf8_encode(code, text + bytes);
        static const char *const contractions[] = {"'s", "'LL", "'ve", "'Re", "'\xc5\xbf",
                                                   "'d", "'t",  "'M",  "'l"};
        if (kind != 6) continue;
        const char *more = contractions[trd__rng_below(round, 4, i, 9)];
        memcpy(text + bytes, more, strlen(more));
        bytes += strlen(more);
    }
    return bytes;
}

static void same_words(void **state)
{
    (void)state;
    static const char *const patterns[] = {trd__pattern_gpt2, trd__pattern_qwen2, trd__pattern_llama3};
    trd__unicode *unicode = trd__alloc(1, sizeof *unicode);
    trd__unicode_init(unicode);
    for (size_t p = 0; p < 3; p++) {
        trd__splitter fast = {.unicode = unicode}, compiled = {.unicode = unicode};
        assert_int_equal(trd__splitter_add_pattern(&fast, patterns[p]), TRD_OK);
        assert_int_equal(trd__splitter_add_compiled(&compiled, patterns[p]), TRD_OK);
        assert_int_equal(fast.steps[0].kind, TRD__SPLIT_FAMILY);
        for (uint64_t round = 0; round < 400; round++) {
            static words found, expected;
            char text[4096];
            size_t bytes = random_text(round, text);
            found.count = expected.count = 0;
            assert_int_equal(trd__split(&fast, (const uint8_t *)text, bytes, record, &found), TRD_OK);
            assert_int_equal(trd__split(&compiled, (const uint8_t *)text, bytes, record, &expected), TRD_OK);
            assert_int_equal(found.count, expected.count);
            assert_memory_equal(found.ends, expected.ends, found.count * sizeof found.ends[0]);
        }
        trd__splitter_free(&compiled);
        trd__splitter_free(&fast);
    }
    trd__free(unicode);
}

/* Gaps between matches are words, and each step cuts the pieces of the one before. */
static void steps(void **state)
{
    (void)state;
    trd__unicode *unicode = trd__alloc(1, sizeof *unicode);
    trd__unicode_init(unicode);
    trd__splitter splitter = {.unicode = unicode};
    words found = {.count = 0};
    static const char text[] = "ab1,,22c";
    static const size_t ends[] = {2, 3, 5, 6, 7, 8};
    assert_int_equal(trd__splitter_add_digits(&splitter, true), TRD_OK);
    assert_int_equal(trd__splitter_add_pattern(&splitter, ",+"), TRD_OK);
    assert_int_equal(trd__split(&splitter, (const uint8_t *)text, strlen(text), record, &found), TRD_OK);
    assert_int_equal(found.count, 6);
    for (size_t i = 0; i < 6; i++) assert_int_equal(found.ends[i] - (const uint8_t *)text, ends[i]);
    trd__splitter_free(&splitter);
    trd__free(unicode);
}

static void bad_pattern(void **state)
{
    (void)state;
    trd__splitter splitter = {0};
    assert_int_equal(trd__splitter_add_pattern(&splitter, "(a"), TRD_UNSUPPORTED);
    assert_non_null(strstr(trd_error_message(), "(a"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_words), cmocka_unit_test(steps),
                                       cmocka_unit_test(bad_pattern)};
    return cmocka_run_group_tests_name("tokenizer/split", tests, NULL, NULL);
}
