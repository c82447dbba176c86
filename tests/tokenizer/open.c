/* Opening: small files of every shape that counts, files that are broken or ask for what is not there, and
 * export. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/tokenizer.h>

#include "base/file.h"
#include "base/rng.h"
#include "support/scratch.h"

#define QWEN3 "data/qwen3-tokenizer"
#define SMOLLM2 "data/smollm2-tokenizer.gguf"

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define VOCAB "{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"\\u0120ab\":4,\"<0x07>\":5,\"\\ud83d\\ude00\":6}"
#define FILE_OF(model, pre, more) "{\"model\":{\"type\":\"BPE\"," model "},\"pre_tokenizer\":" pre more "}"

static trd_status open_text(const char *folder, const char *text, trd_tokenizer **tokenizer)
{
    const char *path = scratch_path(folder, "tokenizer.json");
    scratch_write(path, text, strlen(text));
    return trd_tokenizer_open(path, tokenizer);
}

static void assert_encodes(const trd_tokenizer *tokenizer, const char *text, size_t count,
                           const int32_t *expected)
{
    trd_ids ids = {0};
    assert_int_equal(trd_tokenizer_encode(tokenizer, text, strlen(text), &ids), TRD_OK);
    assert_int_equal(ids.count, count);
    for (size_t i = 0; i < count; i++) assert_int_equal(ids.ids[i], expected[i]);
    trd_ids_free(&ids);
}

/* Merges as texts or pairs, before or after the vocabulary, with escapes anywhere. */
static void forms_of_merges(void **state)
{
    static const char *const files[] = {
        FILE_OF("\"vocab\":" VOCAB ",\"merges\":[\"a b\",\"\\u0120 ab\"]", BYTE_LEVEL, ""),
        FILE_OF("\"vocab\":" VOCAB ",\"merges\":[[\"a\",\"\\u0062\"] , [ \"\\u0120\",\"ab\"]]", BYTE_LEVEL,
                ""),
        FILE_OF("\"merges\":[[\"a\",\"b\"],[\"\\u0120\",\"ab\"]],\"dropout\":null,\"vocab\":" VOCAB,
                BYTE_LEVEL, "")};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        trd_tokenizer *t;
        if (open_text(*state, files[i], &t)) fail_msg("%s", trd_error_message());
        assert_encodes(t, "ab ab b", 4, (const int32_t[]){3, 4, 2, 1});
        assert_int_equal(trd_tokenizer_vocab_size(t), 7);
        trd_tokenizer_close(t);
    }
}

/* A byte without a token: named, unknown, or left out. */
static void missing_bytes(void **state)
{
    trd_tokenizer *t;
    char *text;
    size_t bytes;
    assert_int_equal(
        open_text(*state, FILE_OF("\"byte_fallback\":true,\"vocab\":" VOCAB ",\"merges\":[]", BYTE_LEVEL, ""),
                  &t),
        TRD_OK);
    assert_encodes(t,
                   "a\x07"
                   "c",
                   2, (const int32_t[]){0, 5});
    assert_int_equal(trd_tokenizer_decode(t, (const int32_t[]){0, 5}, 2, true, &text, &bytes), TRD_OK);
    assert_string_equal(text, "a\x07");
    trd_text_free(text);
    trd_tokenizer_close(t);
    assert_int_equal(
        open_text(*state, FILE_OF("\"unk_token\":\"b\",\"vocab\":" VOCAB ",\"merges\":[]", BYTE_LEVEL, ""),
                  &t),
        TRD_OK);
    assert_encodes(t, "acca", 4, (const int32_t[]){0, 1, 1, 0});
    trd_tokenizer_close(t);
    assert_int_equal(
        open_text(*state,
                  FILE_OF("\"unk_token\":\"b\",\"fuse_unk\":true,\"vocab\":" VOCAB ",\"merges\":[]",
                          BYTE_LEVEL, ""),
                  &t),
        TRD_OK);
    assert_encodes(t, "acca", 3, (const int32_t[]){0, 1, 0});
    trd_tokenizer_close(t);
    assert_int_equal(
        open_text(*state, FILE_OF("\"vocab\":" VOCAB ",\"merges\":[\"a b\"]", BYTE_LEVEL, ""), &t), TRD_OK);
    assert_encodes(t, "acb", 1, (const int32_t[]){3});
    trd_tokenizer_close(t);
}

static void special_tokens(void **state)
{
    trd_tokenizer *t;
    assert_int_equal(trd_tokenizer_open(QWEN3, &t), TRD_OK);
    assert_int_equal(trd_tokenizer_vocab_size(t), 151669);
    assert_int_equal(trd_tokenizer_bos(t), -1);
    assert_int_equal(trd_tokenizer_eos(t), 151645);
    assert_int_equal(trd_tokenizer_pad(t), 151643);
    assert_false(trd_tokenizer_adds_bos(t));
    assert_int_equal(trd_tokenizer_id(t, "<|im_start|>"), 151644);
    assert_int_equal(trd_tokenizer_id(t, "no such token"), -1);
    trd_tokenizer_close(t);
    assert_int_equal(trd_tokenizer_open("tokenizer/data/llama3-small.json", &t), TRD_OK);
    assert_int_equal(trd_tokenizer_bos(t), trd_tokenizer_id(t, "<|begin_of_text|>"));
    assert_true(trd_tokenizer_adds_bos(t));
    trd_tokenizer_close(t);
    assert_int_equal(trd_tokenizer_open(SMOLLM2, &t), TRD_OK);
    assert_int_equal(trd_tokenizer_bos(t), 1);
    assert_int_equal(trd_tokenizer_eos(t), 2);
    assert_int_equal(trd_tokenizer_pad(t), 2);
    trd_tokenizer_close(t);
    (void)state;
}

typedef struct refusal {
    const char *text;
    trd_status status;
    const char *message;
} refusal;

static void refusals(void **state)
{
    static const refusal cases[] = {
        {"", TRD_CORRUPT, "tokenizer.json"},
        {"[]", TRD_CORRUPT, "an object"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0", TRD_CORRUPT, "the end"},
        {"<!DOCTYPE html>", TRD_CORRUPT, "tokenizer.json"},
        {FILE_OF("\"vocab\":" VOCAB ",\"merges\":\"a b\"", BYTE_LEVEL, ""), TRD_CORRUPT, "an array"},
        {FILE_OF("\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]", BYTE_LEVEL, ""), TRD_CORRUPT, "twice"},
        {FILE_OF("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]", BYTE_LEVEL, ""), TRD_CORRUPT, "twice"},
        {FILE_OF("\"vocab\":{\"a\":99999999},\"merges\":[]", BYTE_LEVEL, ""), TRD_CORRUPT, "id"},
        {FILE_OF("\"vocab\":{\"a\":-1},\"merges\":[]", BYTE_LEVEL, ""), TRD_CORRUPT, "token id"},
        {FILE_OF("\"vocab\":" VOCAB ",\"merges\":[\"a c\"]", BYTE_LEVEL, ""), TRD_CORRUPT, "merge 0"},
        {FILE_OF("\"vocab\":" VOCAB ",\"merges\":[\"ab\"]", BYTE_LEVEL, ""), TRD_CORRUPT, "two tokens"},
        {FILE_OF("\"vocab\":" VOCAB ",\"merges\":[[\"a\"]]", BYTE_LEVEL, ""), TRD_CORRUPT, "','"},
        {FILE_OF("\"vocab\":" VOCAB, BYTE_LEVEL, ""), TRD_CORRUPT, "merges"},
        {FILE_OF("\"vocab\":{\"\\ud83d\":0},\"merges\":[]", BYTE_LEVEL, ""), TRD_CORRUPT, "escapes"},
        {FILE_OF("\"vocab\":" VOCAB ",\"merges\":[]", "null", ""), TRD_UNSUPPORTED, "ByteLevel"},
        {FILE_OF("\"vocab\":" VOCAB ",\"merges\":[]", "{\"type\":\"Metaspace\"}", ""), TRD_UNSUPPORTED,
         "Metaspace"},
        {FILE_OF("\"vocab\":" VOCAB ",\"merges\":[]", BYTE_LEVEL, ",\"normalizer\":{\"type\":\"Lowercase\"}"),
         TRD_UNSUPPORTED, "Lowercase"},
        {FILE_OF("\"vocab\":" VOCAB ",\"merges\":[]", BYTE_LEVEL,
                 ",\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]"),
         TRD_CORRUPT, "id 0"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", TRD_UNSUPPORTED, "WordPiece"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}", TRD_UNSUPPORTED, "Unigram"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trd_tokenizer *t;
        trd_status status = open_text(*state, cases[i].text, &t);
        if (status != cases[i].status)
            fail_msg("%s: status %d: %s", cases[i].text, status, trd_error_message());
        assert_null(t);
        expect_message(cases[i].message);
    }
    trd_tokenizer *t;
    assert_int_equal(trd_tokenizer_open(scratch_path(*state, "none/tokenizer.json"), &t), TRD_NOT_FOUND);
    assert_int_equal(trd_tokenizer_open(*state, &t), TRD_UNSUPPORTED); /* the last case's file */
}

/* Any change of bytes gives a tokenizer or an error, never a crash. */
static void mutations(void **state)
{
    size_t bytes;
    unsigned char *original = scratch_read("tokenizer/data/flags.json", &bytes);
    unsigned char *text = malloc(bytes);
    const char *path = scratch_path(*state, "mutated.json");
    int opened = 0;
    for (uint64_t round = 0; round < 600; round++) {
        memcpy(text, original, bytes);
        size_t length = round % 3 ? bytes : (size_t)trd__rng_below(round, 1, 0, bytes);
        for (uint64_t i = 0; i < round % 4; i++) {
            size_t at = (size_t)trd__rng_below(round, 2, i, bytes);
            text[at] = round % 2 ? text[trd__rng_below(round, 3, i, bytes)]
                                 : (unsigned char)trd__rng_below(round, 4, i, 256);
        }
        scratch_write(path, text, length);
        trd_tokenizer *t;
        trd_ids ids = {0};
        if (trd_tokenizer_open(path, &t) == TRD_OK) {
            opened++;
            assert_int_equal(trd_tokenizer_encode(t, "ab <l> abc word\xff caf\xc3\xa9", 22, &ids), TRD_OK);
            trd_ids_free(&ids);
        }
        trd_tokenizer_close(t);
    }
    assert_in_range(opened, 1, 599);
    free(text);
    free(original);
}

static void assert_same_ids(const trd_tokenizer *a, const trd_tokenizer *b)
{
    static const char text[] =
        "The 12 quick\n\n  <|im_start|>foxes'll jump, \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80<|im_end|>";
    trd_ids x = {0}, y = {0};
    assert_int_equal(trd_tokenizer_encode(a, text, strlen(text), &x), TRD_OK);
    assert_int_equal(trd_tokenizer_encode(b, text, strlen(text), &y), TRD_OK);
    assert_int_equal(x.count, y.count);
    assert_memory_equal(x.ids, y.ids, x.count * sizeof x.ids[0]);
    assert_int_equal(trd_tokenizer_eos(a), trd_tokenizer_eos(b));
    assert_int_equal(trd_tokenizer_pad(a), trd_tokenizer_pad(b));
    trd_ids_free(&x);
    trd_ids_free(&y);
}

static void export_gguf(void **state)
{
    trd_tokenizer *source, *copy, *chosen;
    const char *folder = scratch_path(*state, "exported"), *again = scratch_path(*state, "again");
    assert_int_equal(trd_tokenizer_open(SMOLLM2, &source), TRD_OK);
    if (trd_tokenizer_export(source, folder)) fail_msg("%s", trd_error_message());
    if (trd_tokenizer_open(folder, &copy)) fail_msg("%s", trd_error_message());
    assert_same_ids(source, copy);
    assert_string_equal(trd_tokenizer_chat_template(copy), "smollm2");
    assert_int_equal(trd_tokenizer_set_chat_template(copy, "qwen2.5"), TRD_OK);
    assert_int_equal(trd_tokenizer_export(copy, again), TRD_OK);
    assert_int_equal(trd_tokenizer_open(again, &chosen), TRD_OK);
    assert_same_ids(source, chosen);
    assert_string_equal(trd_tokenizer_chat_template(chosen), "qwen2.5");
    trd_tokenizer_close(chosen);
    trd_tokenizer_close(copy);
    trd_tokenizer_close(source);
}

static void assert_same_file(const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    unsigned char *x = scratch_read(a, &a_bytes), *y = scratch_read(b, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(x, y, a_bytes);
    free(x);
    free(y);
}

static void export_folder(void **state)
{
    trd_tokenizer *source;
    const char *folder = scratch_path(*state, "copied");
    assert_int_equal(trd_tokenizer_open(QWEN3, &source), TRD_OK);
    assert_int_equal(trd_tokenizer_export(source, folder), TRD_OK);
    assert_same_file(QWEN3 "/tokenizer.json", scratch_path(folder, "tokenizer.json"));
    assert_same_file(QWEN3 "/tokenizer_config.json", scratch_path(folder, "tokenizer_config.json"));
    trd_tokenizer_close(source);
}

/* A template in a file of its own counts, and is in the config of an export. */
static void chat_template_file(void **state)
{
    trd_tokenizer *t;
    static const char text[] = FILE_OF("\"vocab\":" VOCAB ",\"merges\":[]", BYTE_LEVEL, "");
    static const char config[] =
        "{\"eos_token\":{\"content\":\"b\"},\"chat_template\":\"{{ none }}\",\"x\":[1,null]}";
    const char *folder = scratch_path(*state, "jinja"), *out = scratch_path(*state, "jinja-out");
    assert_int_equal(trd__make_directories(folder), TRD_OK);
    scratch_write(scratch_path(folder, "tokenizer_config.json"), config, strlen(config));
    scratch_write(scratch_path(folder, "chat_template.jinja"), "{{ other }}", 11);
    assert_int_equal(open_text(folder, text, &t), TRD_OK);
    assert_int_equal(trd_tokenizer_eos(t), 1);
    assert_null(trd_tokenizer_chat_template(t));
    assert_int_equal(trd_tokenizer_export(t, out), TRD_OK);
    trd_tokenizer_close(t);
    char *written = (char *)scratch_read(scratch_path(out, "tokenizer_config.json"), &(size_t){0});
    assert_non_null(strstr(written, "{{ other }}"));
    assert_null(strstr(written, "{{ none }}"));
    assert_non_null(strstr(written, "\"x\""));
    free(written);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_of_merges), cmocka_unit_test(missing_bytes),
        cmocka_unit_test(special_tokens),  cmocka_unit_test(refusals),
        cmocka_unit_test(mutations),       cmocka_unit_test(export_gguf),
        cmocka_unit_test(export_folder),   cmocka_unit_test(chat_template_file)};
    return cmocka_run_group_tests_name("tokenizer/open", tests, scratch_create, scratch_remove);
}
