/* YAML by libyaml's events: one mapping of keys to scalars or lists of scalars; nested mappings become dotted
 * names, so that a nested key of an unbuilt feature is named in full. Aliases are refused. */
#include <string.h>
#include <yaml.h>

#include "base/file.h"
#include "config/config.h"

enum { LONGEST_KEY = 256, MOST_ITEMS = 1024, DEEPEST = 8 };

typedef struct reader {
    trd_config *config;
    const char *name; /* of the file, or "override key=value" */
    yaml_parser_t parser;
    yaml_event_t event;
    bool is_override;
} reader;

static const char *where(const reader *r)
{
    if (r->is_override) return r->name;
    const char *text =
        trd__arena_format(r->config->arena, "%s line %zu", r->name, r->event.start_mark.line + 1);
    return text ? text : r->name;
}

static trd_status next(reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) {
        if (r->event.type != YAML_ALIAS_EVENT) return TRD_OK;
        return trd__fail(TRD_UNSUPPORTED, "%s: aliases are not supported; write the value out", where(r));
    }
    memset(&r->event, 0, sizeof r->event);
    const char *problem = r->parser.problem ? r->parser.problem : "out of memory";
    return trd__fail(TRD_INVALID_ARGUMENT, "%s line %zu: not valid YAML: %s%s", r->name,
                     r->parser.problem_mark.line + 1, problem,
                     strstr(problem, "escape") ? "; single quotes leave a backslash as it is" : "");
}

static trd_status copy_scalar(reader *r, const char **text)
{
    const char *value = (const char *)r->event.data.scalar.value;
    if (strlen(value) != r->event.data.scalar.length)
        return trd__fail(TRD_INVALID_ARGUMENT, "%s: a value holds a NUL byte", where(r));
    *text = trd__arena_strdup(r->config->arena, value);
    return *text ? TRD_OK : TRD_NO_MEMORY;
}

static bool is_rules(const char *key)
{
    const trd__key *found = trd__key_find(key);
    return found && found->kind == TRD__KEY_RULES;
}

static const char rule_form[] = "a rule is [name, axis], [name, [axis, ...]] or [name, null]";

/* One more word of a rule; null is none. */
static trd_status add_word(reader *r, const char *key, const char **rule)
{
    const char *word = NULL;
    TRD_TRY(copy_scalar(r, &word));
    bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (*rule && plain && (!strcmp(word, "null") || !strcmp(word, "~") || !strcmp(word, "None")))
        return TRD_OK;
    if (!*word || strchr(word, ' '))
        return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s: \"%s\" is no name", where(r), key, word);
    *rule = *rule ? trd__arena_format(r->config->arena, "%s %s", *rule, word) : word;
    return *rule ? TRD_OK : TRD_NO_MEMORY;
}

/* The words of one rule, nested or not; its sequence has begun. */
static trd_status read_rule(reader *r, const char *key, const char **rule)
{
    int depth = 1, words = 0, values = 0;
    *rule = NULL;
    while (depth > 0) {
        TRD_TRY(next(r));
        bool scalar = r->event.type == YAML_SCALAR_EVENT;
        if (r->event.type == YAML_SEQUENCE_END_EVENT) {
            depth--;
            continue;
        }
        values += depth == 1;
        bool nested = r->event.type == YAML_SEQUENCE_START_EVENT && depth == 1 && words > 0;
        if ((!scalar && !nested) || values > 2)
            return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s: %s", where(r), key, rule_form);
        depth += nested;
        if (scalar) TRD_TRY(add_word(r, key, rule));
        words += scalar;
    }
    if (values == 2) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s: %s", where(r), key, rule_form);
}

static trd_status read_list(reader *r, const char *key, trd__text_list *list)
{
    const char *items[MOST_ITEMS];
    const bool rules = is_rules(key);
    int count = 0;
    for (;;) {
        TRD_TRY(next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) break;
        if (r->event.type != (rules ? YAML_SEQUENCE_START_EVENT : YAML_SCALAR_EVENT))
            return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s: %s", where(r), key,
                             rules ? rule_form : "a list may hold plain values only");
        if (count == MOST_ITEMS)
            return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s: more than %d items", where(r), key, MOST_ITEMS);
        TRD_TRY(rules ? read_rule(r, key, &items[count]) : copy_scalar(r, &items[count]));
        count++;
    }
    list->count = count;
    list->items = trd__arena_alloc(r->config->arena, (size_t)count + 1, sizeof *list->items);
    if (!list->items) return TRD_NO_MEMORY;
    memcpy(list->items, items, (size_t)count * sizeof *items);
    return TRD_OK;
}

static trd_status read_mapping(reader *r, const char *prefix, int depth, trd__text_list *seen);

/* The event at hand begins the value of key. */
static trd_status read_value(reader *r, const char *key, int depth, trd__text_list *seen)
{
    trd__raw_value value = {.where = where(r)};
    if (r->event.type == YAML_MAPPING_START_EVENT) return read_mapping(r, key, depth + 1, seen);
    if (r->event.type == YAML_SCALAR_EVENT) {
        TRD_TRY(copy_scalar(r, &value.text));
        value.quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        if (!value.quoted && (!strcmp(value.text, "null") || !strcmp(value.text, "~"))) value.text = "";
    } else {
        TRD_TRY(read_list(r, key, &value.list));
    }
    return trd__config_set(r->config, key, &value);
}

static trd_status note_key(reader *r, const char *key, trd__text_list *seen)
{
    if (strlen(key) > LONGEST_KEY)
        return trd__fail(TRD_INVALID_ARGUMENT, "%s: a key of over %d characters", where(r), LONGEST_KEY);
    for (int i = 0; i < seen->count; i++)
        if (strcmp(seen->items[i], key) == 0)
            return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s is given twice", where(r), key);
    if (seen->count == MOST_ITEMS)
        return trd__fail(TRD_INVALID_ARGUMENT, "%s: more than %d keys", r->name, MOST_ITEMS);
    seen->items[seen->count++] = key;
    return TRD_OK;
}

static trd_status read_mapping(reader *r, const char *prefix, int depth, trd__text_list *seen)
{
    if (depth > DEEPEST)
        return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s: nested too deeply", where(r), prefix);
    for (;;) {
        TRD_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return TRD_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return trd__fail(TRD_INVALID_ARGUMENT, "%s: expected a key", where(r));
        const char *name = NULL;
        TRD_TRY(copy_scalar(r, &name));
        const char *key = *prefix ? trd__arena_format(r->config->arena, "%s.%s", prefix, name) : name;
        if (!key) return TRD_NO_MEMORY;
        TRD_TRY(note_key(r, key, seen));
        TRD_TRY(next(r));
        TRD_TRY(read_value(r, key, depth, seen));
    }
}

/* Reads up to the first event of the document; an empty document gives a stream end. */
static trd_status open_document(reader *r)
{
    TRD_TRY(next(r));
    TRD_TRY(next(r));
    return r->event.type == YAML_DOCUMENT_START_EVENT ? next(r) : TRD_OK;
}

/* Nothing may follow the document. */
static trd_status close_document(reader *r, const char *what)
{
    TRD_TRY(next(r)); /* document end */
    TRD_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT, "%s: %s is one YAML document, found a second", where(r), what);
}

static trd_status read_document(reader *r, trd__text_list *seen)
{
    TRD_TRY(open_document(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return TRD_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return trd__fail(TRD_INVALID_ARGUMENT, "%s: expected lines of \"key: value\"", where(r));
    TRD_TRY(read_mapping(r, "", 0, seen));
    return close_document(r, "a config");
}

/* The value of an override; nothing after the equals sign is an empty text. */
static trd_status read_single(reader *r, const char *key, trd__text_list *seen)
{
    trd__raw_value empty = {.text = "", .where = r->name};
    TRD_TRY(open_document(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return trd__config_set(r->config, key, &empty);
    TRD_TRY(read_value(r, key, 0, seen));
    return close_document(r, "a value");
}

/* key NULL: a whole document. */
static trd_status read_text(reader *r, const char *key, const char *text, size_t bytes)
{
    trd__text_list seen = {.items = trd__arena_alloc(r->config->arena, MOST_ITEMS, sizeof(char *))};
    if (!seen.items) return TRD_NO_MEMORY;
    if (!yaml_parser_initialize(&r->parser))
        return trd__fail(TRD_NO_MEMORY, "reading %s: out of memory", r->name);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, bytes);
    trd_status status = key ? read_single(r, key, &seen) : read_document(r, &seen);
    yaml_event_delete(&r->event);
    yaml_parser_delete(&r->parser);
    return status;
}

trd_status trd__config_read_yaml(trd_config *config, const char *path)
{
    trd__file_map map;
    TRD_TRY(trd__file_map_open(path, &map));
    reader r = {.config = config, .name = path};
    trd_status status = read_text(&r, NULL, map.data ? (const char *)map.data : "", map.bytes);
    trd__file_map_close(&map);
    return status;
}

trd_status trd__config_read_override(trd_config *config, const char *override)
{
    const char *equals = strchr(override, '=');
    if (!equals || equals == override)
        return trd__fail(TRD_INVALID_ARGUMENT, "override \"%s\": expected key=value", override);
    const char *key = trd__arena_strndup(config->arena, override, (size_t)(equals - override));
    const char *name = trd__arena_format(config->arena, "override %s", override);
    if (!key || !name) return TRD_NO_MEMORY;
    reader r = {.config = config, .name = name, .is_override = true};
    return read_text(&r, key, equals + 1, strlen(equals + 1));
}
