/* Prompts: one text, the lines of a file, or lists of token ids. A text becomes a user's message where the
 * tokenizer has a chat template and --raw is not given. */
#include "cli/generate_prompts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tokenizer/tokenizer.h"

void cli_prompts_free(cli_prompts *p)
{
    for (int64_t i = 0; i < p->count; i++) trd_ids_free(&p->ids[i]);
    trd__free(p->ids);
    *p = (cli_prompts){0};
}

int64_t cli_prompts_longest(const cli_prompts *p)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < p->count; i++)
        if ((int64_t)p->ids[i].count > longest) longest = (int64_t)p->ids[i].count;
    return longest;
}

/* A new, empty prompt; NULL: no memory. */
static trd_ids *add(cli_prompts *p)
{
    trd_ids *larger = trd__realloc(p->ids, (size_t)p->count + 1, sizeof *larger);
    if (!larger) return NULL;
    p->ids = larger;
    p->ids[p->count] = (trd_ids){0};
    return &p->ids[p->count++];
}

static trd_status add_id(trd_ids *ids, int32_t id)
{
    int32_t *larger = trd__realloc(ids->ids, ids->count + 1, sizeof *larger);
    if (!larger) return TRD_NO_MEMORY;
    ids->ids = larger;
    ids->ids[ids->count++] = id;
    ids->capacity = ids->count;
    return TRD_OK;
}

/* "1,2;3,4": a prompt between semicolons. */
static trd_status parse_ids(const char *list, cli_prompts *p)
{
    trd_ids *ids = add(p);
    for (const char *at = list; ids;) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT32_MAX || (*end && *end != ',' && *end != ';'))
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "--ids: expected token ids from 0 separated by commas, found \"%s\"", at);
        TRD_TRY(add_id(ids, (int32_t)id));
        if (!*end) return TRD_OK;
        if (*end == ';') ids = add(p);
        at = end + 1;
    }
    return TRD_NO_MEMORY;
}

static trd_status add_chat(const cli_generate_options *o, const trd_tokenizer *tokenizer, const char *text,
                           trd_ids *ids)
{
    trd_message messages[2];
    int count = 0;
    if (o->system) messages[count++] = (trd_message){"system", o->system};
    messages[count++] = (trd_message){"user", text};
    trd_status status = trd_tokenizer_chat(tokenizer, messages, count, true, ids);
    return status == TRD_UNSUPPORTED ? trd__fail_in(status, "give --raw to go without a chat template")
                                     : status;
}

static trd_status add_text(const cli_generate_options *o, const trd_tokenizer *tokenizer, const char *text,
                           cli_prompts *p)
{
    trd_ids *ids = add(p);
    if (!ids) return TRD_NO_MEMORY;
    bool chat = tokenizer->chat || tokenizer->chat_text; /* an unknown template is an error, not raw text */
    if (!o->raw && chat) return add_chat(o, tokenizer, text, ids);
    if (o->system)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "--system: expected a chat template to put it in, found none in the tokenizer");
    if (trd_tokenizer_adds_bos(tokenizer) && trd_tokenizer_bos(tokenizer) >= 0)
        TRD_TRY(add_id(ids, trd_tokenizer_bos(tokenizer)));
    return trd_tokenizer_encode(tokenizer, text, strlen(text), ids);
}

/* Every line that is not empty; a carriage return at its end is left out. */
static trd_status add_lines(const cli_generate_options *o, const trd_tokenizer *tokenizer,
                            const trd__file_map *map, cli_prompts *p)
{
    const char *at = (const char *)map->data, *end = at + map->bytes;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        size_t kept = length && at[length - 1] == '\r' ? length - 1 : length;
        if (kept) {
            char *line = trd__format("%.*s", (int)kept, at);
            if (!line) return TRD_NO_MEMORY;
            trd_status status = add_text(o, tokenizer, line, p);
            trd__free(line);
            TRD_TRY(status);
        }
        at += length + (newline != NULL);
    }
    return TRD_OK;
}

trd_status cli_prompts_make(const cli_generate_options *o, const trd_tokenizer *tokenizer, cli_prompts *p)
{
    *p = (cli_prompts){0};
    if (o->ids) return parse_ids(o->ids, p);
    if (o->prompt) return add_text(o, tokenizer, o->prompt, p);
    trd__file_map map;
    TRD_TRY(trd__file_map_open(o->prompts, &map));
    trd_status status = map.data ? add_lines(o, tokenizer, &map, p) : TRD_OK;
    trd__file_map_close(&map);
    if (!status && !p->count)
        return trd__fail(TRD_INVALID_ARGUMENT, "--prompts %s: expected a prompt a line, found none",
                         o->prompts);
    return status;
}
