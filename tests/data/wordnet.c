/* tools/wordnet-to-jsonl on a made-up WordNet: which nouns it takes, what it makes of a gloss, and that the
 * two files are disjoint and the same every time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/treadle-wordnet-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return trd__remove_tree(folder) == TRD_OK ? 0 : -1;
}

static int run(const char *arguments)
{
    char command[512];
    snprintf(command, sizeof command, "sh ../tools/wordnet-to-jsonl %s 2>%s/errors", arguments, folder);
    return system(command);
}

static void read_file(const char *name, char *text, size_t capacity)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    text[fread(text, 1, capacity - 1, file)] = '\0';
    fclose(file);
}

static int lines(const char *text)
{
    int count = 0;
    for (; *text; text++) count += *text == '\n';
    return count;
}

static void makes_two_files(void **state)
{
    (void)state;
    char arguments[256], train[4096], heldout[4096], again[4096], both[8192];
    snprintf(arguments, sizeof arguments, "-n 4 -e 2 %s data/data/wordnet", folder);
    assert_int_equal(run(arguments), 0);
    read_file("train.jsonl", train, sizeof train);
    read_file("heldout.jsonl", heldout, sizeof heldout);
    assert_int_equal(lines(train), 4);
    assert_int_equal(lines(heldout), 2);
    snprintf(both, sizeof both, "%s%s", train, heldout);
    static const char *const expected[] = {
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Define the noun anvil\"}, {\"role\": "
        "\"assistant\", "
        "\"content\": \"a heavy block on which hot metal is shaped\"}]}\n",
        "\"Define the noun basket\"}, {\"role\": \"assistant\", \"content\": \"a container woven of thin "
        "strips",
        "noun candle\"}, {\"role\": \"assistant\", \"content\": \"a stick of wax with a wick in the "
        "middle\"}",
        "noun harbor\"}, {\"role\": \"assistant\", \"content\": \"a place where ships lie safe from the "
        "sea\"}",
        "noun jar\"}, {\"role\": \"assistant\", \"content\": \"a vessel with a wide mouth for keeping "
        "food\"}",
        "noun kettle\"}, {\"role\": \"assistant\", \"content\": \"a metal pot with a lid for boiling "
        "water\"}",
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_non_null(strstr(both, expected[i]));

    assert_int_equal(run(arguments), 0);
    read_file("train.jsonl", again, sizeof again);
    assert_string_equal(again, train);
    snprintf(arguments, sizeof arguments, "-s 1 -n 4 -e 2 %s data/data/wordnet", folder);
    assert_int_equal(run(arguments), 0);
    read_file("train.jsonl", again, sizeof again);
    assert_string_not_equal(again, train);
}

static void refuses(void **state)
{
    (void)state;
    char arguments[256], errors[1024];
    snprintf(arguments, sizeof arguments, "-n 5 -e 2 %s data/data/wordnet", folder);
    assert_int_not_equal(run(arguments), 0);
    read_file("errors", errors, sizeof errors);
    assert_non_null(strstr(errors, "has 6 usable nouns, 7 were asked for"));
    snprintf(arguments, sizeof arguments, "%s data/data/absent", folder);
    assert_int_not_equal(run(arguments), 0);
    read_file("errors", errors, sizeof errors);
    assert_non_null(strstr(errors, "install wordnet-base"));
    snprintf(arguments, sizeof arguments, "-n x %s", folder);
    assert_int_not_equal(run(arguments), 0);
    assert_int_not_equal(run(""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(makes_two_files), cmocka_unit_test(refuses)};
    return cmocka_run_group_tests_name("data/wordnet", tests, make_folder, remove_folder);
}
