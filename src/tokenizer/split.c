/* The steps of a splitter. Invariant: the pieces a step hands on are not empty and, in order, make up its
 * text; whatever a pattern does not match is a piece too. */
#include "tokenizer/split.h"

#include "base/regex.h"

const char trd__pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char trd__pattern_qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                                  "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char trd__pattern_llama3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                                   "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const struct known_pattern {
    const char *text;
    trd__split_rules rules;
} known_patterns[] = {
    {trd__pattern_gpt2, {false, false, 0, false}},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     {false, false, 0, false}},
    {trd__pattern_qwen2, {true, true, 1, true}},
    {trd__pattern_llama3, {true, true, 3, true}},
};

void trd__splitter_free(trd__splitter *splitter)
{
    for (int i = 0; i < splitter->count; i++) pcre2_code_free(splitter->steps[i].code);
    splitter->count = 0;
}

static trd_status append(trd__splitter *splitter, trd__split_step step)
{
    if (splitter->count == TRD__SPLIT_STEPS)
        return trd__fail(TRD_UNSUPPORTED, "pre-tokenizer: expected at most %d steps", TRD__SPLIT_STEPS);
    splitter->steps[splitter->count++] = step;
    return TRD_OK;
}

trd_status trd__splitter_add_compiled(trd__splitter *splitter, const char *pattern)
{
    trd__split_step step = {.kind = TRD__SPLIT_PATTERN};
    pcre2_code *code;
    TRD_TRY(
        trd__regex_compile(pattern, PCRE2_UTF | PCRE2_UCP, TRD_UNSUPPORTED, "pre-tokenizer pattern", &code));
    /* Without a compiler for this processor the pattern is interpreted: slower, the same matches. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    step.code = code;
    trd_status status = append(splitter, step);
    if (status) pcre2_code_free(code);
    return status;
}

trd_status trd__splitter_add_pattern(trd__splitter *splitter, const char *pattern)
{
    for (size_t i = 0; i < sizeof known_patterns / sizeof known_patterns[0]; i++)
        if (strcmp(pattern, known_patterns[i].text) == 0)
            return append(splitter,
                          (trd__split_step){.kind = TRD__SPLIT_FAMILY, .rules = known_patterns[i].rules});
    return trd__splitter_add_compiled(splitter, pattern);
}

trd_status trd__splitter_add_gpt2(trd__splitter *splitter)
{
    return trd__splitter_add_pattern(splitter, trd__pattern_gpt2);
}

trd_status trd__splitter_add_digits(trd__splitter *splitter, bool single)
{
    return append(splitter, (trd__split_step){.kind = TRD__SPLIT_DIGITS, .single_digits = single});
}

/* A text being cut. */
typedef struct cut {
    const trd__splitter *splitter;
    const trd__unicode *unicode;
    trd__word_sink sink;
    void *context;
    pcre2_match_data *match;
} cut;

/* Class of the character at `at`, TRD__OTHER with *length 0 at the end. */
static inline int class_at(const trd__unicode *unicode, const uint8_t *text, size_t bytes, size_t at,
                           unsigned *length)
{
    if (at >= bytes) return *length = 0, TRD__OTHER;
    if (text[at] < 0x80) return *length = 1, unicode->basic[text[at]] & TRD__CLASS_MASK;
    return trd__class_at(unicode, text + at, length) & TRD__CLASS_MASK;
}

/* End of the run of characters of one class that starts at `at`. */
static inline size_t run(const trd__unicode *unicode, const uint8_t *text, size_t bytes, size_t at, int class)
{
    unsigned length;
    while (at < bytes && class_at(unicode, text, bytes, at, &length) == class) at += length;
    return at;
}

/* End of the contraction at `at`, which holds an apostrophe; 0 if there is none. */
static size_t contraction(const trd__split_rules *rules, const uint8_t *text, size_t bytes, size_t at)
{
    size_t left = bytes - at;
    if (left < 2) return 0;
    uint8_t fold = rules->ignore_case ? 0x20 : 0;
    uint8_t a = text[at + 1] | fold, b = left > 2 ? text[at + 2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    /* U+017F, the long s, is an s in any case. */
    if (fold && left > 2 && text[at + 1] == 0xc5 && text[at + 2] == 0xbf) return at + 3;
    return 0;
}

static inline bool is_newline(uint8_t byte)
{
    return byte == '\n' || byte == '\r';
}

/* End of the word of white space at `at`: up to the last newline, else all but the last character, which goes
 * with what follows. */
static size_t white_space(const trd__split_rules *rules, const trd__unicode *unicode, const uint8_t *text,
                          size_t bytes, size_t at)
{
    size_t end = at, last = at, newline = 0;
    unsigned length;
    while (end < bytes && class_at(unicode, text, bytes, end, &length) == TRD__SPACE) {
        last = end;
        end += length;
        if (is_newline(text[last])) newline = end;
    }
    if (rules->newlines && newline) return newline;
    return end < bytes && last > at ? last : end;
}

/* End of the word that starts at `at` < bytes. Follows the pattern's alternatives in order. */
static size_t next_word(const trd__split_rules *rules, const trd__unicode *unicode, const uint8_t *text,
                        size_t bytes, size_t at)
{
    unsigned length, after;
    int class = class_at(unicode, text, bytes, at, &length);
    if (class == TRD__LETTER) return run(unicode, text, bytes, at + length, TRD__LETTER);
    if (text[at] == '\'') {
        size_t end = contraction(rules, text, bytes, at);
        if (end) return end;
    }
    if (class == TRD__NUMBER && rules->numbers > 0) {
        size_t end = at + length;
        for (int i = 1; i < rules->numbers; i++, end += length)
            if (class_at(unicode, text, bytes, end, &length) != TRD__NUMBER) break;
        return end;
    }
    if (class == TRD__NUMBER) return run(unicode, text, bytes, at + length, TRD__NUMBER);
    bool space = text[at] == ' ';
    int next = class_at(unicode, text, bytes, at + length, &after);
    if (next == TRD__LETTER && (space || (rules->any_prefix && !is_newline(text[at]))))
        return run(unicode, text, bytes, at + length + after, TRD__LETTER);
    if (space && next == TRD__NUMBER && rules->numbers == 0)
        return run(unicode, text, bytes, at + length + after, TRD__NUMBER);
    if (class == TRD__OTHER || (space && after > 0 && next == TRD__OTHER)) {
        size_t end = run(unicode, text, bytes, at + length, TRD__OTHER);
        if (rules->newlines)
            while (end < bytes && is_newline(text[end])) end++;
        return end;
    }
    return white_space(rules, unicode, text, bytes, at);
}

static trd_status cut_from(const cut *c, int step, const uint8_t *text, size_t bytes);

static trd_status cut_family(const cut *c, int step, const uint8_t *text, size_t bytes)
{
    const trd__split_rules *rules = &c->splitter->steps[step].rules;
    bool last = step + 1 == c->splitter->count;
    for (size_t at = 0, end; at < bytes; at = end) {
        end = next_word(rules, c->unicode, text, bytes, at);
        TRD_TRY(last ? c->sink(c->context, text + at, end - at) : cut_from(c, step + 1, text + at, end - at));
    }
    return TRD_OK;
}

static trd_status cut_digits(const cut *c, int step, const uint8_t *text, size_t bytes)
{
    bool single = c->splitter->steps[step].single_digits;
    unsigned length;
    for (size_t at = 0, end; at < bytes; at = end) {
        bool number = class_at(c->unicode, text, bytes, at, &length) == TRD__NUMBER;
        end = at + length;
        while (end < bytes && !(number && single)) {
            if ((class_at(c->unicode, text, bytes, end, &length) == TRD__NUMBER) != number) break;
            end += length;
        }
        TRD_TRY(cut_from(c, step + 1, text + at, end - at));
    }
    return TRD_OK;
}

static trd_status cut_pattern(const cut *c, int step, const uint8_t *text, size_t bytes)
{
    const pcre2_code *code = c->splitter->steps[step].code;
    for (size_t at = 0, from = 0; at < bytes;) {
        int found = pcre2_match(code, text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, c->match, NULL);
        if (found == PCRE2_ERROR_JIT_STACKLIMIT)
            found = pcre2_match(code, text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | PCRE2_NO_JIT,
                                c->match, NULL);
        if (found == PCRE2_ERROR_NOMATCH) return cut_from(c, step + 1, text + at, bytes - at);
        if (found == PCRE2_ERROR_NOMEMORY)
            return trd__fail(TRD_NO_MEMORY, "pre-tokenizer pattern: no memory to match it");
        if (found < 0)
            return trd__fail(TRD_UNSUPPORTED, "pre-tokenizer pattern: matching failed with PCRE2 error %d",
                             found);
        /* Read before going on: a later pattern step uses the same match block. */
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(c->match);
        size_t begin = range[0], end = range[1];
        if (begin > at) TRD_TRY(cut_from(c, step + 1, text + at, begin - at));
        TRD_TRY(cut_from(c, step + 1, text + begin, end - begin));
        at = from = end;
    }
    return TRD_OK;
}

static trd_status cut_from(const cut *c, int step, const uint8_t *text, size_t bytes)
{
    static trd_status (*const cutters[])(const cut *, int, const uint8_t *,
                                         size_t) = {[TRD__SPLIT_FAMILY] = cut_family,
                                                    [TRD__SPLIT_DIGITS] = cut_digits,
                                                    [TRD__SPLIT_PATTERN] = cut_pattern};
    if (step == c->splitter->count) return c->sink(c->context, text, bytes);
    return cutters[c->splitter->steps[step].kind](c, step, text, bytes);
}

trd_status trd__split(const trd__splitter *splitter, const uint8_t *text, size_t bytes, trd__word_sink sink,
                      void *context)
{
    cut c = {splitter, splitter->unicode, sink, context, NULL};
    if (bytes == 0) return TRD_OK;
    for (int i = 0; i < splitter->count && !c.match; i++) /* one block serves every pattern */
        if (splitter->steps[i].kind == TRD__SPLIT_PATTERN)
            TRD_TRY(trd__regex_match_data(splitter->steps[i].code, &c.match));
    trd_status status = cut_from(&c, 0, text, bytes);
    pcre2_match_data_free(c.match);
    return status;
}
