/* The renderers. Invariant: for messages of role and content alone, the text is byte for byte what the
 * template gives, without tools. The date of Llama 3's system header is the template's own fixed one, so that
 * the same data gives the same tokens on any day. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/status.h"
#include "formats/json.h"
#include "tokenizer/chat.h"
#include "tokenizer/unicode.h"

static void put(trd__chat_text *out, const char *text, size_t bytes)
{
    if (out->status) return;
    if (out->capacity - out->bytes < bytes) {
        size_t capacity = out->capacity * 2 + bytes + 256;
        char *grown = trd__realloc(out->text, capacity, 1);
        if (!grown) {
            out->status = TRD_NO_MEMORY;
            return;
        }
        out->text = grown;
        out->capacity = capacity;
    }
    if (bytes) memcpy(out->text + out->bytes, text, bytes);
    out->bytes += bytes;
}

static void say(trd__chat_text *out, const char *text)
{
    put(out, text, strlen(text));
}

static void begin_turn(trd__chat_text *out)
{
    if (out->status) return;
    if (out->turn_count == out->turn_capacity) {
        size_t capacity = out->turn_capacity * 2 + 8;
        trd__chat_turn *grown = trd__realloc(out->turns, capacity, sizeof *grown);
        if (!grown) {
            out->status = TRD_NO_MEMORY;
            return;
        }
        out->turns = grown;
        out->turn_capacity = capacity;
    }
    out->turns[out->turn_count++] = (trd__chat_turn){out->bytes, out->bytes, out->bytes};
}

static void begin_content(trd__chat_text *out)
{
    if (!out->status) out->turns[out->turn_count - 1].content = out->bytes;
}

static void end_turn(trd__chat_text *out)
{
    if (!out->status) out->turns[out->turn_count - 1].end = out->bytes;
}

static bool is_role(const trd_message *message, const char *role)
{
    return strcmp(message->role, role) == 0;
}

static void unknown_role(trd__chat_text *out, const char *name, const trd_message *message, const char *known)
{
    if (!out->status)
        out->status =
            trd__fail(TRD_INVALID_ARGUMENT, "chat template %s: expected a message of role %s, found \"%s\"",
                      name, known, message->role);
}

/* <|im_start|>role, content, <|im_end|>: the turn that all of SmolLM2 and Qwen share. */
static void chatml_turn(trd__chat_text *out, const char *role, const char *content)
{
    bool assistant = strcmp(role, "assistant") == 0;
    if (assistant) begin_turn(out);
    say(out, "<|im_start|>");
    say(out, role);
    say(out, "\n");
    if (assistant) begin_content(out);
    say(out, content);
    say(out, "<|im_end|>");
    if (assistant) end_turn(out);
    say(out, "\n");
}

static void render_chatml(const trd__chat_template *chat, const char *first, const trd_message *messages,
                          int count, trd__chat_text *out)
{
    (void)first;
    if (!is_role(&messages[0], "system")) chatml_turn(out, "system", chat->system);
    for (int i = 0; i < count; i++) chatml_turn(out, messages[i].role, messages[i].content);
}

/* Tool results of consecutive messages share one turn of the user. */
static void qwen_tool(const trd_message *messages, int count, int i, trd__chat_text *out)
{
    if (i == 0 || !is_role(&messages[i - 1], "tool")) say(out, "<|im_start|>user");
    say(out, "\n<tool_response>\n");
    say(out, messages[i].content);
    say(out, "\n</tool_response>");
    if (i == count - 1 || !is_role(&messages[i + 1], "tool")) say(out, "<|im_end|>\n");
}

static void render_qwen25(const trd__chat_template *chat, const char *first, const trd_message *messages,
                          int count, trd__chat_text *out)
{
    (void)first;
    if (!is_role(&messages[0], "system")) chatml_turn(out, "system", chat->system);
    for (int i = 0; i < count; i++) {
        const trd_message *m = &messages[i];
        if (is_role(m, "tool"))
            qwen_tool(messages, count, i, out);
        else if (is_role(m, "system") || is_role(m, "user") || is_role(m, "assistant"))
            chatml_turn(out, m->role, m->content);
        else
            unknown_role(out, chat->name, m, "system, user, assistant or tool");
    }
}

typedef struct part {
    const char *text;
    size_t bytes;
} part;

static part trim_newlines(part p, bool left, bool right)
{
    while (left && p.bytes && p.text[0] == '\n') p.text++, p.bytes--;
    while (right && p.bytes && p.text[p.bytes - 1] == '\n') p.bytes--;
    return p;
}

/* The last occurrence of mark that ends within the first bytes of text, NULL if there is none. */
static const char *find_last(const char *text, size_t bytes, const char *mark)
{
    size_t length = strlen(mark);
    for (size_t i = bytes; i >= length; i--)
        if (memcmp(text + i - length, mark, length) == 0) return text + i - length;
    return NULL;
}

/* Splits "<think>reasoning</think>answer": the answer follows the last end mark, the reasoning precedes the
 * first. */
static void split_thinking(const char *content, part *reasoning, part *answer)
{
    static const char open[] = "<think>", close[] = "</think>";
    const char *first = strstr(content, close);
    *reasoning = (part){"", 0};
    *answer = (part){content, strlen(content)};
    if (!first) return;
    const char *last = find_last(content, answer->bytes, close) + sizeof close - 1;
    *answer = trim_newlines((part){last, answer->bytes - (size_t)(last - content)}, true, false);
    part before = trim_newlines((part){content, (size_t)(first - content)}, false, true);
    const char *start = find_last(before.text, before.bytes, open);
    if (start) {
        start += sizeof open - 1;
        before = (part){start, before.bytes - (size_t)(start - before.text)};
    }
    *reasoning = trim_newlines(before, true, false);
}

static bool is_tool_response(const char *content)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    size_t bytes = strlen(content);
    return strncmp(content, open, sizeof open - 1) == 0 && bytes >= sizeof close - 1 &&
           strcmp(content + bytes - (sizeof close - 1), close) == 0;
}

/* Index of the last thing the user asked; reasoning of earlier turns is dropped. */
static int last_query(const trd_message *messages, int count)
{
    for (int i = count - 1; i >= 0; i--)
        if (is_role(&messages[i], "user") && !is_tool_response(messages[i].content)) return i;
    return count - 1;
}

static void qwen3_assistant(const trd_message *message, bool after_query, bool last, trd__chat_text *out)
{
    part reasoning, answer;
    split_thinking(message->content, &reasoning, &answer);
    begin_turn(out);
    say(out, "<|im_start|>assistant\n");
    begin_content(out);
    if (after_query && (last || reasoning.bytes)) {
        say(out, "<think>\n");
        reasoning = trim_newlines(reasoning, true, true);
        put(out, reasoning.text, reasoning.bytes);
        say(out, "\n</think>\n\n");
        answer = trim_newlines(answer, true, false);
    }
    put(out, answer.text, answer.bytes);
    say(out, "<|im_end|>");
    end_turn(out);
    say(out, "\n");
}

static void render_qwen3(const trd__chat_template *chat, const char *first, const trd_message *messages,
                         int count, trd__chat_text *out)
{
    (void)first;
    int query = last_query(messages, count);
    for (int i = 0; i < count; i++) {
        const trd_message *m = &messages[i];
        if (is_role(m, "assistant"))
            qwen3_assistant(m, i > query, i == count - 1, out);
        else if (is_role(m, "tool"))
            qwen_tool(messages, count, i, out);
        else if (is_role(m, "system") || is_role(m, "user"))
            chatml_turn(out, m->role, m->content);
        else
            unknown_role(out, chat->name, m, "system, user, assistant or tool");
    }
}

/* White space as the templates' trim filter strips it: \s and the four separator controls. */
static bool is_trimmed(const char *text, size_t bytes, unsigned *length)
{
    const uint8_t *at = (const uint8_t *)text;
    *length = 1;
    if (*at >= 0x1c && *at <= 0x1f) return true;
    if (*at < 0x80) return *at == ' ' || (*at >= 9 && *at <= 13);
    if (trd__utf8_valid(at, bytes < 4 ? bytes : 4) == 0) return false;
    return (trd__unicode_lookup(trd__utf8_decode(at, length)) & TRD__CLASS_MASK) == TRD__SPACE;
}

static part trim(const char *text)
{
    unsigned length;
    part p = {text, strlen(text)};
    while (p.bytes && is_trimmed(p.text, p.bytes, &length)) p.text += length, p.bytes -= length;
    while (p.bytes) {
        size_t before = trd__utf8_before((const uint8_t *)p.text, p.bytes);
        if (!is_trimmed(p.text + before, p.bytes - before, &length)) break;
        p.bytes = before;
    }
    return p;
}

static void llama_turn(trd__chat_text *out, const char *role, part content)
{
    bool assistant = strcmp(role, "assistant") == 0;
    if (assistant) begin_turn(out);
    say(out, "<|start_header_id|>");
    say(out, role);
    say(out, "<|end_header_id|>\n\n");
    if (assistant) begin_content(out);
    put(out, content.text, content.bytes);
    say(out, "<|eot_id|>");
    if (assistant) end_turn(out);
}

static void llama_tool(trd__chat_text *out, const char *content)
{
    trd__json_writer writer = {0};
    trd__json_write_string(&writer, content);
    trd_status status = trd__json_finish(&writer);
    if (!out->status) out->status = status;
    llama_turn(out, "ipython", (part){writer.text, writer.bytes});
    trd__json_writer_free(&writer);
}

static void render_llama31(const trd__chat_template *chat, const char *first, const trd_message *messages,
                           int count, trd__chat_text *out)
{
    (void)chat;
    bool system = is_role(&messages[0], "system");
    part told = system ? trim(messages[0].content) : (part){"", 0};
    say(out, first);
    say(out, "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
             "Today Date: 26 Jul 2024\n\n");
    put(out, told.text, told.bytes);
    say(out, "<|eot_id|>");
    for (int i = system ? 1 : 0; i < count; i++) {
        const trd_message *m = &messages[i];
        if (is_role(m, "tool") || is_role(m, "ipython"))
            llama_tool(out, m->content);
        else
            llama_turn(out, m->role, trim(m->content));
    }
}

static void render_llama30(const trd__chat_template *chat, const char *first, const trd_message *messages,
                           int count, trd__chat_text *out)
{
    (void)chat;
    say(out, first);
    for (int i = 0; i < count; i++) llama_turn(out, messages[i].role, trim(messages[i].content));
}

#define GENERATION_chatml "<|im_start|>assistant\n"
#define GENERATION_qwen25 GENERATION_chatml
#define GENERATION_qwen3 GENERATION_chatml
#define GENERATION_llama31 "<|start_header_id|>assistant<|end_header_id|>\n\n"
#define GENERATION_llama30 GENERATION_llama31

static const trd__chat_template templates[] = {
#define CHAT_ROW(name, text, renderer, system)                                                               \
    {name, trd__chat_text_##text, system, render_##renderer, GENERATION_##renderer},
    TRD__CHAT_LIST(CHAT_ROW)
#undef CHAT_ROW
};
enum { TEMPLATE_COUNT = sizeof templates / sizeof templates[0] };

const trd__chat_template *trd__chat_recognize(const char *text, size_t bytes)
{
    uint64_t hash = trd__checksum(text, bytes);
    for (int i = 0; i < TEMPLATE_COUNT; i++)
        if (trd__checksum(templates[i].text, strlen(templates[i].text)) == hash) return &templates[i];
    return NULL;
}

const char *trd__chat_name(const trd__chat_template *chat)
{
    return chat->name;
}

void trd__chat_names(char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < TEMPLATE_COUNT && used < bytes; i++) {
        if (i > 0 && strcmp(templates[i].name, templates[i - 1].name) == 0) continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", templates[i].name);
    }
}

trd_status trd__chat_find(const char *name, const trd__chat_template **chat)
{
    char known[128];
    for (int i = 0; i < TEMPLATE_COUNT; i++)
        if (strcmp(templates[i].name, name) == 0) return *chat = &templates[i], TRD_OK;
    trd__chat_names(known, sizeof known);
    return trd__fail(TRD_INVALID_ARGUMENT, "chat_template: expected one of %s, found \"%s\"", known, name);
}

trd_status trd__chat_render(const trd__chat_template *chat, const char *first, const trd_message *messages,
                            int count, bool add_generation_prompt, trd__chat_text *out)
{
    if (count < 1)
        return trd__fail(TRD_INVALID_ARGUMENT, "chat: expected at least one message, found %d", count);
    for (int i = 0; i < count; i++)
        if (!messages[i].role || !messages[i].content)
            return trd__fail(TRD_INVALID_ARGUMENT, "chat: message %d has no %s", i,
                             messages[i].role ? "content" : "role");
    chat->render(chat, first, messages, count, out);
    if (add_generation_prompt) say(out, chat->generation);
    return out->status;
}

void trd__chat_text_free(trd__chat_text *out)
{
    trd__free(out->text);
    trd__free(out->turns);
    *out = (trd__chat_text){0};
}
