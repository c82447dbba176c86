/* Configuration: a YAML file and key=value overrides become the options structs of every module. Keys carry
 * MaxText's names; docs/config.md lists them all. An error names the file and line, the key, the value, the
 * range and the nearest valid key.
 *
 * A config owns every string and the tokenizer that its options point to, and must outlive their use. One
 * thread at a time. */
#ifndef TREADLE_CONFIG_H
#define TREADLE_CONFIG_H

#include <treadle/data.h>
#include <treadle/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opaque: trd_config_load makes one, trd_config_free frees it. */
typedef struct trd_config trd_config;

/* path NULL: defaults and overrides only. overrides: "key=value", the value in YAML syntax. */
TRD_API trd_status trd_config_load(const char *path, const char *const *overrides, int override_count,
                                   trd_config **config);
TRD_API void trd_config_free(trd_config *config); /* NULL is fine */

/* Where log lines of everything made from this config go. Call before the options are used. */
TRD_API void trd_config_set_log(trd_config *config, trd_log_sink log);
/* Options of an engine; sinks are the caller's to fill in a copy. Valid as long as the config. */
TRD_API const trd_engine_options *trd_config_engine(const trd_config *config);
/* Options of the training data; opens the tokenizer on first use. TRD_INVALID_ARGUMENT names the key when no
 * files are given. Valid as long as the config. */
TRD_API trd_status trd_config_data(trd_config *config, const trd_data_options **options);
/* The same of the evaluation data. */
TRD_API trd_status trd_config_eval_data(trd_config *config, const trd_data_options **options);
TRD_API bool trd_config_has_eval(const trd_config *config); /* evaluation files are given */
/* The tokenizer of tokenizer_path, or of load_parameters_path when that key is empty. */
TRD_API trd_status trd_config_tokenizer(trd_config *config, const trd_tokenizer **tokenizer);

/* Every key with its resolved value, as YAML; free with trd_text_free. */
TRD_API trd_status trd_config_to_yaml(const trd_config *config, char **yaml);
/* One resolved value as text, NULL for an unknown key. Valid as long as the config. */
TRD_API const char *trd_config_get(const trd_config *config, const char *key);

/* What a key is. Strings are static. */
typedef struct trd_config_key {
    const char *section; /* heading in docs/config.md */
    const char *name;    /* as written in a config */
    const char *type;    /* "integer", "number", "text", ... */
    const char *choices; /* "a|b|c", "" when free */
    double min;          /* of integers and numbers, 0 otherwise */
    double max;          /* of integers and numbers, 0 otherwise */
    const char *preset;  /* the default, as text */
    const char *resume;  /* "free", "portable" or "fixed" when a run is resumed */
    const char *help;    /* one sentence */
} trd_config_key;
/* Key number i, from 0; false past the last. */
TRD_API bool trd_config_describe(int i, trd_config_key *key);

#ifdef __cplusplus
}
#endif
#endif
