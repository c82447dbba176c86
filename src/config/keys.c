/* The key table made from keys.def, and setting a value with its type and range checked. Invariant: a field
 * holds its default or a value that passed its row's check. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "config/config.h"

#define ROW(key, type, when, text)                                                                           \
    .name = #key, .kind = TRD__KEY_##type, .field = offsetof(trd__config_values, key),                       \
    .resume = TRD__RESUME_##when, .help = text

static const trd__key keys[] = {
#define TRD_SECTION(title) {.section = title},
#define TRD_INT(key, value, low, high, when, text)                                                           \
    {ROW(key, INT, when, text), .preset = #value, .min = (double)(low), .max = (double)(high)},
#define TRD_REAL(key, value, low, high, when, text)                                                          \
    {ROW(key, REAL, when, text), .preset = #value, .min = low, .max = high},
#define TRD_BOOL(key, value, when, text) {ROW(key, BOOL, when, text), .preset = #value},
#define TRD_TEXT(key, value, when, text) {ROW(key, TEXT, when, text), .preset = value},
#define TRD_CHOICE(key, value, list, when, text)                                                             \
    {ROW(key, CHOICE, when, text), .preset = value, .choices = list},
#define TRD_LIST(key, when, text) {ROW(key, LIST, when, text), .preset = ""},
#define TRD_RULES(key, when, text) {ROW(key, RULES, when, text), .preset = ""},
#include "config/keys.def"
};
enum { ROWS = sizeof keys / sizeof *keys };

static const struct {
    const char *prefix, *feature;
} features[] = {
#define TRD_FEATURE(prefix, feature) {prefix, feature},
#include "config/features.def"
#undef TRD_FEATURE
};

int trd__key_count(void)
{
    return ROWS;
}
const trd__key *trd__key_at(int index)
{
    return &keys[index];
}

const trd__key *trd__key_find(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (keys[i].name && strcmp(keys[i].name, name) == 0) return &keys[i];
    return NULL;
}

/* A slip in a key that there is comes before the features: many of those begin as keys do. */
static trd_status unknown_key(const char *name, const char *where)
{
    enum { SLIP = 2 };
    const char *names[ROWS];
    size_t count = 0;
    for (int i = 0; i < ROWS; i++)
        if (keys[i].name) names[count++] = keys[i].name;
    const char *nearest = trd__nearest_within(name, names, count, SLIP);
    for (size_t i = 0; !nearest && i < sizeof features / sizeof *features; i++)
        if (strncmp(name, features[i].prefix, strlen(features[i].prefix)) == 0)
            return trd__fail(TRD_UNSUPPORTED,
                             "%s: %s belongs to a feature that is not built yet: %s; remove the key", where,
                             name, features[i].feature);
    if (!nearest) nearest = trd__nearest(name, names, count);
    if (nearest)
        return trd__fail(TRD_INVALID_ARGUMENT, "%s: unknown key \"%s\"; did you mean \"%s\"?", where, name,
                         nearest);
    return trd__fail(TRD_INVALID_ARGUMENT, "%s: unknown key \"%s\"; docs/config.md lists the keys", where,
                     name);
}

static trd_status wrong(const trd__key *key, const trd__raw_value *value, const char *expected)
{
    const char *quote = value->text ? "\"" : "";
    return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s: expected %s, found %s%s%s%s", value->where, key->name,
                     expected, value->quoted ? "the quoted text " : "", quote,
                     value->text ? value->text : "a list", quote);
}

static trd_status out_of_range(const trd__key *key, const trd__raw_value *value)
{
    return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s: expected %.16g to %.16g, found %s", value->where,
                     key->name, key->min, key->max, value->text);
}

static trd_status set_int(const trd__key *key, const trd__raw_value *value, int64_t *field)
{
    char *end;
    if (!value->text || value->quoted || !*value->text) return wrong(key, value, "a whole number");
    errno = 0;
    long long number = strtoll(value->text, &end, 10);
    if (*end || errno) return wrong(key, value, "a whole number");
    if ((double)number < key->min || (double)number > key->max) return out_of_range(key, value);
    *field = number;
    return TRD_OK;
}

static trd_status set_real(const trd__key *key, const trd__raw_value *value, double *field)
{
    char *end;
    if (!value->text || value->quoted || !*value->text) return wrong(key, value, "a number");
    if (strcmp(value->text, "None") == 0) return TRD_OK; /* MaxText's word for a number that is not set */
    double number = strtod(value->text, &end);
    if (*end || !isfinite(number)) return wrong(key, value, "a number");
    if (number < key->min || number > key->max) return out_of_range(key, value);
    *field = number;
    return TRD_OK;
}

static trd_status set_bool(const trd__key *key, const trd__raw_value *value, bool *field)
{
    if (value->text && !value->quoted) {
        bool yes = !strcmp(value->text, "true") || !strcmp(value->text, "True");
        bool no = !strcmp(value->text, "false") || !strcmp(value->text, "False");
        *field = yes;
        if (yes || no) return TRD_OK;
    }
    return wrong(key, value, "true or false");
}

static trd_status set_choice(const trd__key *key, const trd__raw_value *value, const char **field)
{
    size_t length = value->text ? strlen(value->text) : 0;
    for (const char *choice = value->text ? key->choices : NULL; choice;) {
        const char *bar = strchr(choice, '|');
        size_t width = bar ? (size_t)(bar - choice) : strlen(choice);
        if (width == length && strncmp(choice, value->text, width) == 0) {
            *field = value->text;
            return TRD_OK;
        }
        choice = bar ? bar + 1 : NULL;
    }
    return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s: expected one of %s, found \"%s\"", value->where,
                     key->name, key->choices, value->text ? value->text : "a list");
}

static trd_status set_list(trd_config *config, const trd__raw_value *value, trd__text_list *field)
{
    *field = value->list;
    if (!value->text || !*value->text) return TRD_OK;
    field->items = trd__arena_alloc(config->arena, 1, sizeof *field->items);
    if (!field->items) return TRD_NO_MEMORY;
    field->items[0] = value->text;
    field->count = 1;
    return TRD_OK;
}

static trd_status set_rules(const trd__key *key, const trd__raw_value *value, trd__text_list *field)
{
    if (value->text && *value->text) return wrong(key, value, "a list of [name, axis or [axes] or null]");
    *field = value->list;
    return TRD_OK;
}

static trd_status set_text(const trd__key *key, const trd__raw_value *value, const char **field)
{
    if (!value->text) return wrong(key, value, "a text");
    *field = value->text;
    return TRD_OK;
}

trd_status trd__config_set(trd_config *config, const char *name, const trd__raw_value *value)
{
    const trd__key *key = trd__key_find(name);
    if (!key) return unknown_key(name, value->where);
    void *field = (char *)&config->values + key->field;
    switch (key->kind) {
    case TRD__KEY_INT:
        return set_int(key, value, field);
    case TRD__KEY_REAL:
        return set_real(key, value, field);
    case TRD__KEY_BOOL:
        return set_bool(key, value, field);
    case TRD__KEY_CHOICE:
        return set_choice(key, value, field);
    case TRD__KEY_LIST:
        return set_list(config, value, field);
    case TRD__KEY_RULES:
        return set_rules(key, value, field);
    case TRD__KEY_TEXT:
        break;
    }
    return set_text(key, value, field);
}
