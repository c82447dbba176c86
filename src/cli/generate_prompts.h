/* From the options of `treadle generate` to token ids. */
#ifndef TRD_CLI_GENERATE_PROMPTS_H
#define TRD_CLI_GENERATE_PROMPTS_H

#include <treadle/tokenizer.h>

typedef struct cli_generate_options {
    const char *model;
    const char *prompt, *prompts, *ids; /* one of them is given */
    const char *system, *tokenizer, *dtype;
    bool raw, json;
    int64_t max_tokens, threads;
} cli_generate_options;

typedef struct cli_prompts {
    trd_ids *ids;
    int64_t count;
} cli_prompts;

/* tokenizer may be NULL when ids are given. */
trd_status cli_prompts_make(const cli_generate_options *options, const trd_tokenizer *tokenizer,
                            cli_prompts *prompts);
void cli_prompts_free(cli_prompts *prompts);
int64_t cli_prompts_longest(const cli_prompts *prompts);

#endif
