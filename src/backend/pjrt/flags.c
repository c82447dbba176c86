/* The text of compile_xla_flags, checked against flags.def; see flags.h. */
#include "backend/pjrt/flags.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"

static const struct {
    const char *name;
    trd__xla_flag_kind kind;
} known[] = {
#define TRD_XLA_FLAG(name, kind) {#name, TRD__XLA_FLAG_##kind},
#include "backend/pjrt/flags.def"
#undef TRD_XLA_FLAG
};
enum { KNOWN = sizeof known / sizeof *known };

static int find(const char *name)
{
    int i = 0;
    while (i < KNOWN && strcmp(known[i].name, name) != 0) i++;
    return i;
}

static trd_status unknown(const char *name)
{
    const char *names[KNOWN];
    for (int i = 0; i < KNOWN; i++) names[i] = known[i].name;
    const char *nearest = trd__nearest(name, names, KNOWN);
    return trd__fail(TRD_INVALID_ARGUMENT,
                     "compile_xla_flags: unknown flag \"%s\"; %s%s%sdocs/xla.md lists the known ones", name,
                     nearest ? "did you mean \"" : "", nearest ? nearest : "", nearest ? "\"? " : "");
}

static trd_status wrong(const trd__xla_flag *flag, const char *expected, const char *value)
{
    return trd__fail(TRD_INVALID_ARGUMENT, "compile_xla_flags: %s: expected %s, found \"%s\"", flag->name,
                     expected, value ? value : "");
}

static trd_status set_value(trd__xla_flag *flag, const char *value)
{
    char *end;
    switch (flag->kind) {
    case TRD__XLA_FLAG_BOOL:
        flag->number = !value || strcmp(value, "true") == 0;
        return flag->number || strcmp(value, "false") == 0 ? TRD_OK : wrong(flag, "true or false", value);
    case TRD__XLA_FLAG_INT:
        errno = 0;
        flag->number = value ? strtoll(value, &end, 10) : 0;
        if (!value || !*value || *end || errno) return wrong(flag, "a whole number", value);
        return flag->number >= 0 ? TRD_OK : wrong(flag, "0 or more", value);
    default:
        flag->text = value;
        return value ? TRD_OK : wrong(flag, "a text", value);
    }
}

/* word: "--name=value", taken apart in place. */
static trd_status add(trd__xla_flags *flags, char *word)
{
    if (strncmp(word, "--", 2) != 0)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "compile_xla_flags: expected words of the form --name=value, found \"%s\"", word);
    char *name = word + 2, *value = strchr(name, '=');
    if (value) *value++ = '\0';
    int i = find(name);
    if (i == KNOWN) return unknown(name);
    trd__xla_flag *flag = &flags->flags[flags->count++];
    *flag = (trd__xla_flag){.name = known[i].name, .kind = known[i].kind};
    return set_value(flag, value);
}

trd_status trd__xla_flags_parse(trd__arena *arena, const char *text, trd__xla_flags *flags)
{
    static const char spaces[] = " \t\n";
    *flags = (trd__xla_flags){0};
    if (!text) return TRD_OK;
    size_t most = strlen(text) / 3 + 1; /* a word and the space behind it */
    char *words = trd__arena_strdup(arena, text), *rest = NULL;
    flags->flags = trd__arena_alloc(arena, most, sizeof *flags->flags);
    if (!words || !flags->flags) return TRD_NO_MEMORY;
    for (char *word = strtok_r(words, spaces, &rest); word; word = strtok_r(NULL, spaces, &rest))
        TRD_TRY(add(flags, word));
    return TRD_OK;
}
