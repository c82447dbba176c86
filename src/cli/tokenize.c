/* treadle tokenize PATH < text */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <treadle/tokenizer.h>

#include "cli/cli.h"

/* All of standard input, nothing stripped; NULL after saying why not. */
static char *read_input(size_t *bytes)
{
    char *text = NULL;
    size_t used = 0, capacity = 0;
    do {
        if (used == capacity) {
            char *grown = realloc(text, capacity = capacity * 2 + 65536);
            if (!grown) break;
            text = grown;
        }
        used += fread(text + used, 1, capacity - used, stdin);
    } while (!feof(stdin) && !ferror(stdin));
    *bytes = used;
    if (feof(stdin)) return text;
    fprintf(stderr, "treadle: reading standard input: %s\n", strerror(errno));
    free(text);
    return NULL;
}

static void print_ids(const trd_ids *ids, bool json)
{
    if (json) fputs("{\"ids\": [", stdout);
    for (size_t i = 0; i < ids->count; i++) printf(i ? (json ? ", %d" : " %d") : "%d", ids->ids[i]);
    puts(json ? "]}" : "");
}

static int encode(const trd_tokenizer *tokenizer, const char *text, size_t bytes, bool json)
{
    trd_ids ids = {0};
    trd_status status = trd_tokenizer_encode(tokenizer, text, bytes, &ids);
    if (!status) print_ids(&ids, json);
    trd_ids_free(&ids);
    return status ? cli_fail() : CLI_DONE;
}

/* Both forms that encoding prints are read: decimal numbers between blanks, or the same as a JSON list, with
 * or without its object. */
static bool read_ids(const char *text, int32_t *ids, size_t *count)
{
    static const char between[] = " \t\r\n,[]{}";
    static const char key[] = "\"ids\":";
    *count = 0;
    text += strspn(text, between);
    if (!strncmp(text, key, sizeof key - 1)) text += sizeof key - 1;
    while (*(text += strspn(text, between))) {
        char *end = NULL;
        errno = 0;
        long id = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : 0;
        if (!end || errno || id > INT32_MAX || (*end && !strchr(between, *end))) {
            size_t length = strcspn(text, between);
            fprintf(stderr, "treadle: word %zu of standard input is no token id: %.*s\n", *count,
                    length < 40 ? (int)length : 40, text);
            return false;
        }
        ids[(*count)++] = (int32_t)id;
        text = end;
    }
    return true;
}

static int decode(const trd_tokenizer *tokenizer, char *text, size_t bytes)
{
    char *line = realloc(text, bytes + 1), *decoded = NULL;
    int32_t *ids = calloc(bytes / 2 + 1, sizeof *ids);
    size_t count, length = 0;
    int code = CLI_FAILED;
    if (line) text = line;
    if (!line || !ids) {
        fprintf(stderr, "treadle: no memory for %zu bytes of ids\n", bytes);
    } else {
        text[bytes] = 0;
        if (read_ids(text, ids, &count))
            code =
                trd_tokenizer_decode(tokenizer, ids, count, true, &decoded, &length) ? cli_fail() : CLI_DONE;
        if (length) fwrite(decoded, 1, length, stdout);
    }
    trd_text_free(decoded);
    free(ids);
    free(text);
    return code;
}

static int run(int argc, char **argv)
{
    bool json = false, back = false;
    const cli_option options[] = {{.name = "--json", .kind = CLI_FLAG, .target = &json},
                                  {.name = "--decode", .kind = CLI_FLAG, .target = &back},
                                  {0}};
    int words, code = cli_parse(&cli_command_tokenize, options, argc, argv, &words);
    trd_tokenizer *tokenizer;
    size_t bytes;
    if (code) return code;
    if (words != 1)
        return cli_usage_error(&cli_command_tokenize, "takes one model or tokenizer, found %d", words);
    if (json && back) return cli_usage_error(&cli_command_tokenize, "--decode writes text; leave --json out");
    if (trd_tokenizer_open(argv[0], &tokenizer)) return cli_fail();
    char *text = read_input(&bytes);
    if (!text) {
        code = CLI_FAILED;
    } else if (back) {
        code = decode(tokenizer, text, bytes);
    } else {
        code = encode(tokenizer, text, bytes, json);
        free(text);
    }
    trd_tokenizer_close(tokenizer);
    return code;
}

const cli_command cli_command_tokenize = {
    .name = "tokenize",
    .summary = "turn text into token ids, or ids into text",
    .usage = "MODEL_OR_TOKENIZER [--json | --decode] < TEXT",
    .help = "Reads standard input as it is and prints the token ids. Special tokens in the text are "
            "recognized, none\n"
            "is added. MODEL_OR_TOKENIZER is a Hugging Face folder, a tokenizer.json or a GGUF file.\n\n"
            "  --json    print {\"ids\": [...]}\n"
            "  --decode  read ids (in either form) and write their text, special tokens included",
    .run = run};
