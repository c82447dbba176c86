/* The tokenizer of a GGUF's metadata (tokenizer.ggml.*). Its pre-tokenizer is only a name there: the table
 * says what the names mean. */
#include <string.h>

#include "base/alloc.h"
#include "formats/gguf.h"
#include "tokenizer/tokenizer.h"

#define SPLIT(pattern)                                                                                       \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern        \
    "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"    \
    "\"trim_offsets\":true,\"use_regex\":false}]}"
#define FAMILY(numbers)                                                                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" numbers                          \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define BYTE_LEVEL                                                                                           \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"

static const trd__gguf_pre pre_tokenizers[] = {
    {"smollm", "null",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}," BYTE_LEVEL
     "]}",
     false},
    {"qwen2", "{\"type\":\"NFC\"}", SPLIT(FAMILY("\\\\p{N}")), false},
    {"llama-bpe", "null", SPLIT(FAMILY("\\\\p{N}{1,3}")), true},
    {"gpt-2", "null", BYTE_LEVEL, false},
};

/* Values of tokenizer.ggml.token_type that matter here. */
enum { TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4 };

static trd_status find_pre_tokenizer(const char *path, trd__gguf_string name, const trd__gguf_pre **pre)
{
    char known[256] = "";
    for (size_t i = 0; i < sizeof pre_tokenizers / sizeof pre_tokenizers[0]; i++) {
        *pre = &pre_tokenizers[i];
        if (strlen((*pre)->name) == name.bytes && memcmp((*pre)->name, name.text, name.bytes) == 0)
            return TRD_OK;
        strcat(strcat(known, i ? ", " : ""), (*pre)->name);
    }
    return trd__fail(TRD_UNSUPPORTED, "%s: tokenizer.ggml.pre \"%.*s\" is not supported; known: %s", path,
                     (int)name.bytes, name.text, known);
}

static trd_status read_tokens(trd_tokenizer *tokenizer, const trd__gguf *file)
{
    const trd__gguf_string *tokens;
    size_t count, bytes = 0;
    TRD_TRY(trd__gguf_get_strings(file, "tokenizer.ggml.tokens", &tokens, &count));
    const trd__gguf_value *types = trd__gguf_find(file, "tokenizer.ggml.token_type");
    if (types && (types->count != count || types->strings || types->kind != TRD__GGUF_ARRAY))
        return trd__fail(TRD_CORRUPT,
                         "tokenizer.ggml.token_type: expected %zu numbers, one a token, found %zu", count,
                         types->count);
    for (size_t i = 0; i < count; i++) bytes += tokens[i].bytes;
    TRD_TRY(trd__vocab_init(&tokenizer->vocab, count, bytes));
    for (size_t i = 0; i < count; i++) {
        int type = types ? (int)trd__gguf_number(types, i) : 0;
        trd__added_token added = {.id = (int32_t)i, .special = type == TYPE_CONTROL};
        if (type == TYPE_CONTROL || type == TYPE_USER_DEFINED)
            TRD_TRY(trd__tokenizer_add_added(tokenizer, added, tokens[i].text, tokens[i].bytes));
        else
            TRD_TRY(trd__tokenizer_add_token(tokenizer, (int64_t)i, tokens[i].text, tokens[i].bytes));
    }
    return TRD_OK;
}

static trd_status read_merges(trd_tokenizer *tokenizer, const trd__gguf *file)
{
    const trd__gguf_string *merges;
    size_t count;
    TRD_TRY(trd__gguf_get_strings(file, "tokenizer.ggml.merges", &merges, &count));
    TRD_TRY(trd__bpe_init(&tokenizer->bpe, count));
    for (size_t i = 0; i < count; i++) {
        const char *text = merges[i].text,
                   *space = merges[i].bytes ? memchr(text, ' ', merges[i].bytes) : NULL;
        if (!space)
            return trd__fail(TRD_CORRUPT,
                             "tokenizer.ggml.merges: merge %zu: expected two tokens with a space between", i);
        size_t left = (size_t)(space - text);
        TRD_TRY(trd__tokenizer_add_merge(tokenizer, text, left, space + 1, merges[i].bytes - left - 1));
    }
    return TRD_OK;
}

static trd_status read_special(const trd_tokenizer *tokenizer, const trd__gguf *file, const char *key,
                               int32_t *id)
{
    int64_t value = -1;
    TRD_TRY(trd__gguf_opt_i64(file, key, &value));
    if (value >= tokenizer->vocab.size)
        return trd__fail(TRD_CORRUPT, "%s: expected a token id below %d, found %lld", key,
                         tokenizer->vocab.size, (long long)value);
    *id = value < 0 ? -1 : (int32_t)value;
    return TRD_OK;
}

static trd_status read_tokenizer(trd_tokenizer *tokenizer, const trd__gguf *file, const char *path)
{
    trd__gguf_string model, pre = {"", 0}, chat = {NULL, 0};
    TRD_TRY(trd__gguf_get_string(file, "tokenizer.ggml.model", &model));
    if (model.bytes != 4 || memcmp(model.text, "gpt2", 4) != 0)
        return trd__fail(TRD_UNSUPPORTED,
                         "tokenizer.ggml.model: expected \"gpt2\" (byte-level BPE), found \"%.*s\"",
                         (int)model.bytes, model.text);
    TRD_TRY(trd__gguf_opt_string(file, "tokenizer.ggml.pre", &pre));
    TRD_TRY(find_pre_tokenizer(path, pre, &tokenizer->gguf));
    TRD_TRY(trd__tokenizer_set_steps(tokenizer, tokenizer->gguf->normalizer, tokenizer->gguf->pre_tokenizer));
    tokenizer->ignore_merges = tokenizer->gguf->ignore_merges;
    TRD_TRY(read_tokens(tokenizer, file));
    TRD_TRY(read_merges(tokenizer, file));
    TRD_TRY(read_special(tokenizer, file, "tokenizer.ggml.bos_token_id", &tokenizer->bos));
    TRD_TRY(read_special(tokenizer, file, "tokenizer.ggml.eos_token_id", &tokenizer->eos));
    TRD_TRY(read_special(tokenizer, file, "tokenizer.ggml.padding_token_id", &tokenizer->pad));
    TRD_TRY(trd__gguf_opt_bool(file, "tokenizer.ggml.add_bos_token", &tokenizer->adds_bos));
    tokenizer->adds_bos &= tokenizer->bos >= 0;
    TRD_TRY(trd__gguf_opt_string(file, "tokenizer.chat_template", &chat));
    if (chat.text) TRD_TRY(trd__tokenizer_take_chat(tokenizer, chat.text, chat.bytes));
    return trd__tokenizer_finish(tokenizer);
}

trd_status trd__tokenizer_load_gguf(trd_tokenizer *tokenizer, const char *path)
{
    trd__gguf *file;
    TRD_TRY(trd__gguf_open(path, &file));
    trd_status status = read_tokenizer(tokenizer, file, path);
    trd__gguf_close(file);
    return status;
}
