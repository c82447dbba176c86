/* The public view of what a path holds: a thin layer over the weights source and one stored checkpoint. */
#include <treadle/checkpoint.h>

#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/file.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "checkpoint/store_files.h"
#include "checkpoint/weights.h"
#include "formats/json.h"

struct trd_contents {
    char *path;
    trd__weights *weights; /* either this */
    trd__stored *stored;   /* or that */
    const trd__pair *metadata;
    size_t metadata_count;
    trd__json_doc *state; /* of stored, and what its members are shown as */
    trd__arena *arena;
};

/* A member of state.json in a few words: what is long is counted. */
static const char *member_text(trd__arena *arena, trd__json value)
{
    trd__json_writer w = {0};
    const char *text = NULL;
    trd__json_kind kind = trd__json_kind_of(value);
    if (kind == TRD__JSON_STRING && trd__json_as_string(value, &text) == TRD_OK) return text;
    if (kind == TRD__JSON_ARRAY || kind == TRD__JSON_OBJECT)
        return trd__arena_format(arena, "%zu entries", trd__json_count(value));
    trd__json_write_value(&w, value);
    if (trd__json_finish(&w) == TRD_OK) text = trd__arena_strdup(arena, w.text);
    trd__json_writer_free(&w);
    return text;
}

static trd_status list_state(trd_contents *c)
{
    size_t bytes;
    const char *text = trd__stored_json(c->stored, &bytes);
    TRD_TRY(trd__json_parse(text, bytes, TRD__STORE_STATE, &c->state));
    trd__json root = trd__json_root(c->state);
    c->arena = trd__arena_create();
    trd__pair *pairs = c->arena ? trd__arena_alloc(c->arena, trd__json_count(root) + 1, sizeof *pairs) : NULL;
    if (!pairs) return TRD_NO_MEMORY;
    for (trd__json v = trd__json_first(root); trd__json_exists(v); v = trd__json_next(v)) {
        trd__pair pair = {trd__json_key(v), member_text(c->arena, v)};
        if (!pair.value) return TRD_NO_MEMORY;
        pairs[c->metadata_count++] = pair;
    }
    c->metadata = pairs;
    return TRD_OK;
}

static trd_status is_checkpoint(const char *path, bool *yes)
{
    *yes = false;
    if (!trd__is_directory(path)) return TRD_OK;
    char *manifest = trd__path_join(path, TRD__STORE_MANIFEST);
    if (!manifest) return TRD_NO_MEMORY;
    *yes = trd__file_exists(manifest);
    trd__free(manifest);
    return TRD_OK;
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
    bool checkpoint;
    TRD_TRY(is_checkpoint(path, &checkpoint));
    if (!checkpoint && trd__is_directory(path)) TRD_TRY(find_newest(path, &newest));
    c->path = newest ? newest : trd__strdup(path);
    if (!c->path) return TRD_NO_MEMORY;
    if (checkpoint || newest) {
        TRD_TRY(trd__stored_open(c->path, &c->stored));
        return list_state(c);
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
    trd__arena_free(c->arena);
    trd__json_free(c->state);
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
