/* Tokenizers: byte-level BPE from a tokenizer.json, a Hugging Face folder or GGUF metadata, and the chat
 * templates that go with them.
 *
 * A tokenizer is immutable once open: any number of threads may use it. Texts are bytes; invalid UTF-8 is
 * encoded byte by byte. Decoding gives the text back exactly, except where the tokenizer itself normalizes
 * (Qwen's NFC) or its vocabulary lacks a byte (SmolLM2 lacks 21 that English text does not use): such a byte
 * gives the file's unknown token, or nothing when it names none, as in the tokenizers package. */
#ifndef TREADLE_TOKENIZER_H
#define TREADLE_TOKENIZER_H

#include <treadle/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opaque: trd_tokenizer_open makes one, trd_tokenizer_close frees it. */
typedef struct trd_tokenizer trd_tokenizer;

/* A growing list of token ids. Zero-initialize; free with trd_ids_free. */
typedef struct trd_ids {
    int32_t *ids;       /* count of them */
    uint8_t *loss_mask; /* filled by trd_tokenizer_chat: 1 where the token carries loss; else NULL */
    size_t count;       /* ids in use */
    size_t capacity;    /* ids there is room for */
} trd_ids;

TRD_API void trd_ids_free(trd_ids *ids); /* frees what the list holds and zeroes it */

/* Opens path: a tokenizer.json, a folder that holds one (tokenizer_config.json beside it is read for the chat
 * template and the special tokens), or a GGUF file. Errors: TRD_NOT_FOUND, TRD_CORRUPT, TRD_UNSUPPORTED. */
TRD_API trd_status trd_tokenizer_open(const char *path, trd_tokenizer **tokenizer);
TRD_API void trd_tokenizer_close(trd_tokenizer *tokenizer); /* NULL is fine */

TRD_API int32_t trd_tokenizer_vocab_size(const trd_tokenizer *tokenizer); /* highest id + 1 */
TRD_API int32_t trd_tokenizer_bos(const trd_tokenizer *tokenizer);        /* -1: none */
TRD_API int32_t trd_tokenizer_eos(const trd_tokenizer *tokenizer);        /* -1: none */
TRD_API int32_t trd_tokenizer_pad(const trd_tokenizer *tokenizer);        /* -1: none */
/* True where the tokenizer's own post-processor puts BOS before a text. */
TRD_API bool trd_tokenizer_adds_bos(const trd_tokenizer *tokenizer);
/* Id of a token by its exact text (special tokens too), -1 if there is none. */
TRD_API int32_t trd_tokenizer_id(const trd_tokenizer *tokenizer, const char *token);

/* Appends text's ids to ids. Special tokens in the text are recognized; none is added. */
TRD_API trd_status trd_tokenizer_encode(const trd_tokenizer *tokenizer, const char *text, size_t bytes,
                                        trd_ids *ids);

/* Bytes of the ids, as one malloc-style block: free with trd_text_free. Special tokens are kept when
 * keep_special, else left out. An id outside the vocabulary is TRD_INVALID_ARGUMENT. */
TRD_API trd_status trd_tokenizer_decode(const trd_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                        bool keep_special, char **text, size_t *bytes);
TRD_API void trd_text_free(char *text); /* any text the library hands over; NULL is fine */

/* One turn of a conversation. */
typedef struct trd_message {
    const char *role;    /* "system", "user", "assistant" (others as the template allows) */
    const char *content; /* the turn's text */
} trd_message;

/* Name of the chat template in use ("smollm2", "qwen2.5", "qwen3", "llama3"), NULL when the file has none.
 * The template is recognized by a hash of its text; one that is not known gives TRD_UNSUPPORTED when it is
 * used. */
TRD_API const char *trd_tokenizer_chat_template(const trd_tokenizer *tokenizer);
/* Chooses a named template whatever the file says. Not while other threads use the tokenizer. */
TRD_API trd_status trd_tokenizer_set_chat_template(trd_tokenizer *tokenizer, const char *name);

/* Renders messages and appends the ids with their loss mask: 1 on every assistant turn's content and its
 * end-of-turn token, headers excluded. add_generation_prompt opens an assistant turn at the end. */
TRD_API trd_status trd_tokenizer_chat(const trd_tokenizer *tokenizer, const trd_message *messages, int count,
                                      bool add_generation_prompt, trd_ids *ids);

/* Writes tokenizer.json and tokenizer_config.json (chat template included) to folder, copied from the source
 * folder or synthesized from a GGUF. */
TRD_API trd_status trd_tokenizer_export(const trd_tokenizer *tokenizer, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
