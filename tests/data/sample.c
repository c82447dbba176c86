/* Lines to tokens and masks, and the reasons given for bad lines. */
#include "fixture.h"

#include "data/sample.h"

static trd_status read_text(trd__sample *sample, const char *line)
{
    trd__sample_options options = {tokenizer, true};
    return trd__sample_read(sample, &options, line, strlen(line), "x.jsonl line 7");
}

/* Expects the tokens of text, then EOS, with loss on the last `with_loss` tokens. */
static void expect(const char *line, const char *text, size_t with_loss)
{
    trd__sample sample = {0};
    assert_int_equal(read_text(&sample, line), TRD_OK);
    assert_int_equal(sample.count, strlen(text) + 1);
    for (size_t i = 0; i < sample.count; i++) {
        assert_int_equal(sample.ids[i], i + 1 < sample.count ? (unsigned char)text[i] : EOS);
        assert_int_equal(sample.mask[i], i >= sample.count - with_loss);
    }
    trd__sample_free(&sample);
}

static void text_and_completion(void **state)
{
    (void)state;
    expect("{\"text\": \"abc\"}", "abc", 4);
    expect("{\"text\": \"\"}", "", 1);
    expect("{\"prompt\": \"ab\", \"completion\": \"cd\"}", "abcd", 3);
    expect("{\"completion\": \"cd\", \"id\": [1, {}], \"prompt\": \"ab\"}", "abcd", 3);
    expect("{\"prompt\": \"ab\", \"completion\": \"\"}", "ab", 1);
    expect("{\"prompt\": \"\", \"completion\": \"cd\"}", "cd", 3);
    expect("{\"text\": \"\\u00e9\\n\"}", "\xc3\xa9\n", 4);
    expect("  {\"text\": \"a\"}  \r", "a", 2);
}

static void all_tokens_carry_loss_on_request(void **state)
{
    (void)state;
    trd__sample sample = {0};
    trd__sample_options options = {tokenizer, false};
    static const char line[] = "{\"prompt\": \"ab\", \"completion\": \"cd\"}";
    assert_int_equal(trd__sample_read(&sample, &options, line, sizeof line - 1, "x"), TRD_OK);
    for (size_t i = 0; i < sample.count; i++) assert_int_equal(sample.mask[i], 1);
    assert_int_equal(trd__sample_loss_tokens(&sample, sample.count), sample.count - 1);
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}";
    assert_int_equal(trd__sample_read(&sample, &options, chat, sizeof chat - 1, "x"), TRD_OK);
    for (size_t i = 0; i < sample.count; i++) assert_int_equal(sample.mask[i], 1);
    trd__sample_free(&sample);
}

static void bos_where_the_tokenizer_adds_it(void **state)
{
    (void)state;
    trd_tokenizer *with_bos;
    assert_int_equal(trd_tokenizer_open("data/data/bytes-bos", &with_bos), TRD_OK);
    trd__sample_options options = {with_bos, true};
    trd__sample sample = {0};
    static const char line[] = "{\"prompt\": \"a\", \"completion\": \"b\"}";
    assert_int_equal(trd__sample_read(&sample, &options, line, sizeof line - 1, "x"), TRD_OK);
    static const int32_t ids[] = {BOS, 'a', 'b', EOS};
    static const uint8_t mask[] = {0, 0, 1, 1};
    assert_int_equal(sample.count, 4);
    assert_memory_equal(sample.ids, ids, sizeof ids);
    assert_memory_equal(sample.mask, mask, sizeof mask);
    trd__sample_free(&sample);
    trd_tokenizer_close(with_bos);
}

/* The mask covers exactly the assistant's contents and their end-of-turn tokens, whatever the template puts
 * around. */
static void chat_turns(void **state)
{
    (void)state;
    trd__sample sample = {0};
    assert_int_equal(read_text(&sample, "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, "
                                        "{\"role\": \"user\", \"content\": \"U\"}, "
                                        "{\"role\": \"assistant\", \"content\": \"first\", \"weight\": 1}, "
                                        "{\"role\": \"user\", \"content\": \"V\"}, "
                                        "{\"role\": \"assistant\", \"content\": \"2nd\"}]}"),
                     TRD_OK);
    int32_t with_loss[16];
    size_t count = 0;
    for (size_t i = 0; i < sample.count; i++)
        if (sample.mask[i]) with_loss[count++] = sample.ids[i];
    static const int32_t expected[] = {'f', 'i', 'r', 's', 't', IM_END, '2', 'n', 'd', IM_END};
    assert_int_equal(count, 10);
    assert_memory_equal(with_loss, expected, sizeof expected);
    trd__sample_free(&sample);
}

static void a_long_line_after_a_short_one(void **state)
{
    (void)state;
    enum { LONG = 1 << 20 };
    trd__sample sample = {0};
    char *line = malloc(LONG + 64);
    assert_int_equal(read_text(&sample, "{\"text\": \"a\"}"), TRD_OK);
    size_t at = (size_t)sprintf(line, "{\"prompt\": \"p\", \"completion\": \"");
    memset(line + at, 'x', LONG);
    strcpy(line + at + LONG, "\"}");
    assert_int_equal(read_text(&sample, line), TRD_OK);
    assert_int_equal(sample.count, LONG + 2);
    assert_int_equal(trd__sample_loss_tokens(&sample, sample.count), LONG + 1);
    assert_int_equal(trd__sample_loss_tokens(&sample, 11), 10);
    free(line);
    trd__sample_free(&sample);
}

static void bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *reason;
    } cases[] = {
        {"{\"text\": \"a\"", "line 1"},
        {"{\"text\": \"a\"} {}", "line 1"},
        {"nonsense", "line 1"},
        {"[1, 2]", "expected an object, found an array"},
        {"\"text\"", "expected an object, found a string"},
        {"{}", "messages, prompt with completion, or text"},
        {"{\"txt\": \"a\"}", "\"txt\""},
        {"{\"text\": 5}", "expected a string, found a number"},
        {"{\"text\": null}", "expected a string, found null"},
        {"{\"text\": [\"a\"]}", "expected a string, found an array"},
        {"{\"prompt\": \"a\"}", "\"completion\""},
        {"{\"completion\": \"a\"}", "messages, prompt with completion, or text"},
        {"{\"prompt\": \"a\", \"completion\": {}}", "expected a string, found an object"},
        {"{\"prompt\": 1, \"completion\": \"a\"}", "expected a string, found a number"},
        {"{\"messages\": \"a\"}", "expected an array, found a string"},
        {"{\"messages\": []}", "at least one message"},
        {"{\"messages\": [\"a\"]}", "expected an object, found a string"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "\"content\""},
        {"{\"messages\": [{\"content\": \"a\"}]}", "\"role\""},
        {"{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "messages[0].content"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}", "found an array"},
        {"{\"text\": \"a\\u0000b\"}", "x.jsonl line 7"},
        {"{\"text\": \"\xff\xfe\"}", "x.jsonl line 7"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "x.jsonl line 7"},
        {"{\"text\": NaN}", "x.jsonl line 7"},
    };
    trd__sample sample = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_text(&sample, cases[i].line), TRD_CORRUPT);
        if (!strstr(trd_error_message(), cases[i].reason) || !strstr(trd_error_message(), "x.jsonl line 7"))
            fail_msg("%s\n gave: %s\n without: %s", cases[i].line, trd_error_message(), cases[i].reason);
    }
    trd__sample_options options = {tokenizer, true};
    static const char nul[] = "{\"text\": \"a\0b\"}";
    assert_int_equal(trd__sample_read(&sample, &options, nul, sizeof nul - 1, "x"), TRD_CORRUPT);
    assert_int_equal(trd__sample_read(&sample, &options, "", 0, "x"), TRD_CORRUPT);
    trd__sample_free(&sample);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_completion),
        cmocka_unit_test(all_tokens_carry_loss_on_request),
        cmocka_unit_test(bos_where_the_tokenizer_adds_it),
        cmocka_unit_test(chat_turns),
        cmocka_unit_test(a_long_line_after_a_short_one),
        cmocka_unit_test(bad_lines),
    };
    return cmocka_run_group_tests_name("data/sample", tests, set_up, tear_down);
}
