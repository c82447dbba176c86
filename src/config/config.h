/* Inside a config: the typed values, one field per row of keys.def, and how YAML and overrides fill them.
 * Only this folder knows YAML. */
#ifndef TRD_CONFIG_CONFIG_H
#define TRD_CONFIG_CONFIG_H

#include <treadle/config.h>

#include "base/arena.h"
#include "base/status.h"

typedef struct trd__text_list {
    const char **items;
    int count;
} trd__text_list;

typedef struct trd__config_values {
#define TRD_SECTION(title)
#define TRD_INT(key, preset, min, max, resume, help) int64_t key;
#define TRD_REAL(key, preset, min, max, resume, help) double key;
#define TRD_BOOL(key, preset, resume, help) bool key;
#define TRD_TEXT(key, preset, resume, help) const char *key;
#define TRD_CHOICE(key, preset, choices, resume, help) const char *key;
#define TRD_LIST(key, resume, help) trd__text_list key;
#define TRD_RULES(key, resume, help) trd__text_list key;
#include "config/keys.def"
#undef TRD_SECTION
#undef TRD_INT
#undef TRD_REAL
#undef TRD_BOOL
#undef TRD_TEXT
#undef TRD_CHOICE
#undef TRD_LIST
#undef TRD_RULES
} trd__config_values;

typedef enum trd__key_kind {
    TRD__KEY_INT,
    TRD__KEY_REAL,
    TRD__KEY_BOOL,
    TRD__KEY_TEXT,
    TRD__KEY_CHOICE,
    TRD__KEY_LIST,
    TRD__KEY_RULES /* a list whose items are lists: each is one text, its words with spaces between */
} trd__key_kind;

typedef enum trd__resume { TRD__RESUME_FREE, TRD__RESUME_PORTABLE, TRD__RESUME_FIXED } trd__resume;

/* A row of keys.def. A row without a name opens a section. */
typedef struct trd__key {
    const char *section, *name;
    trd__key_kind kind;
    size_t field;       /* offset in trd__config_values */
    const char *preset; /* default as text */
    double min, max;
    const char *choices; /* "a|b|c" */
    trd__resume resume;
    const char *help;
} trd__key;

struct trd_config {
    trd__arena *arena;
    trd__config_values values;
    trd_engine_options engine;
    trd_data_options train, eval;
    trd_tokenizer *tokenizer;
    char *fingerprint;
};

int trd__key_count(void);
const trd__key *trd__key_at(int index);
const trd__key *trd__key_find(const char *name); /* NULL: none */

/* A value as read: one text, or a list. where names its place ("config.yml line 3", "override lr=1"). */
typedef struct trd__raw_value {
    const char *text; /* NULL: a list */
    trd__text_list list;
    bool quoted; /* written as a quoted string: never a number or bool */
    const char *where;
} trd__raw_value;

/* Sets key from value after checking type and range; an unknown key fails with the nearest or the feature. */
trd_status trd__config_set(trd_config *config, const char *key, const trd__raw_value *value);
/* Read a YAML file, or one "key=value", calling trd__config_set for every key. */
trd_status trd__config_read_yaml(trd_config *config, const char *path);
trd_status trd__config_read_override(trd_config *config, const char *override);
/* Value of a key as YAML text, in the config's arena; NULL: no memory. */
const char *trd__config_value_text(const trd_config *config, const trd__key *key);
/* Checks what several keys say together and fills the options structs. */
trd_status trd__config_resolve(trd_config *config);
/* "key=value" lines of every key that is not free, and the comparison the engine calls on resume. */
trd_status trd__config_fingerprint(trd_config *config);
trd_status trd__config_compare(void *user, const char *saved, const char *current);

#endif
