/* Chat templates: messages to one text, with the ranges that carry loss. Each known template is a renderer
 * here, tested against the text that the template's own language gives. */
#ifndef TRD_TOKENIZER_CHAT_H
#define TRD_TOKENIZER_CHAT_H

#include <treadle/tokenizer.h>

/* X(name, text, renderer, default system message): the only list. A name's first row is the one that choosing
 * by name gives; further rows are other published texts that render the same way. */
#define TRD__CHAT_LIST(X)                                                                                    \
    X("smollm2", smollm2, chatml, "You are a helpful AI assistant named SmolLM, trained by Hugging Face")    \
    X("qwen2.5", qwen25, qwen25, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")     \
    X("qwen3", qwen3, qwen3, "")                                                                             \
    X("qwen3", qwen3_revised, qwen3, "")                                                                     \
    X("llama3", llama32, llama31, "")                                                                        \
    X("llama3", llama31, llama31, "")                                                                        \
    X("llama3.0", llama30, llama30, "")

#define TRD__CHAT_TEXT(name, text, renderer, system) extern const char trd__chat_text_##text[];
TRD__CHAT_LIST(TRD__CHAT_TEXT)
#undef TRD__CHAT_TEXT

/* An assistant's turn in the rendered text. */
typedef struct trd__chat_turn {
    size_t start;   /* of the turn's first special token */
    size_t content; /* of what the assistant said, after the header */
    size_t end;     /* after the end-of-turn token */
} trd__chat_turn;

/* A text under construction. Zero-initialize; the first failure sticks. */
typedef struct trd__chat_text {
    char *text;
    size_t bytes, capacity;
    trd__chat_turn *turns;
    size_t turn_count, turn_capacity;
    trd_status status;
} trd__chat_text;

typedef struct trd__chat_template trd__chat_template;

struct trd__chat_template {
    const char *name;
    const char *text;   /* the template itself */
    const char *system; /* the system message when there is none, where the template has one */
    /* first: text of the token a conversation starts with, "" for none. */
    void (*render)(const trd__chat_template *chat, const char *first, const trd_message *messages, int count,
                   trd__chat_text *out);
    const char *generation; /* what opens an assistant's turn */
};

const trd__chat_template *trd__chat_recognize(const char *text, size_t bytes); /* NULL: not known */
const char *trd__chat_name(const trd__chat_template *chat);
/* By name; TRD_INVALID_ARGUMENT with the known names. */
trd_status trd__chat_find(const char *name, const trd__chat_template **chat);
/* "a, b, c" of the known names into text. */
void trd__chat_names(char *text, size_t bytes);

/* Renders into out, which the caller frees with trd__chat_text_free in any case. */
trd_status trd__chat_render(const trd__chat_template *chat, const char *first, const trd_message *messages,
                            int count, bool add_generation_prompt, trd__chat_text *out);
void trd__chat_text_free(trd__chat_text *out);

#endif
