/* A run's identity across restarts: every key that is not free, as "key=value" lines, and what a difference
 * means. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "config/config.h"

trd_status trd__config_fingerprint(trd_config *config)
{
    char *text = trd__arena_strdup(config->arena, "");
    for (int i = 0; text && i < trd__key_count(); i++) {
        const trd__key *key = trd__key_at(i);
        if (!key->name || key->resume == TRD__RESUME_FREE) continue;
        const char *value = trd__config_value_text(config, key);
        text = value ? trd__arena_format(config->arena, "%s%s=%s\n", text, key->name, value) : NULL;
    }
    config->fingerprint = text;
    return text ? TRD_OK : TRD_NO_MEMORY;
}

/* The value of key in a fingerprint; false when it has none. */
static bool lookup(const char *fingerprint, const char *key, const char **value, size_t *length)
{
    size_t width = strlen(key);
    for (const char *line = fingerprint; line && *line;) {
        const char *end = strchr(line, '\n');
        size_t bytes = end ? (size_t)(end - line) : strlen(line);
        if (bytes > width && line[width] == '=' && strncmp(line, key, width) == 0) {
            *value = line + width + 1;
            *length = bytes - width - 1;
            return true;
        }
        line = end ? end + 1 : NULL;
    }
    return false;
}

/* Keys that may not differ and do, for one message: the first are told, all are counted. */
enum { SHOWN = 6 };
typedef struct differences {
    char text[768];
    size_t used;
    int count;
} differences;

static void add_difference(differences *d, const char *key, int before_length, const char *before,
                           int now_length, const char *now)
{
    size_t room = sizeof d->text - d->used;
    if (++d->count > SHOWN) return;
    int wrote = snprintf(d->text + d->used, room, "%s%s was %.*s in the checkpoint and is %.*s now",
                         d->used ? "; " : "", key, before_length, before, now_length, now);
    if (wrote > 0) d->used += (size_t)wrote < room ? (size_t)wrote : room - 1;
}

/* Most portable keys change how a step is computed, these how many rows it has. */
static const char *effect_of(const char *key)
{
    static const char *const of_rows[] = {"per_device_batch_size", "micro_batch_size_to_train_on",
                                          "gradient_accumulation_steps"};
    for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++)
        if (strcmp(key, of_rows[i]) == 0)
            return "results differ where a step has another number of rows for it";
    return "results may differ in their last bits";
}

trd_status trd__config_compare(void *user, const char *saved, const char *current)
{
    const trd_config *config = user;
    differences fixed = {.count = 0};
    for (int i = 0; i < trd__key_count(); i++) {
        const trd__key *key = trd__key_at(i);
        const char *before = NULL, *now = NULL;
        size_t before_length = 0, now_length = 0;
        if (!key->name || !lookup(saved, key->name, &before, &before_length))
            continue; /* an older checkpoint */
        if (!lookup(current, key->name, &now, &now_length)) continue;
        if (before_length == now_length && strncmp(before, now, now_length) == 0) continue;
        if (key->resume == TRD__RESUME_FIXED)
            add_difference(&fixed, key->name, (int)before_length, before, (int)now_length, now);
        else
            trd__log(&config->engine.log, TRD_LOG_WARNING, "resuming: %s was %.*s and is %.*s now; %s",
                     key->name, (int)before_length, before, (int)now_length, now, effect_of(key->name));
    }
    if (fixed.count == 0) return TRD_OK;
    char more[48] = "";
    if (fixed.count > SHOWN) snprintf(more, sizeof more, "; and %d more keys", fixed.count - SHOWN);
    return trd__fail(TRD_INVALID_ARGUMENT, "resuming: %s%s; set %s back, or give another run_name",
                     fixed.text, more, fixed.count == 1 ? "it" : "them");
}
