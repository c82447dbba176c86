/* Opening, closing and the small questions. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "tokenizer/chat.h"

/* A file is JSON by its name or its first byte; anything else is for the GGUF reader to take or to name. */
static trd_status load_file(trd_tokenizer *tokenizer, const char *path)
{
    size_t length = strlen(path);
    bool json = length >= 5 && strcmp(path + length - 5, ".json") == 0;
    if (!json) {
        trd__file_map map;
        TRD_TRY(trd__file_map_open(path, &map));
        json = map.bytes > 0 && map.data[0] == '{';
        trd__file_map_close(&map);
    }
    return json ? trd__tokenizer_load_json(tokenizer, path) : trd__tokenizer_load_gguf(tokenizer, path);
}

static trd_status load(trd_tokenizer *tokenizer, const char *path)
{
    if (!trd__is_directory(path)) return load_file(tokenizer, path);
    char *file = trd__path_join(path, "tokenizer.json");
    if (!file) return TRD_NO_MEMORY;
    trd_status status = trd__tokenizer_load_json(tokenizer, file);
    trd__free(file);
    return status;
}

trd_status trd_tokenizer_open(const char *path, trd_tokenizer **tokenizer)
{
    *tokenizer = NULL;
    trd_tokenizer *t = trd__calloc(1, sizeof *t);
    if (!t) return TRD_NO_MEMORY;
    t->unknown = t->bos = t->eos = t->pad = -1;
    t->splitter.unicode = t->added.unicode = &t->unicode;
    trd__unicode_init(&t->unicode);
    trd__byte_level_init(&t->byte_level);
    trd_status status = load(t, path);
    if (status) {
        trd_tokenizer_close(t);
        return trd__fail_in(status, "opening the tokenizer %s", path);
    }
    *tokenizer = t;
    return TRD_OK;
}

void trd_tokenizer_close(trd_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    trd__splitter_free(&tokenizer->splitter);
    trd__added_free(&tokenizer->added);
    trd__bpe_free(&tokenizer->bpe);
    trd__vocab_free(&tokenizer->vocab);
    trd__file_map_close(&tokenizer->json);
    trd__free(tokenizer->config_text);
    trd__free(tokenizer->chat_text);
    trd__free(tokenizer);
}

int32_t trd_tokenizer_vocab_size(const trd_tokenizer *tokenizer)
{
    return tokenizer->vocab.size;
}

int32_t trd_tokenizer_bos(const trd_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t trd_tokenizer_eos(const trd_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

int32_t trd_tokenizer_pad(const trd_tokenizer *tokenizer)
{
    return tokenizer->pad;
}

bool trd_tokenizer_adds_bos(const trd_tokenizer *tokenizer)
{
    return tokenizer->adds_bos;
}

int32_t trd_tokenizer_id(const trd_tokenizer *tokenizer, const char *token)
{
    size_t bytes = strlen(token);
    for (size_t i = 0; i < tokenizer->added.count; i++) {
        int32_t id = tokenizer->added.tokens[i].id;
        const trd__token *held = &tokenizer->vocab.tokens[id];
        if (held->length == bytes && memcmp(trd__vocab_bytes(&tokenizer->vocab, id), token, bytes) == 0)
            return id;
    }
    return trd__vocab_find(&tokenizer->vocab, (const uint8_t *)token, bytes);
}

trd_status trd__tokenizer_take_chat(trd_tokenizer *tokenizer, const char *text, size_t bytes)
{
    trd__free(tokenizer->chat_text);
    if (!(tokenizer->chat_text = trd__format("%.*s", (int)bytes, text))) return TRD_NO_MEMORY;
    tokenizer->chat = trd__chat_recognize(text, bytes);
    return TRD_OK;
}

const char *trd_tokenizer_chat_template(const trd_tokenizer *tokenizer)
{
    return tokenizer->chat ? trd__chat_name(tokenizer->chat) : NULL;
}

trd_status trd_tokenizer_set_chat_template(trd_tokenizer *tokenizer, const char *name)
{
    const trd__chat_template *chat;
    TRD_TRY(trd__chat_find(name, &chat));
    tokenizer->chat = chat;
    tokenizer->chat_chosen = true;
    return TRD_OK;
}
