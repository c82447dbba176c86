/* PCRE2's memory hooks. Invariant: a block of PCRE2 remembers the hooks it was made with, so the contexts
 * that carry them may be freed as soon as a pattern is compiled. */
#include "base/regex.h"

#include <string.h>

#include "base/alloc.h"

static void *take(size_t bytes, void *unused)
{
    (void)unused;
    return trd__alloc(bytes, 1);
}

static void give(void *block, void *unused)
{
    (void)unused;
    trd__free(block);
}

trd_status trd__regex_compile(const char *pattern, uint32_t options, trd_status wrong, const char *what,
                              pcre2_code **regex)
{
    int error = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE offset = 0;
    *regex = NULL;
    pcre2_general_context *general = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
    if (context)
        *regex = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &offset, context);
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    if (*regex) return TRD_OK;
    if (error == PCRE2_ERROR_NOMEMORY || error == PCRE2_ERROR_HEAP_FAILED)
        return trd__fail(TRD_NO_MEMORY, "%s: no memory to compile a regular expression", what);
    PCRE2_UCHAR reason[128];
    pcre2_get_error_message(error, reason, sizeof reason);
    return trd__fail(wrong, "%s: the regular expression \"%s\" is wrong at character %zu: %s", what, pattern,
                     (size_t)offset + 1, (const char *)reason);
}

trd_status trd__regex_match_data(const pcre2_code *regex, pcre2_match_data **match)
{
    *match = pcre2_match_data_create_from_pattern(regex, NULL);
    return *match ? TRD_OK : TRD_NO_MEMORY;
}

trd_status trd__regex_find(const pcre2_code *regex, pcre2_match_data *match, const char *text, bool *found)
{
    int result = pcre2_match(regex, (PCRE2_SPTR)text, strlen(text), 0, 0, match, NULL);
    *found = result >= 0;
    if (result >= 0 || result == PCRE2_ERROR_NOMATCH) return TRD_OK;
    if (result == PCRE2_ERROR_NOMEMORY)
        return trd__fail(TRD_NO_MEMORY, "matching a regular expression against \"%s\": no memory", text);
    PCRE2_UCHAR reason[128];
    pcre2_get_error_message(result, reason, sizeof reason);
    return trd__fail(TRD_UNSUPPORTED, "matching a regular expression against \"%s\": %s", text,
                     (const char *)reason);
}
