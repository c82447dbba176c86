/* Option parsing by table. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "cli/cli.h"

enum { MOST_OPTIONS = 32 };

int cli_usage_error(const cli_command *command, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "treadle %s: ", command->name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\nusage: treadle %s %s\n", command->name, command->usage);
    return CLI_USAGE;
}

static const cli_option *find(const cli_option *options, const char *word, size_t length)
{
    for (const cli_option *o = options; o->name; o++)
        if (strlen(o->name) == length && strncmp(o->name, word, length) == 0) return o;
    return NULL;
}

static int unknown(const cli_command *command, const cli_option *options, const char *word)
{
    const char *names[MOST_OPTIONS];
    size_t count = 0;
    for (const cli_option *o = options; o->name && count < MOST_OPTIONS; o++) names[count++] = o->name;
    const char *nearest = trd__nearest(word, names, count);
    if (nearest) return cli_usage_error(command, "unknown option %s; did you mean %s?", word, nearest);
    return cli_usage_error(command, "unknown option %s; `treadle %s --help` lists them", word, command->name);
}

static int set(const cli_command *command, const cli_option *o, const char *value)
{
    char *end = NULL;
    double number = 0;
    if (o->kind == CLI_TEXT) {
        *(const char **)o->target = value;
        return CLI_DONE;
    }
    errno = 0;
    if (o->kind == CLI_INT) {
        *(int64_t *)o->target = strtoll(value, &end, 10);
        number = (double)*(int64_t *)o->target;
    } else {
        *(double *)o->target = number = strtod(value, &end);
    }
    if (!*value || *end || errno)
        return cli_usage_error(command, "%s: expected a number, found \"%s\"", o->name, value);
    bool bounded = o->min != 0 || o->max != 0;
    if (bounded && !(number >= o->min && number <= o->max))
        return cli_usage_error(command, "%s: expected %.15g to %.15g, found %s", o->name, o->min, o->max,
                               value);
    return CLI_DONE;
}

int cli_parse(const cli_command *command, const cli_option *options, int argc, char **argv, int *words)
{
    *words = 0;
    for (int i = 0; i < argc; i++) {
        char *word = argv[i];
        if (strcmp(word, "--") == 0) {
            while (++i < argc) argv[(*words)++] = argv[i];
            break;
        }
        if (strncmp(word, "--", 2) != 0) {
            argv[(*words)++] = word;
            continue;
        }
        char *equals = strchr(word, '=');
        const cli_option *o = find(options, word, equals ? (size_t)(equals - word) : strlen(word));
        if (!o) return unknown(command, options, word);
        if (o->kind == CLI_FLAG) {
            if (equals) return cli_usage_error(command, "%s takes no value", o->name);
            *(bool *)o->target = true;
            continue;
        }
        if (!equals && i + 1 == argc) return cli_usage_error(command, "%s needs a value", o->name);
        int code = set(command, o, equals ? equals + 1 : argv[++i]);
        if (code) return code;
    }
    return CLI_DONE;
}
