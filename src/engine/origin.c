/* Opening weights files and checkpoints. A checkpoint is read where it lies, without the run's lock: it is
 * complete once its name can be seen. */
#include "engine/origin.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/store.h"
#include "checkpoint/store_files.h"
#include "formats/json.h"

void trd__origin_close(trd__origin *s)
{
    trd__stored_close(s->stored);
    trd__weights_close(s->weights);
}

trd_status trd__origin_open(const char *path, trd__origin *s)
{
    *s = (trd__origin){0};
    char *manifest = trd__path_join(path, TRD__STORE_MANIFEST);
    if (!manifest) return TRD_NO_MEMORY;
    bool checkpoint = trd__file_exists(manifest);
    trd__free(manifest);
    return checkpoint ? trd__stored_open(path, &s->stored) : trd__weights_open(path, &s->weights);
}

/* The checkpoint's own copy of config.json. */
static trd_status model_from_state(const char *state, size_t bytes, trd_model **model)
{
    trd__json_doc *doc;
    const char *config;
    TRD_TRY(trd__json_parse(state, bytes, TRD__STORE_STATE, &doc));
    trd_status status = trd__json_get_string(trd__json_root(doc), "model_config", &config);
    if (!status) status = trd_model_from_json(config, strlen(config), model);
    trd__json_free(doc);
    return status;
}

trd_status trd__origin_model(const trd__origin *s, trd_model **model)
{
    if (s->stored) {
        size_t bytes;
        const char *state = trd__stored_json(s->stored, &bytes);
        return model_from_state(state, bytes, model);
    }
    const char *config = trd__weights_config(s->weights);
    if (!config) return trd__fail(TRD_NOT_FOUND, "expected a config.json beside the weights, found none");
    return trd_model_from_json(config, strlen(config), model);
}

bool trd__origin_find(const trd__origin *s, const char *name, trd_array *array)
{
    if (s->stored) {
        const trd_array *found = trd__stored_find(s->stored, name);
        if (found) *array = *found;
        return found != NULL;
    }
    const trd__weight *weight = trd__weights_find(s->weights, name);
    if (weight) *array = (trd_array){.name = weight->name, .dtype = weight->dtype, .shape = weight->shape};
    return weight != NULL;
}
