/* Writes the files of a hub folder. Invariant: a reader that comes while they are written finds the old
 * model, an error, or the new one, never a mixture that loads: the names that lead to the weights
 * (model.safetensors or the index) are removed first where the layout changes and appear last. */
#include "checkpoint/hub_export.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"
#include "formats/json.h"
#include "formats/safetensors.h"

enum { CHUNK_BYTES = 1 << 20, SHARD_NAME_BYTES = 64 };

static const uint64_t default_shard_bytes = UINT64_C(5000000000);
static const char single[] = "model.safetensors", index_name[] = "model.safetensors.index.json";

typedef struct export
{
    const char *folder;
    const trd_array *arrays;
    size_t count;
    trd_dtype dtype;
    trd_array *converted; /* the arrays as they will lie in the files */
    size_t *shard_of;
    size_t shards;
    uint64_t total_bytes;
    void *chunk;
}
export;

static uint64_t bytes_of(const trd_array *array)
{
    return trd__tensor_bytes(&array->shape, array->dtype);
}

/* Shards in the order given, a new one whenever the next tensor would not fit. */
static trd_status plan(export *e, uint64_t shard_bytes)
{
    uint64_t used = 0;
    e->shards = 1;
    for (size_t i = 0; i < e->count; i++) {
        const trd_array *array = &e->arrays[i];
        if (!trd__dtype_is_float(array->dtype) || trd__shape_count(&array->shape) < 0)
            return trd__fail(TRD_INVALID_ARGUMENT, "exporting %s: expected a float tensor, found %s",
                             array->name, trd_dtype_name(array->dtype));
        e->converted[i] = *array;
        e->converted[i].dtype = e->dtype;
        uint64_t bytes = bytes_of(&e->converted[i]);
        if (used > 0 && used + bytes > shard_bytes) {
            e->shards++;
            used = 0;
        }
        used += bytes;
        e->total_bytes += bytes;
        e->shard_of[i] = e->shards - 1;
    }
    return TRD_OK;
}

static const char *shard_name(const export *e, size_t shard, char *name)
{
    if (e->shards == 1)
        snprintf(name, SHARD_NAME_BYTES, "%s", single);
    else
        snprintf(name, SHARD_NAME_BYTES, "model-%05zu-of-%05zu.safetensors", shard + 1, e->shards);
    return name;
}

static trd_status write_array(const export *e, const trd_array *array, trd__safetensors_writer *writer)
{
    size_t count = (size_t)trd__shape_count(&array->shape), from = trd_dtype_bytes(array->dtype);
    if (array->dtype == e->dtype) return trd__safetensors_write(writer, array->data, count * from);
    for (size_t done = 0; done < count;) {
        size_t left = count - done, most = CHUNK_BYTES / trd_dtype_bytes(e->dtype),
               part = left < most ? left : most;
        trd__convert(array->dtype, (const char *)array->data + done * from, e->dtype, e->chunk, part);
        TRD_TRY(trd__safetensors_write(writer, e->chunk, part * trd_dtype_bytes(e->dtype)));
        done += part;
    }
    return TRD_OK;
}

static trd_status write_shard(const export *e, size_t shard, size_t begin, size_t end)
{
    static const trd__pair format = {"format", "pt"};
    char name[SHARD_NAME_BYTES];
    trd__safetensors_writer *writer = NULL;
    char *path = trd__path_join(e->folder, shard_name(e, shard, name));
    if (!path) return TRD_NO_MEMORY;
    trd_status status =
        trd__safetensors_writer_open(path, e->converted + begin, end - begin, &format, 1, false, &writer);
    for (size_t i = begin; !status && i < end; i++) status = write_array(e, &e->arrays[i], writer);
    if (status)
        trd__safetensors_abandon(writer);
    else
        status = trd__safetensors_commit(writer);
    trd__free(path);
    return status;
}

static trd_status save_text(const char *folder, const char *name, const char *text, size_t bytes)
{
    char *path = trd__path_join(folder, name);
    if (!path) return TRD_NO_MEMORY;
    trd_status status = trd__file_save(path, text, bytes);
    trd__free(path);
    return status;
}

static trd_status write_index(const export *e)
{
    char name[SHARD_NAME_BYTES];
    trd__json_writer out = {.indent = 2};
    trd__json_open_object(&out);
    trd__json_write_key(&out, "metadata");
    trd__json_open_object(&out);
    trd__json_put_i64(&out, "total_size", (int64_t)e->total_bytes);
    trd__json_close(&out);
    trd__json_write_key(&out, "weight_map");
    trd__json_open_object(&out);
    for (size_t i = 0; i < e->count; i++)
        trd__json_put_string(&out, e->arrays[i].name, shard_name(e, e->shard_of[i], name));
    trd__json_close(&out);
    trd__json_close(&out);
    trd_status status = trd__json_finish(&out);
    if (!status) status = save_text(e->folder, index_name, out.text, out.bytes);
    trd__json_writer_free(&out);
    return status;
}

/* Weights of an earlier export in the other layout, or with another number of shards, would be found by
 * readers beside the new ones. */
static trd_status remove_stale(const export *e)
{
    char ours[SHARD_NAME_BYTES];
    trd_status status = TRD_OK;
    DIR *directory = opendir(e->folder);
    if (!directory) return trd__fail(TRD_IO, "opening folder %s: %s", e->folder, strerror(errno));
    for (struct dirent *entry; !status && (entry = readdir(directory));) {
        const char *name = entry->d_name;
        bool shard = fnmatch("model-*-of-*.safetensors", name, 0) == 0;
        if (!shard && strcmp(name, single) != 0 && strcmp(name, index_name) != 0) continue;
        bool kept = e->shards == 1 && strcmp(name, single) == 0;
        for (size_t i = 0; shard && e->shards > 1 && i < e->shards; i++)
            kept = kept || strcmp(name, shard_name(e, i, ours)) == 0;
        char *path = kept ? NULL : trd__path_join(e->folder, name);
        if (path)
            unlink(path);
        else if (!kept)
            status = TRD_NO_MEMORY;
        trd__free(path);
    }
    closedir(directory);
    return status;
}

static trd_status write_weights(const export *e)
{
    TRD_TRY(remove_stale(e));
    size_t begin = 0;
    for (size_t shard = 0; shard < e->shards; shard++) {
        size_t end = begin;
        while (end < e->count && e->shard_of[end] == shard) end++;
        TRD_TRY(write_shard(e, shard, begin, end));
        begin = end;
    }
    return e->shards > 1 ? write_index(e) : TRD_OK;
}

/* The source's generation_config.json, or the token ids of the config. */
static trd_status write_generation_config(const char *folder, const trd__hub_export_options *options)
{
    static const char name[] = "generation_config.json";
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    char *source = options->source ? trd__path_join(options->source, name) : NULL;
    if (source && trd__file_exists(source)) {
        trd__file_map map;
        trd_status status = trd__file_map_open(source, &map);
        if (!status) status = save_text(folder, name, (const char *)map.data, map.bytes);
        trd__file_map_close(&map);
        trd__free(source);
        return status;
    }
    trd__free(source);
    trd__json_doc *doc;
    trd__json_writer out = {.indent = 2};
    TRD_TRY(trd__json_parse(options->config, strlen(options->config), "config.json", &doc));
    trd__json_open_object(&out);
    trd__json_put_bool(&out, "_from_model_config", true);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        trd__json id = trd__json_find(trd__json_root(doc), keys[i]);
        if (trd__json_kind_of(id) <= TRD__JSON_NULL) continue;
        trd__json_write_key(&out, keys[i]);
        trd__json_write_value(&out, id);
    }
    trd__json_close(&out);
    trd_status status = trd__json_finish(&out);
    if (!status) status = save_text(folder, name, out.text, out.bytes);
    trd__json_writer_free(&out);
    trd__json_free(doc);
    return status;
}

static trd_status write_config(const char *folder, const trd__hub_export_options *options)
{
    char *text;
    TRD_TRY(trd__hub_config(options->config, options->dtype, &text));
    trd_status status = save_text(folder, "config.json", text, strlen(text));
    trd__free(text);
    return status ? status : write_generation_config(folder, options);
}

trd_status trd__hub_export(const char *folder, const trd_array *arrays, size_t count,
                           const trd__hub_export_options *options)
{
    trd_dtype dtype = options->dtype;
    if (dtype != TRD_F32 && dtype != TRD_BF16 && dtype != TRD_F16)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "exporting %s: expected float32, bfloat16 or float16, found %s", folder,
                         trd_dtype_name(dtype));
    export e = {.folder = folder, .arrays = arrays, .count = count, .dtype = dtype};
    TRD_TRY(trd__make_directories(folder));
    e.converted = trd__alloc(count, sizeof *e.converted);
    e.shard_of = trd__alloc(count, sizeof *e.shard_of);
    e.chunk = trd__alloc_aligned(CHUNK_BYTES);
    trd_status status = e.converted && e.shard_of && e.chunk ? TRD_OK : TRD_NO_MEMORY;
    if (!status) status = plan(&e, options->shard_bytes ? options->shard_bytes : default_shard_bytes);
    if (!status) status = write_config(folder, options);
    if (!status) status = write_weights(&e);
    trd__free(e.chunk);
    trd__free(e.shard_of);
    trd__free(e.converted);
    return status;
}
