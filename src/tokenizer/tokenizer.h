/* The tokenizer's own struct and what its files share. Filled by one of the loaders, then immutable but for
 * the choice of a chat template. */
#ifndef TRD_TOKENIZER_TOKENIZER_H
#define TRD_TOKENIZER_TOKENIZER_H

#include <treadle/tokenizer.h>

#include "base/file.h"
#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/split.h"
#include "tokenizer/vocab.h"

struct trd__chat_template;

/* What a value of tokenizer.ggml.pre means, in the words of a tokenizer.json. */
typedef struct trd__gguf_pre {
    const char *name;
    const char *normalizer;    /* JSON */
    const char *pre_tokenizer; /* JSON */
    bool ignore_merges;
} trd__gguf_pre;

struct trd_tokenizer {
    trd__unicode unicode;
    trd__byte_level byte_level;
    trd__vocab vocab;
    trd__bpe bpe;
    trd__added added;
    trd__splitter splitter;
    int32_t last_result;   /* while merges are read: what the last one made */
    int32_t byte_ids[256]; /* token of each byte, -1: none */
    int32_t unknown;       /* -1: a byte without token is left out */
    bool fuse_unknown;     /* one unknown token for a run of such bytes */
    bool byte_fallback;    /* bytes without a character token use <0xXX> */
    bool ignore_merges;    /* a word of the vocabulary is its token whatever the merges say */
    bool nfc;
    int32_t bos, eos, pad; /* -1: none */
    bool adds_bos;

    const struct trd__chat_template *chat; /* NULL: none, or not known */
    char *chat_text;                       /* as in the source, NULL: none */
    bool chat_file;                        /* chat_text is from chat_template.jinja, not from the config */
    bool chat_chosen;                      /* by name: export writes the known text */

    trd__file_map json;        /* tokenizer.json, kept open for export; unset for a GGUF */
    char *config_text;         /* tokenizer_config.json, NULL: none */
    const trd__gguf_pre *gguf; /* NULL: from a tokenizer.json */
};

/* Loaders fill a zeroed tokenizer (unicode and byte_level set up). */
trd_status trd__tokenizer_load_json(trd_tokenizer *tokenizer, const char *path);
trd_status trd__tokenizer_load_gguf(trd_tokenizer *tokenizer, const char *path);

/* Sets normalizer and pre-tokenizer from their JSON, as in a tokenizer.json. */
trd_status trd__tokenizer_set_steps(trd_tokenizer *tokenizer, const char *normalizer,
                                    const char *pre_tokenizer);

/* Building blocks of the loaders. Texts are as in the file, in the byte-level alphabet where they can be. */
trd_status trd__tokenizer_add_token(trd_tokenizer *tokenizer, int64_t id, const char *text, size_t bytes);
trd_status trd__tokenizer_add_merge(trd_tokenizer *tokenizer, const char *left, size_t left_bytes,
                                    const char *right, size_t right_bytes);
/* Declares an added token, which may be in the vocabulary already. */
trd_status trd__tokenizer_add_added(trd_tokenizer *tokenizer, trd__added_token token, const char *text,
                                    size_t bytes);
/* After tokens, merges and added tokens: byte tokens and the tokens that merging gives back. */
trd_status trd__tokenizer_finish(trd_tokenizer *tokenizer);
/* Takes a chat template's text from a file: kept, and recognized by its hash. */
trd_status trd__tokenizer_take_chat(trd_tokenizer *tokenizer, const char *text, size_t bytes);

/* Room for extra more ids (and loss mask values where there is a mask). */
trd_status trd__ids_reserve(trd_ids *ids, size_t extra);
trd_status trd__ids_with_mask(trd_ids *ids); /* gives ids a mask, 0 for what it holds */

#endif
