/* Ids against those of the tokenizers package (data/make.py), and exact round trips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/tokenizer.h>

#include "base/file.h"
#include "base/pool.h"
#include "base/rng.h"
#include "formats/json.h"
#include "tokenizer/tokenizer.h"

#define QWEN3 "data/qwen3-tokenizer"
#define SMOLLM2 "data/smollm2-tokenizer.gguf"
#define LLAMA3 "tokenizer/data/llama3-small.json"
#define FLAGS "tokenizer/data/flags.json"

static trd_tokenizer *opened(const char *path)
{
    trd_tokenizer *tokenizer;
    trd_status status = trd_tokenizer_open(path, &tokenizer);
    if (status) fail_msg("%s", trd_error_message());
    return tokenizer;
}

static void assert_ids(trd__json expected, const trd_ids *ids, const char *text)
{
    size_t i = 0;
    if (trd__json_count(expected) != ids->count)
        fail_msg("\"%s\": expected %zu ids, found %zu", text, trd__json_count(expected), ids->count);
    for (trd__json v = trd__json_first(expected); trd__json_exists(v); v = trd__json_next(v), i++) {
        int64_t id;
        assert_int_equal(trd__json_as_i64(v, &id), TRD_OK);
        if (id != ids->ids[i])
            fail_msg("\"%s\": id %zu: expected %d, found %d", text, i, (int)id, ids->ids[i]);
    }
}

/* Every line of a file of {text, ids}. */
static void check_file(const char *tokenizer_path, const char *path, int at_least)
{
    trd_tokenizer *tokenizer = opened(tokenizer_path);
    trd__file_map map;
    int lines = 0;
    assert_int_equal(trd__file_map_open(path, &map), TRD_OK);
    const char *at = (const char *)map.data, *end = at + map.bytes;
    for (const char *newline; at < end; at = newline + 1, lines++) {
        trd__json_doc *doc;
        const char *text;
        trd_ids ids = {0};
        newline = memchr(at, '\n', (size_t)(end - at));
        assert_int_equal(trd__json_parse(at, (size_t)(newline - at), path, &doc), TRD_OK);
        trd__json root = trd__json_root(doc);
        assert_int_equal(trd__json_get_string(root, "text", &text), TRD_OK);
        assert_int_equal(trd_tokenizer_encode(tokenizer, text, strlen(text), &ids), TRD_OK);
        assert_ids(trd__json_find(root, "ids"), &ids, text);
        trd_ids_free(&ids);
        trd__json_free(doc);
    }
    assert_true(lines >= at_least);
    trd__file_map_close(&map);
    trd_tokenizer_close(tokenizer);
}

static void qwen3(void **state)
{
    (void)state;
    check_file(QWEN3, "tokenizer/data/qwen3.jsonl", 90);
}

static void smollm2(void **state)
{
    (void)state;
    check_file(SMOLLM2, "tokenizer/data/smollm2.jsonl", 90);
}

static void llama3(void **state)
{
    (void)state;
    check_file(LLAMA3, "tokenizer/data/llama3-small.jsonl", 90);
}

static void added_token_flags(void **state)
{
    (void)state;
    check_file(FLAGS, "tokenizer/data/flags.jsonl", 10);
}

static void assert_round_trip(const trd_tokenizer *tokenizer, const char *text, size_t bytes)
{
    trd_ids ids = {0};
    char *back;
    size_t back_bytes;
    assert_int_equal(trd_tokenizer_encode(tokenizer, text, bytes, &ids), TRD_OK);
    assert_int_equal(trd_tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back, &back_bytes), TRD_OK);
    assert_int_equal(back_bytes, bytes);
    assert_memory_equal(back, text, bytes);
    trd_text_free(back);
    trd_ids_free(&ids);
}

/* Stray bytes, overlong forms, surrogates and cut sequences come back, each byte by a token of its own. */
static void invalid_utf8(void **state)
{
    (void)state;
    trd_tokenizer *tokenizer = opened(QWEN3);
    static const char *const texts[] = {
        "\xff\xfe\xfd", "a\x80z",        "\xc0\xaf",          "\xed\xa0\x80",
        "\xe4\xbd",     "x\xf0\x9f\x98", "\xf4\x90\x80\x80y", "ok \xe4\xbd\xa0 \xe4\xbd <|im_end|>\xbf"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_round_trip(tokenizer, texts[i], strlen(texts[i]));
    trd_ids ids = {0};
    assert_int_equal(trd_tokenizer_encode(tokenizer, "\xe4\xbd", 2, &ids), TRD_OK);
    assert_int_equal(ids.count, 2);
    trd_ids_free(&ids);
    trd_tokenizer_close(tokenizer);
}

static void random_bytes(void **state)
{
    (void)state;
    trd_tokenizer *qwen = opened(QWEN3), *llama = opened(LLAMA3);
    for (uint64_t round = 0; round < 50; round++) {
        char text[700];
        size_t bytes = (size_t)trd__rng_below(round, 1, 0, sizeof text);
        for (size_t i = 0; i < bytes; i++) text[i] = (char)trd__rng_below(round, 2, i, 256);
        assert_round_trip(llama, text, bytes);
        /* NFC may change the few valid characters above ASCII. */
        for (size_t i = 0; i < bytes; i++)
            if ((unsigned char)text[i] >= 0xc2) text[i] = (char)(text[i] & 0x3f);
        assert_round_trip(qwen, text, bytes);
    }
    trd_tokenizer_close(llama);
    trd_tokenizer_close(qwen);
}

static void empty_and_nul(void **state)
{
    (void)state;
    trd_tokenizer *tokenizer = opened(QWEN3);
    trd_ids ids = {0};
    assert_int_equal(trd_tokenizer_encode(tokenizer, "", 0, &ids), TRD_OK);
    assert_int_equal(ids.count, 0);
    assert_round_trip(tokenizer, "a\0b\0\0", 5);
    trd_ids_free(&ids);
    trd_tokenizer_close(tokenizer);
}

static void decode_special(void **state)
{
    (void)state;
    trd_tokenizer *tokenizer = opened(QWEN3);
    char *text;
    size_t bytes;
    int32_t ids[] = {trd_tokenizer_id(tokenizer, "<|im_start|>"), trd_tokenizer_id(tokenizer, "user"),
                     trd_tokenizer_id(tokenizer, "<tool_call>")};
    assert_int_equal(trd_tokenizer_decode(tokenizer, ids, 3, true, &text, &bytes), TRD_OK);
    assert_string_equal(text, "<|im_start|>user<tool_call>");
    trd_text_free(text);
    assert_int_equal(trd_tokenizer_decode(tokenizer, ids, 3, false, &text, &bytes), TRD_OK);
    assert_string_equal(text, "user<tool_call>");
    trd_text_free(text);
    ids[1] = 10000000;
    assert_int_equal(trd_tokenizer_decode(tokenizer, ids, 3, false, &text, &bytes), TRD_INVALID_ARGUMENT);
    assert_null(text);
    trd_tokenizer_close(tokenizer);
}

/* The whole flags, derived from the merges' history, are what merging each token gives. */
static void whole_tokens(void **state)
{
    (void)state;
    static const char *const paths[] = {QWEN3, SMOLLM2, FLAGS};
    for (size_t p = 0; p < sizeof paths / sizeof paths[0]; p++) {
        trd_tokenizer *t = opened(paths[p]);
        for (int32_t id = 0; id < t->vocab.size; id++) {
            const trd__token *token = &t->vocab.tokens[id];
            if (!token->flags || token->flags & TRD__TOKEN_TEXT || token->length > TRD__BPE_SHORT) continue;
            int32_t symbols[TRD__BPE_SHORT];
            const uint8_t *bytes = trd__vocab_bytes(&t->vocab, id);
            for (uint32_t i = 0; i < token->length; i++) symbols[i] = t->byte_ids[bytes[i]];
            size_t count = trd__bpe_merge(&t->bpe, symbols, token->length, NULL);
            bool whole = count == 1 && symbols[0] == id;
            if (whole != !!(token->flags & TRD__TOKEN_WHOLE)) fail_msg("%s: token %d", paths[p], id);
        }
        trd_tokenizer_close(t);
    }
}

/* The heap and the scan merge alike. */
static void long_and_short_merges(void **state)
{
    (void)state;
    trd_tokenizer *t = opened(SMOLLM2);
    size_t length = TRD__BPE_SHORT;
    void *scratch = malloc(trd__bpe_scratch_bytes(3 * length));
    for (uint64_t round = 0; round < 300; round++) {
        int32_t word[TRD__BPE_SHORT], repeated[3 * TRD__BPE_SHORT];
        for (size_t i = 0; i < length; i++)
            word[i] = t->byte_ids['a' + trd__rng_below(round, 1, i, round % 5 + 1)];
        /* A digit merges with nothing, so the middle of the long word is the short word. */
        for (size_t i = 0; i < 3 * length; i++)
            repeated[i] = i < length || i >= 2 * length ? t->byte_ids['0'] : word[i - length];
        size_t count = trd__bpe_merge(&t->bpe, word, length, NULL);
        size_t all = trd__bpe_merge(&t->bpe, repeated, 3 * length, scratch);
        assert_int_equal(all, count + 2 * length);
        assert_memory_equal(repeated + length, word, count * sizeof word[0]);
    }
    free(scratch);
    trd_tokenizer_close(t);
}

typedef struct shared_work {
    const trd_tokenizer *tokenizer;
    trd_ids ids[4];
} shared_work;

static void encode_shared(void *context, int worker, int workers)
{
    static const char text[] = "shared by threads: \xe4\xbd\xa0\xe5\xa5\xbd e\xcc\x81 12345 <|im_end|>";
    shared_work *work = context;
    (void)workers;
    for (int i = 0; i < 200; i++)
        assert_int_equal(trd_tokenizer_encode(work->tokenizer, text, strlen(text), &work->ids[worker]),
                         TRD_OK);
}

static void threads(void **state)
{
    (void)state;
    trd_tokenizer *tokenizer = opened(QWEN3);
    shared_work work = {.tokenizer = tokenizer};
    trd__pool *pool;
    assert_int_equal(trd__pool_create(4, &pool), TRD_OK);
    trd__pool_run(pool, encode_shared, &work);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(work.ids[i].count, work.ids[0].count);
        assert_memory_equal(work.ids[i].ids, work.ids[0].ids, work.ids[0].count * sizeof(int32_t));
    }
    for (int i = 0; i < 4; i++) trd_ids_free(&work.ids[i]);
    trd__pool_free(pool);
    trd_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3),         cmocka_unit_test(smollm2),
        cmocka_unit_test(llama3),        cmocka_unit_test(added_token_flags),
        cmocka_unit_test(invalid_utf8),  cmocka_unit_test(random_bytes),
        cmocka_unit_test(empty_and_nul), cmocka_unit_test(decode_special),
        cmocka_unit_test(whole_tokens),  cmocka_unit_test(long_and_short_merges),
        cmocka_unit_test(threads)};
    return cmocka_run_group_tests_name("tokenizer/encode", tests, NULL, NULL);
}
