/* Chats against the text and ids that the templates themselves give (data/make.py), and their loss mask. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/tokenizer.h>

#include "base/file.h"
#include "formats/json.h"
#include "tokenizer/chat.h"

#define QWEN3 "data/qwen3-tokenizer"
#define SMOLLM2 "data/smollm2-tokenizer.gguf"
#define LLAMA3 "tokenizer/data/llama3-small.json"

static trd_tokenizer *opened(const char *path)
{
    trd_tokenizer *tokenizer;
    if (trd_tokenizer_open(path, &tokenizer)) fail_msg("%s", trd_error_message());
    return tokenizer;
}

enum { MOST_MESSAGES = 16 };

static int read_messages(trd__json list, trd_message *messages)
{
    int count = 0;
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v), count++) {
        assert_true(count < MOST_MESSAGES);
        assert_int_equal(trd__json_get_string(v, "role", &messages[count].role), TRD_OK);
        assert_int_equal(trd__json_get_string(v, "content", &messages[count].content), TRD_OK);
    }
    return count;
}

static void check_line(const trd_tokenizer *tokenizer, const char *name, trd__json line)
{
    const trd__chat_template *chat;
    const char *text;
    bool generation;
    trd_message messages[MOST_MESSAGES];
    int count = read_messages(trd__json_find(line, "messages"), messages);
    assert_int_equal(trd__json_get_string(line, "text", &text), TRD_OK);
    assert_int_equal(trd__json_get_bool(line, "generation", &generation), TRD_OK);

    trd__chat_text out = {0};
    assert_int_equal(trd__chat_find(name, &chat), TRD_OK);
    assert_int_equal(trd__chat_render(chat, "<|begin_of_text|>", messages, count, generation, &out), TRD_OK);
    if (out.bytes != strlen(text) || memcmp(out.text, text, out.bytes) != 0)
        fail_msg("%s: expected\n%s\nfound\n%.*s", name, text, (int)out.bytes, out.text);
    trd__chat_text_free(&out);

    trd_ids ids = {0};
    size_t i = 0;
    assert_int_equal(trd_tokenizer_chat(tokenizer, messages, count, generation, &ids), TRD_OK);
    trd__json expected = trd__json_find(line, "ids");
    assert_int_equal(ids.count, trd__json_count(expected));
    for (trd__json v = trd__json_first(expected); trd__json_exists(v); v = trd__json_next(v), i++) {
        int64_t id;
        assert_int_equal(trd__json_as_i64(v, &id), TRD_OK);
        assert_int_equal(ids.ids[i], id);
    }
    trd_ids_free(&ids);
}

static void check_file(const char *tokenizer_path, const char *name, const char *path)
{
    trd_tokenizer *tokenizer = opened(tokenizer_path);
    trd__file_map map;
    int lines = 0;
    assert_int_equal(trd_tokenizer_set_chat_template(tokenizer, name), TRD_OK);
    assert_int_equal(trd__file_map_open(path, &map), TRD_OK);
    const char *at = (const char *)map.data, *end = at + map.bytes;
    for (const char *newline; at < end; at = newline + 1, lines++) {
        trd__json_doc *doc;
        newline = memchr(at, '\n', (size_t)(end - at));
        assert_int_equal(trd__json_parse(at, (size_t)(newline - at), path, &doc), TRD_OK);
        check_line(tokenizer, name, trd__json_root(doc));
        trd__json_free(doc);
    }
    assert_true(lines >= 20);
    trd__file_map_close(&map);
    trd_tokenizer_close(tokenizer);
}

static void smollm2(void **state)
{
    (void)state;
    check_file(SMOLLM2, "smollm2", "tokenizer/data/chat-smollm2.jsonl");
}

static void qwen25(void **state)
{
    (void)state;
    check_file(QWEN3, "qwen2.5", "tokenizer/data/chat-qwen25.jsonl");
}

static void qwen3(void **state)
{
    (void)state;
    check_file(QWEN3, "qwen3", "tokenizer/data/chat-qwen3.jsonl");
}

static void llama3(void **state)
{
    (void)state;
    check_file(LLAMA3, "llama3", "tokenizer/data/chat-llama32.jsonl");
    check_file(LLAMA3, "llama3.0", "tokenizer/data/chat-llama30.jsonl");
}

/* A file's own template is recognized; the text of one that a user chose is not asked for. */
static void recognized(void **state)
{
    (void)state;
    trd_tokenizer *qwen = opened(QWEN3), *smol = opened(SMOLLM2), *llama = opened(LLAMA3);
    assert_string_equal(trd_tokenizer_chat_template(qwen), "qwen3");
    assert_string_equal(trd_tokenizer_chat_template(smol), "smollm2");
    assert_null(trd_tokenizer_chat_template(llama));
    trd_tokenizer_close(llama);
    trd_tokenizer_close(smol);
    trd_tokenizer_close(qwen);
#define RECOGNIZED(name, text, renderer, system)                                                             \
    assert_string_equal(                                                                                     \
        trd__chat_name(trd__chat_recognize(trd__chat_text_##text, strlen(trd__chat_text_##text))), name);
    TRD__CHAT_LIST(RECOGNIZED)
#undef RECOGNIZED
}

static void no_template(void **state)
{
    (void)state;
    trd_tokenizer *llama = opened(LLAMA3);
    trd_message message = {"user", "hi"};
    trd_ids ids = {0};
    assert_int_equal(trd_tokenizer_chat(llama, &message, 1, false, &ids), TRD_UNSUPPORTED);
    assert_non_null(strstr(trd_error_message(), "chat_template"));
    assert_non_null(strstr(trd_error_message(), "qwen2.5"));
    assert_int_equal(trd_tokenizer_set_chat_template(llama, "chatml"), TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "smollm2"));
    trd_ids_free(&ids);
    trd_tokenizer_close(llama);
}

static void unknown_role(void **state)
{
    (void)state;
    trd_tokenizer *qwen = opened(QWEN3);
    trd_message message = {"developer", "hi"};
    trd_ids ids = {0};
    assert_int_equal(trd_tokenizer_chat(qwen, &message, 1, false, &ids), TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "developer"));
    assert_int_equal(trd_tokenizer_chat(qwen, &message, 0, false, &ids), TRD_INVALID_ARGUMENT);
    trd_ids_free(&ids);
    trd_tokenizer_close(qwen);
}

/* The tokens that carry loss, as text. */
static void assert_masked(const char *path, const char *name, const trd_message *messages, int count,
                          const char *expected)
{
    trd_tokenizer *tokenizer = opened(path);
    trd_ids ids = {0}, masked = {0};
    char *text;
    size_t bytes;
    assert_int_equal(trd_tokenizer_set_chat_template(tokenizer, name), TRD_OK);
    /* What is there before keeps its place and gets no loss. */
    assert_int_equal(trd_tokenizer_encode(tokenizer, "x", 1, &ids), TRD_OK);
    assert_int_equal(trd_tokenizer_chat(tokenizer, messages, count, true, &ids), TRD_OK);
    assert_int_equal(ids.loss_mask[0], 0);
    masked.ids = ids.ids; /* in place: never ahead of the read */
    for (size_t i = 0; i < ids.count; i++)
        if (ids.loss_mask[i]) masked.ids[masked.count++] = ids.ids[i];
    assert_int_equal(trd_tokenizer_decode(tokenizer, masked.ids, masked.count, true, &text, &bytes), TRD_OK);
    assert_string_equal(text, expected);
    trd_text_free(text);
    trd_ids_free(&ids);
    trd_tokenizer_close(tokenizer);
}

static void loss_mask(void **state)
{
    (void)state;
    const trd_message messages[] = {{"system", "caf\x65\xcc\x81"},
                                    {"user", "q"},
                                    {"assistant", "one two"},
                                    {"user", "r"},
                                    {"assistant", ""}};
    assert_masked(SMOLLM2, "smollm2", messages, 5, "one two<|im_end|><|im_end|>");
    assert_masked(QWEN3, "qwen2.5", messages, 5, "one two<|im_end|><|im_end|>");
    assert_masked(QWEN3, "qwen3", messages, 5, "one two<|im_end|><think>\n\n</think>\n\n<|im_end|>");
    assert_masked(LLAMA3, "llama3", messages, 5, "one two<|eot_id|><|eot_id|>");
}

/* The header's newline and the content's become one token, which carries loss. */
static void loss_mask_straddle(void **state)
{
    (void)state;
    const trd_message messages[] = {{"user", "q"}, {"assistant", "\n\nx <|im_end|> y"}};
    assert_masked(QWEN3, "qwen2.5", messages, 2, "\n\n\nx <|im_end|> y<|im_end|>");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2),      cmocka_unit_test(qwen25),     cmocka_unit_test(qwen3),
        cmocka_unit_test(llama3),       cmocka_unit_test(recognized), cmocka_unit_test(no_template),
        cmocka_unit_test(unknown_role), cmocka_unit_test(loss_mask),  cmocka_unit_test(loss_mask_straddle)};
    return cmocka_run_group_tests_name("tokenizer/chat", tests, NULL, NULL);
}
