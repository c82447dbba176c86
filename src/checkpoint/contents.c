/* The public view of what a path holds: a thin layer over the weights source and one stored checkpoint. */
#include <treadle/checkpoint.h>

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "checkpoint/store_files.h"
#include "checkpoint/weights.h"

struct trd_contents {
    char *path;
    trd__weights *weights; /* either this */
    trd__stored *stored;   /* or that */
    const trd__pair *metadata;
    size_t metadata_count;
    trd__pair state;
};

static bool is_checkpoint(const char *path)
{
    char *manifest = trd__path_join(path, TRD__STORE_MANIFEST);
    bool found = manifest && trd__file_exists(manifest);
    trd__free(manifest);
    return found;
}

/* Newest checkpoint in folder, or in the "checkpoints" folder of a run; NULL: neither has one. */
static trd_status find_newest(const char *folder, char **newest)
{
    TRD_TRY(trd__store_newest_path(folder, newest));
    if (*newest) return TRD_OK;
    char *inside = trd__path_join(folder, "checkpoints");
    if (!inside) return TRD_NO_MEMORY;
    trd_status status = trd__is_directory(inside) ? trd__store_newest_path(inside, newest) : TRD_OK;
    trd__free(inside);
    return status;
}

/* A folder of checkpoints is not opened as a store, which would sweep it under a run in progress. */
static trd_status open_path(trd_contents *c, const char *path)
{
    char *newest = NULL;
    if (trd__is_directory(path) && !is_checkpoint(path)) TRD_TRY(find_newest(path, &newest));
    c->path = newest ? newest : trd__strdup(path);
    if (!c->path) return TRD_NO_MEMORY;
    if (trd__is_directory(c->path) && is_checkpoint(c->path)) {
        TRD_TRY(trd__stored_open(c->path, &c->stored));
        c->state = (trd__pair){TRD__STORE_STATE, trd__stored_json(c->stored, NULL)};
        c->metadata = &c->state;
        c->metadata_count = 1;
        return TRD_OK;
    }
    TRD_TRY(trd__weights_open(c->path, &c->weights));
    c->metadata_count = trd__weights_metadata(c->weights, &c->metadata);
    return TRD_OK;
}

trd_status trd_contents_open(const char *path, trd_contents **out)
{
    *out = NULL;
    trd_contents *c = trd__calloc(1, sizeof *c);
    if (!c) return TRD_NO_MEMORY;
    trd_status status = open_path(c, path);
    if (status) {
        trd_contents_close(c);
        return status;
    }
    *out = c;
    return TRD_OK;
}

void trd_contents_close(trd_contents *c)
{
    if (!c) return;
    trd__stored_close(c->stored);
    trd__weights_close(c->weights);
    trd__free(c->path);
    trd__free(c);
}

const char *trd_contents_kind(const trd_contents *c)
{
    return c->stored ? "checkpoint" : trd__weights_format(c->weights);
}

const char *trd_contents_path(const trd_contents *c)
{
    return c->path;
}

size_t trd_contents_tensor_count(const trd_contents *c)
{
    return c->stored ? trd__stored_count(c->stored) : trd__weights_count(c->weights);
}

trd_contents_tensor trd_contents_tensor_at(const trd_contents *c, size_t i)
{
    if (c->stored) {
        const trd_array *array = trd__stored_at(c->stored, i);
        uint64_t bytes = trd__tensor_bytes(&array->shape, array->dtype);
        return (trd_contents_tensor){array->name, trd_dtype_name(array->dtype), array->shape, bytes};
    }
    const trd__weight *weight = trd__weights_at(c->weights, i);
    return (trd_contents_tensor){weight->name, weight->type, weight->shape, weight->bytes};
}

size_t trd_contents_metadata_count(const trd_contents *c)
{
    return c->metadata_count;
}

void trd_contents_metadata_at(const trd_contents *c, size_t i, const char **key, const char **value)
{
    *key = c->metadata[i].key;
    *value = c->metadata[i].value;
}
