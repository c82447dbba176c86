/* Loading a config, its values as text, and the documentation of the keys. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "config/config.h"

static const char *const resume_names[] = {"free", "portable", "fixed"};
static const char *const kind_names[] = {"integer", "number", "true or false", "text",
                                         "choice",  "list",   "list of rules"};

static trd_status set_defaults(trd_config *config)
{
    for (int i = 0; i < trd__key_count(); i++) {
        const trd__key *key = trd__key_at(i);
        if (!key->name) continue;
        if (key->kind == TRD__KEY_TEXT || key->kind == TRD__KEY_CHOICE)
            *(const char **)(void *)((char *)&config->values + key->field) = key->preset;
        trd__raw_value value = {.text = key->preset, .where = "default"};
        if (*key->preset) TRD_TRY(trd__config_set(config, key->name, &value));
    }
    return TRD_OK;
}

static trd_status load(trd_config *config, const char *path, const char *const *overrides, int count)
{
    TRD_TRY(set_defaults(config));
    if (path) TRD_TRY(trd__config_read_yaml(config, path));
    for (int i = 0; i < count; i++) TRD_TRY(trd__config_read_override(config, overrides[i]));
    TRD_TRY(trd__config_resolve(config));
    TRD_TRY(trd__config_fingerprint(config));
    config->engine.fingerprint = config->fingerprint;
    config->engine.compare_fingerprint = trd__config_compare;
    config->engine.compare_user = config;
    return TRD_OK;
}

trd_status trd_config_load(const char *path, const char *const *overrides, int override_count,
                           trd_config **out)
{
    *out = NULL;
    trd__arena *arena = trd__arena_create();
    trd_config *config = arena ? trd__arena_alloc(arena, 1, sizeof *config) : NULL;
    if (!config) {
        trd__arena_free(arena);
        return TRD_NO_MEMORY;
    }
    config->arena = arena;
    trd_status status = load(config, path, overrides, override_count);
    if (status)
        trd_config_free(config);
    else
        *out = config;
    return status;
}

void trd_config_free(trd_config *config)
{
    if (!config) return;
    trd_tokenizer_close(config->tokenizer);
    trd__arena_free(config->arena);
}

const trd_engine_options *trd_config_engine(const trd_config *config)
{
    return &config->engine;
}

void trd_config_set_log(trd_config *config, trd_log_sink log)
{
    config->engine.log = config->train.log = config->eval.log = log;
}

bool trd_config_has_eval(const trd_config *config)
{
    return config->values.eval_files.count > 0;
}

trd_status trd_config_tokenizer(trd_config *config, const trd_tokenizer **tokenizer)
{
    const trd__config_values *v = &config->values;
    if (!config->tokenizer) {
        const char *path = *v->tokenizer_path ? v->tokenizer_path : v->load_parameters_path;
        if (!*path)
            return trd__fail(
                TRD_INVALID_ARGUMENT,
                "config: tokenizer_path is empty and so is load_parameters_path; give one of them");
        TRD_TRY(trd_tokenizer_open(path, &config->tokenizer));
        if (*v->chat_template) TRD_TRY(trd_tokenizer_set_chat_template(config->tokenizer, v->chat_template));
    }
    *tokenizer = config->tokenizer;
    return TRD_OK;
}

static trd_status data_options(trd_config *config, trd_data_options *data, const char *key,
                               const trd_data_options **out)
{
    if (data->file_count == 0)
        return trd__fail(TRD_INVALID_ARGUMENT, "config: %s is empty; give one or more JSONL files", key);
    TRD_TRY(trd_config_tokenizer(config, &data->tokenizer));
    *out = data;
    return TRD_OK;
}

trd_status trd_config_data(trd_config *config, const trd_data_options **options)
{
    return data_options(config, &config->train, "train_files", options);
}

trd_status trd_config_eval_data(trd_config *config, const trd_data_options **options)
{
    return data_options(config, &config->eval, "eval_files", options);
}

static bool has_control(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ') return true;
    return false;
}

/* Text as a quoted YAML scalar: single quotes, where a quote is written twice; with control characters, which
 * single quotes would fold away, double quotes and escapes. */
static const char *quoted(const trd_config *config, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    bool escape = has_control(text);
    char quote = escape ? '"' : '\'';
    char *copy = trd__arena_alloc(config->arena, 4 * strlen(text) + 3, 1);
    char *to = copy;
    if (!copy) return NULL;
    *to++ = quote;
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (escape && c < ' ') {
            *to++ = '\\';
            *to++ = 'x';
            *to++ = hex[c >> 4];
            *to++ = hex[c & 15];
            continue;
        }
        if (*text == quote || (escape && *text == '\\')) *to++ = escape ? '\\' : quote;
        *to++ = *text;
    }
    *to = quote;
    return copy;
}

static const char *list_text(const trd_config *config, const trd__text_list *list)
{
    const char *text = "[";
    for (int i = 0; text && i < list->count; i++) {
        const char *item = quoted(config, list->items[i]);
        text = item ? trd__arena_format(config->arena, "%s%s%s", text, i ? ", " : "", item) : NULL;
    }
    return text ? trd__arena_format(config->arena, "%s]", text) : NULL;
}

/* A rule is its words: ['name', ['axis', ...]]. */
static const char *rule_text(const trd_config *config, const char *words)
{
    const char *text = "[", *separator = "";
    for (const char *word = words; text && *word;) {
        size_t length = strcspn(word, " ");
        const char *copy = trd__arena_strndup(config->arena, word, length);
        const char *item = copy ? quoted(config, copy) : NULL;
        text = item ? trd__arena_format(config->arena, "%s%s%s", text, separator, item) : NULL;
        if (text && word == words) text = trd__arena_format(config->arena, "%s, [", text);
        separator = word == words ? "" : ", ";
        word += length + (word[length] == ' ');
    }
    return text ? trd__arena_format(config->arena, "%s]]", text) : NULL;
}

static const char *rules_text(const trd_config *config, const trd__text_list *rules)
{
    const char *text = "[";
    for (int i = 0; text && i < rules->count; i++) {
        const char *rule = rule_text(config, rules->items[i]);
        text = rule ? trd__arena_format(config->arena, "%s%s%s", text, i ? ", " : "", rule) : NULL;
    }
    return text ? trd__arena_format(config->arena, "%s]", text) : NULL;
}

/* Shortest decimal text that reads back as value. */
static const char *real_text(const trd_config *config, double value)
{
    char text[64];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return trd__arena_strdup(config->arena, text);
}

const char *trd__config_value_text(const trd_config *config, const trd__key *key)
{
    const void *field = (const char *)&config->values + key->field;
    switch (key->kind) {
    case TRD__KEY_INT:
        return trd__arena_format(config->arena, "%" PRId64, *(const int64_t *)field);
    case TRD__KEY_REAL:
        return real_text(config, *(const double *)field);
    case TRD__KEY_BOOL:
        return *(const bool *)field ? "true" : "false";
    case TRD__KEY_LIST:
        return list_text(config, field);
    case TRD__KEY_RULES:
        return rules_text(config, field);
    case TRD__KEY_CHOICE:
        return *(const char *const *)field;
    case TRD__KEY_TEXT:
        break;
    }
    return quoted(config, *(const char *const *)field);
}

const char *trd_config_get(const trd_config *config, const char *name)
{
    const trd__key *key = trd__key_find(name);
    if (!key) return NULL;
    if (key->kind == TRD__KEY_TEXT)
        return *(const char *const *)(const void *)((const char *)&config->values + key->field);
    return trd__config_value_text(config, key);
}

trd_status trd_config_to_yaml(const trd_config *config, char **yaml)
{
    const char *text = "# Every key with the value this run used.\n";
    *yaml = NULL;
    for (int i = 0; text && i < trd__key_count(); i++) {
        const trd__key *key = trd__key_at(i);
        if (key->section) {
            text = trd__arena_format(config->arena, "%s\n# %s\n", text, key->section);
            continue;
        }
        const char *value = trd__config_value_text(config, key);
        text = value ? trd__arena_format(config->arena, "%s%s: %s\n", text, key->name, value) : NULL;
    }
    *yaml = text ? trd__strdup(text) : NULL;
    return *yaml ? TRD_OK : TRD_NO_MEMORY;
}

bool trd_config_describe(int wanted, trd_config_key *out)
{
    const char *section = "";
    for (int i = 0; i < trd__key_count(); i++) {
        const trd__key *key = trd__key_at(i);
        if (key->section) section = key->section;
        if (!key->name || wanted-- > 0) continue;
        *out = (trd_config_key){.section = section,
                                .name = key->name,
                                .type = kind_names[key->kind],
                                .choices = key->choices ? key->choices : "",
                                .min = key->min,
                                .max = key->max,
                                .preset = key->preset,
                                .resume = resume_names[key->resume],
                                .help = key->help};
        return true;
    }
    return false;
}
