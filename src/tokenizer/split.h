/* Pre-tokenization: cutting a text into the words that are encoded each by itself. A splitter is a list of
 * steps; each step cuts the pieces of the one before. Immutable once built.
 *
 * The patterns of GPT-2, Llama 3 and Qwen run as hand-written matchers (one family with a few switches), any
 * other regular expression by PCRE2's compiler to machine code. */
#ifndef TRD_TOKENIZER_SPLIT_H
#define TRD_TOKENIZER_SPLIT_H

#include "tokenizer/unicode.h"

/* The switches of the pattern family
 *   contractions | PREFIX? \p{L}+ | NUMBERS | ' '? OTHER+ TRAIL* | LINES | \s+(?!\S) | \s+ */
typedef struct trd__split_rules {
    bool ignore_case; /* contractions in any case */
    bool any_prefix;  /* letters take one character before them that is no letter, number, \r or \n; else a
                         space */
    int numbers;      /* most numbers in a word; 0: any count, with a space before */
    bool newlines;    /* other characters take the \r and \n after them; \s*[\r\n]+ is a word */
} trd__split_rules;

typedef enum trd__split_kind {
    TRD__SPLIT_FAMILY, /* rules */
    TRD__SPLIT_DIGITS, /* \p{N} alone, or in runs; the rest in runs */
    TRD__SPLIT_PATTERN /* PCRE2: matches and the gaps between them */
} trd__split_kind;

typedef struct trd__split_step {
    trd__split_kind kind;
    trd__split_rules rules;
    bool single_digits;
    void *code; /* pcre2_code */
} trd__split_step;

enum { TRD__SPLIT_STEPS = 8 };

typedef struct trd__splitter {
    const trd__unicode *unicode;
    trd__split_step steps[TRD__SPLIT_STEPS];
    int count;
} trd__splitter;

void trd__splitter_free(trd__splitter *splitter); /* safe on a zeroed one */

/* Appends a step that isolates the matches of a regular expression. UNSUPPORTED with PCRE2's reason. */
trd_status trd__splitter_add_pattern(trd__splitter *splitter, const char *pattern);
/* The same, always by PCRE2: what the hand-written matchers are tested against. */
trd_status trd__splitter_add_compiled(trd__splitter *splitter, const char *pattern);
trd_status trd__splitter_add_gpt2(trd__splitter *splitter);
trd_status trd__splitter_add_digits(trd__splitter *splitter, bool single);

extern const char trd__pattern_gpt2[], trd__pattern_qwen2[], trd__pattern_llama3[];

/* Called for each word in order; a status other than TRD_OK ends the split and is returned. */
typedef trd_status (*trd__word_sink)(void *context, const uint8_t *word, size_t bytes);

/* Cuts text, which must be valid UTF-8. A splitter without steps makes one word of it. */
trd_status trd__split(const trd__splitter *splitter, const uint8_t *text, size_t bytes, trd__word_sink sink,
                      void *context);

#endif
