/* Writing a tokenizer as the files transformers reads. What came from a tokenizer.json goes out as it came
 * in; a GGUF's metadata is put in the words of one. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "formats/json.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer.h"

/* The token's spelling: its text, or its bytes in the byte-level alphabet. Valid until the next call. */
typedef struct speller {
    const trd_tokenizer *tokenizer;
    char *text;
    size_t capacity;
    trd_status status; /* sticks */
} speller;

static const char *spell(speller *s, int32_t id)
{
    const trd__token *token = &s->tokenizer->vocab.tokens[id];
    const uint8_t *bytes = trd__vocab_bytes(&s->tokenizer->vocab, id);
    size_t room = (size_t)token->length * 2 + 1, used = token->length;
    if (room > s->capacity) {
        char *grown = trd__realloc(s->text, room * 2, 1);
        if (!grown) {
            s->status = TRD_NO_MEMORY;
            return "";
        }
        s->text = grown;
        s->capacity = room * 2;
    }
    if (token->flags & TRD__TOKEN_TEXT)
        memcpy(s->text, bytes, used);
    else
        used = trd__byte_level_encode(&s->tokenizer->byte_level, bytes, used, s->text);
    s->text[used] = 0;
    return s->text;
}

static void put_raw(trd__json_writer *w, const char *key, const char *json)
{
    trd__json_write_key(w, key);
    trd__json_write_raw(w, json, strlen(json));
}

static void write_added_tokens(trd__json_writer *w, speller *s)
{
    const trd_tokenizer *tokenizer = s->tokenizer;
    trd__json_write_key(w, "added_tokens");
    trd__json_open_array(w);
    for (size_t i = 0; i < tokenizer->added.count; i++) {
        const trd__added_token *token = &tokenizer->added.tokens[i];
        trd__json_open_object(w);
        trd__json_put_i64(w, "id", token->id);
        trd__json_put_string(w, "content", spell(s, token->id));
        trd__json_put_bool(w, "single_word", token->single_word);
        trd__json_put_bool(w, "lstrip", token->strip_left);
        trd__json_put_bool(w, "rstrip", token->strip_right);
        trd__json_put_bool(w, "normalized", token->normalized);
        trd__json_put_bool(w, "special", token->special);
        trd__json_close(w);
    }
    trd__json_close(w);
}

#define BYTE_LEVEL                                                                                           \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}"

static void write_post_processor(trd__json_writer *w, speller *s)
{
    const trd_tokenizer *tokenizer = s->tokenizer;
    if (!tokenizer->adds_bos) {
        put_raw(w, "post_processor", "null");
        return;
    }
    const char *bos = spell(s, tokenizer->bos);
    trd__json_write_key(w, "post_processor");
    trd__json_open_object(w);
    trd__json_put_string(w, "type", "TemplateProcessing");
    static const char *const lists[] = {"single", "pair"};
    for (int list = 0; list < 2; list++) {
        trd__json_write_key(w, lists[list]);
        trd__json_open_array(w);
        for (int sequence = 0; sequence <= list; sequence++) {
            trd__json_open_object(w);
            trd__json_write_key(w, "SpecialToken");
            trd__json_open_object(w);
            trd__json_put_string(w, "id", bos);
            trd__json_put_i64(w, "type_id", sequence);
            trd__json_close(w);
            trd__json_close(w);
            const char *text = sequence ? "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}"
                                        : "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}";
            trd__json_write_raw(w, text, strlen(text));
        }
        trd__json_close(w);
    }
    trd__json_write_key(w, "special_tokens");
    trd__json_open_object(w);
    trd__json_write_key(w, bos);
    trd__json_open_object(w);
    trd__json_put_string(w, "id", bos);
    trd__json_write_key(w, "ids");
    trd__json_open_array(w);
    trd__json_write_i64(w, tokenizer->bos);
    trd__json_close(w);
    trd__json_write_key(w, "tokens");
    trd__json_open_array(w);
    trd__json_write_string(w, bos);
    trd__json_close(w);
    trd__json_close(w);
    trd__json_close(w);
    trd__json_close(w);
}

static int by_rank(const void *a, const void *b)
{
    uint32_t x = ((const trd__merge *)a)->rank, y = ((const trd__merge *)b)->rank;
    return x < y ? -1 : x > y;
}

/* "left right" of every merge in order, the form that every version of the tokenizers package reads. */
static trd_status write_merges(trd__json_writer *w, speller *left, speller *right)
{
    const trd__bpe *bpe = &left->tokenizer->bpe;
    size_t count = 0;
    trd__merge *merges = trd__alloc(bpe->count + 1, sizeof *merges);
    if (!merges) return TRD_NO_MEMORY;
    for (size_t i = 0; i <= bpe->slot_mask; i++)
        if (bpe->slots[i].pair != UINT64_MAX) merges[count++] = bpe->slots[i];
    qsort(merges, count, sizeof *merges, by_rank);
    trd__json_write_key(w, "merges");
    trd__json_open_array(w);
    trd_status status = TRD_OK;
    for (size_t i = 0; i < count && !status; i++) {
        char *merge = trd__format("%s %s", spell(left, (int32_t)(merges[i].pair >> 32)),
                                  spell(right, (int32_t)(uint32_t)merges[i].pair));
        if (!merge)
            status = TRD_NO_MEMORY;
        else
            trd__json_write_string(w, merge);
        trd__free(merge);
    }
    trd__json_close(w);
    trd__free(merges);
    return status;
}

static trd_status write_model(trd__json_writer *w, speller *s)
{
    const trd_tokenizer *tokenizer = s->tokenizer;
    speller other = {.tokenizer = tokenizer};
    trd__json_write_key(w, "model");
    trd__json_open_object(w);
    trd__json_put_string(w, "type", "BPE");
    put_raw(w, "dropout", "null");
    put_raw(w, "unk_token", "null");
    put_raw(w, "continuing_subword_prefix", "null");
    put_raw(w, "end_of_word_suffix", "null");
    trd__json_put_bool(w, "fuse_unk", false);
    trd__json_put_bool(w, "byte_fallback", false);
    trd__json_put_bool(w, "ignore_merges", tokenizer->ignore_merges);
    trd__json_write_key(w, "vocab");
    trd__json_open_object(w);
    for (int32_t id = 0; id < tokenizer->vocab.size; id++)
        if (tokenizer->vocab.tokens[id].flags) trd__json_put_i64(w, spell(s, id), id);
    trd__json_close(w);
    trd_status status = write_merges(w, s, &other);
    trd__json_close(w);
    trd__free(other.text);
    return status ? status : other.status;
}

/* tokenizer.json of a tokenizer from a GGUF. */
static trd_status write_tokenizer(const trd_tokenizer *tokenizer, trd__json_writer *w)
{
    speller s = {.tokenizer = tokenizer};
    w->indent = 1;
    trd__json_open_object(w);
    trd__json_put_string(w, "version", "1.0");
    put_raw(w, "truncation", "null");
    put_raw(w, "padding", "null");
    write_added_tokens(w, &s);
    put_raw(w, "normalizer", tokenizer->gguf->normalizer);
    put_raw(w, "pre_tokenizer", tokenizer->gguf->pre_tokenizer);
    write_post_processor(w, &s);
    put_raw(w, "decoder", BYTE_LEVEL);
    trd_status status = write_model(w, &s);
    trd__json_close(w);
    trd__free(s.text);
    if (!status) status = s.status;
    return status ? status : trd__json_finish(w);
}

static void put_special(trd__json_writer *w, speller *s, const char *key, int32_t id)
{
    if (id >= 0) trd__json_put_string(w, key, spell(s, id));
}

/* The source's tokenizer_config.json without its chat template, or one that says what is known. The generic
 * class takes tokenizer.json as it is; the families' own classes rebuild parts of it. */
static trd_status begin_config(const trd_tokenizer *tokenizer, trd__json_writer *w)
{
    trd__json_doc *doc;
    w->indent = 2;
    trd__json_open_object(w);
    if (tokenizer->config_text) {
        TRD_TRY(trd__json_parse(tokenizer->config_text, strlen(tokenizer->config_text),
                                "tokenizer_config.json", &doc));
        trd__json v = trd__json_first(trd__json_root(doc));
        for (; trd__json_exists(v); v = trd__json_next(v)) {
            if (strcmp(trd__json_key(v), "chat_template") == 0) continue;
            trd__json_write_key(w, trd__json_key(v));
            trd__json_write_value(w, v);
        }
        trd__json_free(doc);
        return TRD_OK;
    }
    speller s = {.tokenizer = tokenizer};
    trd__json_put_string(w, "tokenizer_class", "PreTrainedTokenizerFast");
    put_special(w, &s, "bos_token", tokenizer->bos);
    put_special(w, &s, "eos_token", tokenizer->eos);
    put_special(w, &s, "pad_token", tokenizer->pad);
    trd__json_put_bool(w, "clean_up_tokenization_spaces", false);
    trd__free(s.text);
    return s.status;
}

static trd_status write_config(const trd_tokenizer *tokenizer, trd__json_writer *w)
{
    TRD_TRY(begin_config(tokenizer, w));
    const char *chat = tokenizer->chat_chosen ? tokenizer->chat->text : tokenizer->chat_text;
    if (chat) trd__json_put_string(w, "chat_template", chat);
    trd__json_close(w);
    return trd__json_finish(w);
}

static trd_status save(const char *folder, const char *name, const void *data, size_t bytes)
{
    char *path = trd__path_join(folder, name);
    if (!path) return TRD_NO_MEMORY;
    trd_status status = trd__file_save(path, data, bytes);
    trd__free(path);
    return status;
}

/* The config as it was, unless another template belongs in it: one chosen, or the one of a file of its own.
 */
static trd_status export_config(const trd_tokenizer *tokenizer, const char *folder)
{
    trd__json_writer w = {0};
    if (tokenizer->config_text && !tokenizer->chat_chosen && !tokenizer->chat_file)
        return save(folder, "tokenizer_config.json", tokenizer->config_text, strlen(tokenizer->config_text));
    trd_status status = write_config(tokenizer, &w);
    if (!status) status = save(folder, "tokenizer_config.json", w.text, w.bytes);
    trd__json_writer_free(&w);
    return status;
}

trd_status trd_tokenizer_export(const trd_tokenizer *tokenizer, const char *folder)
{
    trd__json_writer w = {0};
    trd_status status = trd__make_directories(folder);
    if (!status && !tokenizer->gguf) {
        status = save(folder, "tokenizer.json", tokenizer->json.data, tokenizer->json.bytes);
    } else if (!status) {
        status = write_tokenizer(tokenizer, &w);
        if (!status) status = save(folder, "tokenizer.json", w.text, w.bytes);
    }
    trd__json_writer_free(&w);
    if (!status) status = export_config(tokenizer, folder);
    return status ? trd__fail_in(status, "exporting the tokenizer to %s", folder) : TRD_OK;
}
