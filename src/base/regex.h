/* Regular expressions: PCRE2 with its memory from base/alloc, so that want of memory is never taken for a
 * wrong pattern or for a text without a match. */
#ifndef TRD_BASE_REGEX_H
#define TRD_BASE_REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/status.h"

/* Compiles pattern with PCRE2's options; free with pcre2_code_free. A wrong one is reported as status
 * `wrong`, with what it is for, the pattern and the place. */
trd_status trd__regex_compile(const char *pattern, uint32_t options, trd_status wrong, const char *what,
                              pcre2_code **regex);

/* A block to match regex in; others may be matched in it too. Free with pcre2_match_data_free. */
trd_status trd__regex_match_data(const pcre2_code *regex, pcre2_match_data **match);

/* Whether regex matches somewhere in text. */
trd_status trd__regex_find(const pcre2_code *regex, pcre2_match_data *match, const char *text, bool *found);

#endif
