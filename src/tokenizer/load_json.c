/* tokenizer.json and tokenizer_config.json of the tokenizers and transformers packages. A part that is not
 * implemented is refused by name: encoding with a step left out would be silently wrong. */
#include <string.h>

#include "base/alloc.h"
#include "formats/json.h"
#include "tokenizer/model_json.h"
#include "tokenizer/tokenizer.h"

static bool is(trd__json value, const char *text)
{
    const char *found;
    return trd__json_kind_of(value) == TRD__JSON_STRING && !trd__json_as_string(value, &found) &&
           strcmp(found, text) == 0;
}

static bool given(trd__json value)
{
    return trd__json_kind_of(value) > TRD__JSON_NULL;
}

/* "type" of a part, "" if it has none. */
static const char *type_of(trd__json part)
{
    const char *type = "";
    trd__json value = trd__json_find(part, "type");
    if (trd__json_kind_of(value) == TRD__JSON_STRING) (void)trd__json_as_string(value, &type);
    return type;
}

static trd_status unsupported(trd__json part, const char *what, const char *known)
{
    return trd__json_fail(part, TRD_UNSUPPORTED, "%s of type \"%s\" is not supported; known: %s", what,
                          type_of(part), known);
}

static trd_status read_normalizer(trd_tokenizer *tokenizer, trd__json part)
{
    if (!given(part)) return TRD_OK;
    if (strcmp(type_of(part), "NFC") == 0) {
        tokenizer->nfc = true;
        return TRD_OK;
    }
    if (strcmp(type_of(part), "Sequence") != 0) return unsupported(part, "normalizer", "NFC, Sequence");
    trd__json list;
    TRD_TRY(trd__json_get_array(part, "normalizers", &list));
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v))
        TRD_TRY(read_normalizer(tokenizer, v));
    return TRD_OK;
}

static trd_status read_split(trd_tokenizer *tokenizer, trd__json part)
{
    bool invert = false;
    const char *pattern;
    TRD_TRY(trd__json_opt_bool(part, "invert", &invert));
    if (invert || !is(trd__json_find(part, "behavior"), "Isolated"))
        return trd__json_fail(part, TRD_UNSUPPORTED,
                              "expected a split with behavior \"Isolated\", not inverted");
    TRD_TRY(trd__json_get_string(trd__json_find(part, "pattern"), "Regex", &pattern));
    return trd__splitter_add_pattern(&tokenizer->splitter, pattern);
}

/* *byte_level becomes true when the step that makes bytes of the text is met. */
static trd_status read_pre_tokenizer(trd_tokenizer *tokenizer, trd__json part, bool *byte_level)
{
    bool flag = false;
    const char *type = type_of(part);
    if (!given(part)) return TRD_OK;
    if (strcmp(type, "Split") == 0) return read_split(tokenizer, part);
    if (strcmp(type, "Digits") == 0) {
        TRD_TRY(trd__json_opt_bool(part, "individual_digits", &flag));
        return trd__splitter_add_digits(&tokenizer->splitter, flag);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        *byte_level = true;
        TRD_TRY(trd__json_opt_bool(part, "add_prefix_space", &flag));
        if (flag)
            return trd__json_fail(part, TRD_UNSUPPORTED,
                                  "add_prefix_space: expected false, found true (it does not "
                                  "give the text back)");
        flag = true;
        TRD_TRY(trd__json_opt_bool(part, "use_regex", &flag));
        return flag ? trd__splitter_add_gpt2(&tokenizer->splitter) : TRD_OK;
    }
    if (strcmp(type, "Sequence") != 0)
        return unsupported(part, "pre-tokenizer", "ByteLevel, Digits, Sequence, Split");
    trd__json list;
    TRD_TRY(trd__json_get_array(part, "pretokenizers", &list));
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v))
        TRD_TRY(read_pre_tokenizer(tokenizer, v, byte_level));
    return TRD_OK;
}

trd_status trd__tokenizer_set_steps(trd_tokenizer *tokenizer, const char *normalizer,
                                    const char *pre_tokenizer)
{
    trd__json_doc *doc;
    bool byte_level;
    TRD_TRY(trd__json_parse(normalizer, strlen(normalizer), "normalizer", &doc));
    trd_status status = read_normalizer(tokenizer, trd__json_root(doc));
    trd__json_free(doc);
    if (status) return status;
    TRD_TRY(trd__json_parse(pre_tokenizer, strlen(pre_tokenizer), "pre-tokenizer", &doc));
    status = read_pre_tokenizer(tokenizer, trd__json_root(doc), &byte_level);
    trd__json_free(doc);
    return status;
}

static trd_status read_model(trd_tokenizer *tokenizer, trd__json model, const char **unknown)
{
    double dropout = 0;
    const char *prefix = "", *suffix = "";
    if (!is(trd__json_find(model, "type"), "BPE")) return unsupported(model, "model", "BPE");
    TRD_TRY(trd__json_opt_f64(model, "dropout", &dropout));
    TRD_TRY(trd__json_opt_string(model, "continuing_subword_prefix", &prefix));
    TRD_TRY(trd__json_opt_string(model, "end_of_word_suffix", &suffix));
    if (dropout != 0 || *prefix || *suffix)
        return trd__json_fail(model, TRD_UNSUPPORTED,
                              "expected no dropout, continuing_subword_prefix or end_of_word_suffix");
    TRD_TRY(trd__json_opt_bool(model, "byte_fallback", &tokenizer->byte_fallback));
    TRD_TRY(trd__json_opt_bool(model, "fuse_unk", &tokenizer->fuse_unknown));
    TRD_TRY(trd__json_opt_bool(model, "ignore_merges", &tokenizer->ignore_merges));
    return trd__json_opt_string(model, "unk_token", unknown);
}

static trd_status read_added_tokens(trd_tokenizer *tokenizer, trd__json list)
{
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v)) {
        const char *content;
        int64_t id;
        trd__added_token token = {0};
        TRD_TRY(trd__json_get_string(v, "content", &content));
        TRD_TRY(trd__json_get_i64(v, "id", &id));
        TRD_TRY(trd__json_opt_bool(v, "special", &token.special));
        TRD_TRY(trd__json_opt_bool(v, "single_word", &token.single_word));
        TRD_TRY(trd__json_opt_bool(v, "lstrip", &token.strip_left));
        TRD_TRY(trd__json_opt_bool(v, "rstrip", &token.strip_right));
        token.normalized = !token.special;
        TRD_TRY(trd__json_opt_bool(v, "normalized", &token.normalized));
        if (id < 0 || id > INT32_MAX)
            return trd__json_fail(v, TRD_CORRUPT, "token id %lld is out of range", (long long)id);
        token.id = (int32_t)id;
        TRD_TRY(trd__tokenizer_add_added(tokenizer, token, content, strlen(content)));
    }
    return TRD_OK;
}

/* A template processor that starts a single text with a special token: BOS. */
static trd_status read_post_processor(trd_tokenizer *tokenizer, trd__json part)
{
    const char *token;
    if (strcmp(type_of(part), "Sequence") == 0) {
        trd__json list = trd__json_find(part, "processors");
        for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v))
            TRD_TRY(read_post_processor(tokenizer, v));
    }
    trd__json first = trd__json_find(trd__json_first(trd__json_find(part, "single")), "SpecialToken");
    if (strcmp(type_of(part), "TemplateProcessing") != 0 || !given(first)) return TRD_OK;
    TRD_TRY(trd__json_get_string(first, "id", &token));
    tokenizer->bos = trd_tokenizer_id(tokenizer, token);
    tokenizer->adds_bos = tokenizer->bos >= 0;
    return TRD_OK;
}

static trd_status take_token(void *context, int64_t id, trd__json_text token)
{
    return trd__tokenizer_add_token(context, id, token.text, token.bytes);
}

static trd_status take_merge(void *context, trd__json_text left, trd__json_text right)
{
    return trd__tokenizer_add_merge(context, left.text, left.bytes, right.text, right.bytes);
}

static trd_status read_tokenizer(trd_tokenizer *tokenizer, trd__json root)
{
    const char *unknown = NULL;
    bool byte_level = false;
    TRD_TRY(read_model(tokenizer, trd__json_find(root, "model"), &unknown));
    TRD_TRY(read_normalizer(tokenizer, trd__json_find(root, "normalizer")));
    TRD_TRY(read_pre_tokenizer(tokenizer, trd__json_find(root, "pre_tokenizer"), &byte_level));
    if (!byte_level)
        return trd__json_fail(root, TRD_UNSUPPORTED,
                              "expected a byte-level tokenizer (a ByteLevel pre-tokenizer)");
    /* Tables that were read are null in what is left of the file. */
    trd__json merges = trd__json_find(trd__json_find(root, "model"), "merges");
    if (!tokenizer->vocab.size || trd__json_kind_of(merges) != TRD__JSON_NULL)
        return trd__json_fail(root, TRD_CORRUPT,
                              "expected model.vocab, an object, and model.merges, an array");
    TRD_TRY(read_added_tokens(tokenizer, trd__json_find(root, "added_tokens")));
    if (unknown) tokenizer->unknown = trd_tokenizer_id(tokenizer, unknown);
    TRD_TRY(read_post_processor(tokenizer, trd__json_find(root, "post_processor")));
    return trd__tokenizer_finish(tokenizer);
}

static trd_status load_tokenizer(trd_tokenizer *tokenizer, const char *path)
{
    const trd__model_sink sink = {take_token, take_merge, tokenizer};
    char *rest = NULL;
    size_t rest_bytes;
    trd__json_doc *doc = NULL;
    TRD_TRY(trd__file_map_open(path, &tokenizer->json));
    /* An entry of the vocabulary and its merge take about 75 bytes of the file, 7 of them the token's. */
    size_t bytes = tokenizer->json.bytes, entries = bytes / 75;
    TRD_TRY(trd__vocab_init(&tokenizer->vocab, entries, entries * 7));
    TRD_TRY(trd__bpe_init(&tokenizer->bpe, entries));
    TRD_TRY(trd__model_json_read(path, (const char *)tokenizer->json.data, bytes, &sink, &rest, &rest_bytes));
    trd_status status = trd__json_parse(rest, rest_bytes, path, &doc);
    if (!status) status = read_tokenizer(tokenizer, trd__json_root(doc));
    trd__json_free(doc);
    trd__free(rest);
    return status;
}

/* A special token of tokenizer_config.json: its text, or an object with it as content. */
static void read_special(const trd_tokenizer *tokenizer, trd__json config, const char *key, int32_t *id)
{
    const char *text;
    trd__json value = trd__json_find(config, key);
    if (trd__json_kind_of(value) == TRD__JSON_OBJECT) value = trd__json_find(value, "content");
    if (trd__json_kind_of(value) != TRD__JSON_STRING || trd__json_as_string(value, &text)) return;
    *id = trd_tokenizer_id(tokenizer, text);
}

/* chat_template: a text, or a list of {name, template} of which "default" counts. */
static trd_status read_chat_template(trd_tokenizer *tokenizer, trd__json config)
{
    const char *text;
    trd__json value = trd__json_find(config, "chat_template");
    if (trd__json_kind_of(value) == TRD__JSON_ARRAY) {
        trd__json v = trd__json_first(value);
        while (trd__json_exists(v) && !is(trd__json_find(v, "name"), "default")) v = trd__json_next(v);
        value = trd__json_find(v, "template");
    }
    if (!given(value)) return TRD_OK;
    TRD_TRY(trd__json_as_string(value, &text));
    return trd__tokenizer_take_chat(tokenizer, text, strlen(text));
}

static trd_status read_config(trd_tokenizer *tokenizer, trd__json config)
{
    bool add_bos = false;
    read_special(tokenizer, config, "bos_token", &tokenizer->bos);
    read_special(tokenizer, config, "eos_token", &tokenizer->eos);
    read_special(tokenizer, config, "pad_token", &tokenizer->pad);
    TRD_TRY(trd__json_opt_bool(config, "add_bos_token", &add_bos));
    tokenizer->adds_bos |= add_bos && tokenizer->bos >= 0;
    return read_chat_template(tokenizer, config);
}

/* Reads the optional file name in folder whole; *text stays NULL when there is none. */
static trd_status read_beside(const char *folder, const char *name, char **path, char **text, size_t *bytes)
{
    trd__file_map map;
    if (!(*path = trd__path_join(folder, name))) return TRD_NO_MEMORY;
    if (!trd__file_exists(*path)) return TRD_OK;
    TRD_TRY(trd__file_map_open(*path, &map));
    *bytes = map.bytes;
    if ((*text = trd__alloc(map.bytes + 1, 1))) {
        if (map.bytes) memcpy(*text, map.data, map.bytes);
        (*text)[map.bytes] = 0;
    }
    trd__file_map_close(&map);
    return *text ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status load_config(trd_tokenizer *tokenizer, const char *folder)
{
    char *path = NULL;
    size_t bytes = 0;
    trd__json_doc *doc = NULL;
    trd_status status = read_beside(folder, "tokenizer_config.json", &path, &tokenizer->config_text, &bytes);
    if (!status && tokenizer->config_text) {
        status = trd__json_parse(tokenizer->config_text, bytes, path, &doc);
        if (!status) status = read_config(tokenizer, trd__json_root(doc));
        trd__json_free(doc);
    }
    trd__free(path);
    return status;
}

/* Newer transformers save the template in a file of its own, which counts before the one in the config. */
static trd_status load_chat_file(trd_tokenizer *tokenizer, const char *folder)
{
    char *path = NULL, *text = NULL;
    size_t bytes = 0;
    trd_status status = read_beside(folder, "chat_template.jinja", &path, &text, &bytes);
    if (!status && text) {
        tokenizer->chat_file = true;
        status = trd__tokenizer_take_chat(tokenizer, text, bytes);
    }
    trd__free(text);
    trd__free(path);
    return status;
}

trd_status trd__tokenizer_load_json(trd_tokenizer *tokenizer, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? trd__format("%.*s", (int)(slash - path + 1), path) : trd__strdup(".");
    if (!folder) return TRD_NO_MEMORY;
    trd_status status = load_tokenizer(tokenizer, path);
    if (!status) status = load_config(tokenizer, folder);
    if (!status) status = load_chat_file(tokenizer, folder);
    trd__free(folder);
    return status;
}
