/* Patterns: found or not, wrong ones named with their place, and want of memory told from both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/regex.h"

static void finds(void **state)
{
    (void)state;
    static const char *const texts[] = {"layers.3.q", "norm", "layers.x"};
    pcre2_code *regex;
    pcre2_match_data *match;
    assert_int_equal(trd__regex_compile("layers\\.\\d", 0, TRD_CORRUPT, "test", &regex), TRD_OK);
    assert_int_equal(trd__regex_match_data(regex, &match), TRD_OK);
    for (int i = 0; i < 3; i++) {
        bool found;
        assert_int_equal(trd__regex_find(regex, match, texts[i], &found), TRD_OK);
        assert_int_equal(found, i == 0);
    }
    pcre2_match_data_free(match);
    pcre2_code_free(regex);
}

static void wrong_ones_are_named(void **state)
{
    (void)state;
    pcre2_code *regex;
    assert_int_equal(trd__regex_compile("a(b", 0, TRD_CORRUPT, "test", &regex), TRD_CORRUPT);
    assert_non_null(
        strstr(trd_error_message(), "test: the regular expression \"a(b\" is wrong at character 4: "));
}

/* A match that PCRE2 gives up on is an error, not a text without a match. */
static void giving_up_is_an_error(void **state)
{
    (void)state;
    pcre2_code *regex;
    pcre2_match_data *match;
    bool found;
    assert_int_equal(trd__regex_compile("(*LIMIT_MATCH=1)(a+)+b", 0, TRD_CORRUPT, "test", &regex), TRD_OK);
    assert_int_equal(trd__regex_match_data(regex, &match), TRD_OK);
    assert_int_equal(trd__regex_find(regex, match, "aaaaaaaaaaaaaaaaaaaa c b", &found), TRD_UNSUPPORTED);
    pcre2_match_data_free(match);
    pcre2_code_free(regex);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds), cmocka_unit_test(wrong_ones_are_named),
                                       cmocka_unit_test(giving_up_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
