/* Folder layout of transformers: model.safetensors, or model.safetensors.index.json whose weight_map gives
 * each tensor's shard. Invariant of an open folder: every file listed exists. */
#include "checkpoint/hub_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

static const char single[] = "model.safetensors", index_name[] = "model.safetensors.index.json";

/* What a folder without weights may hold instead, and what to do. */
static const struct {
    const char *pattern, *advice;
} others[] = {
    {"model-*-of-*.safetensors", "shards, but not model.safetensors.index.json; download the index too"},
    {"adapter_model.safetensors", "an adapter (LoRA), not a whole model; give the base model"},
    {"*.bin",
     "PyTorch pickles only, which are never loaded because they can run code; convert them to safetensors"},
    {"*.pt",
     "PyTorch pickles only, which are never loaded because they can run code; convert them to safetensors"},
    {"*.pth",
     "PyTorch pickles only, which are never loaded because they can run code; convert them to safetensors"},
    {"*.gguf", "a GGUF file; give the path of the file itself"},
    {"*.msgpack", "Flax weights, which are not supported; convert them to safetensors"},
    {"*.h5", "TensorFlow weights, which are not supported; convert them to safetensors"},
    {"step-*", "checkpoints of a training run; give one of them, or export it first"},
};

static trd_status nothing_found(const char *path)
{
    const char *advice = NULL;
    size_t best = sizeof others / sizeof *others;
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        for (size_t i = 0; i < best; i++)
            if (fnmatch(others[i].pattern, entry->d_name, 0) == 0) {
                best = i;
                advice = others[i].advice;
            }
    if (directory) closedir(directory);
    if (advice)
        return trd__fail(TRD_NOT_FOUND, "opening weights %s: expected %s or %s, found %s", path, single,
                         index_name, advice);
    return trd__fail(TRD_NOT_FOUND, "opening weights %s: expected %s or %s, found neither", path, single,
                     index_name);
}

static trd_status add_file(trd__hub_folder *folder, char *path)
{
    char **grown = path ? trd__realloc(folder->files, folder->count + 1, sizeof *grown) : NULL;
    if (!grown) {
        trd__free(path);
        return TRD_NO_MEMORY;
    }
    folder->files = grown;
    folder->files[folder->count++] = path;
    return TRD_OK;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool find_file(const trd__hub_folder *folder, const char *name, size_t *found)
{
    for (size_t i = folder->count; i-- > 0;) /* neighbours in the index mostly share a shard */
        if (strcmp(base_name(folder->files[i]), name) == 0) {
            *found = i;
            return true;
        }
    return false;
}

trd_status trd__hub_folder_shard(const trd__hub_folder *folder, trd__json entry, size_t *shard)
{
    const char *name = "";
    TRD_TRY(trd__json_as_string(entry, &name));
    if (!find_file(folder, name, shard))
        return trd__json_fail(entry, TRD_CORRUPT, "no such shard: \"%s\"", name);
    return TRD_OK;
}

static trd_status add_shards(const char *path, trd__hub_folder *folder)
{
    trd__json map;
    TRD_TRY(trd__json_get_object(trd__json_root(folder->index), "weight_map", &map));
    for (trd__json entry = trd__json_first(map); trd__json_exists(entry); entry = trd__json_next(entry)) {
        const char *name = "";
        size_t known;
        TRD_TRY(trd__json_as_string(entry, &name));
        if (find_file(folder, name, &known)) continue;
        if (*name == '\0' || strchr(name, '/'))
            return trd__json_fail(entry, TRD_CORRUPT,
                                  "expected the name of a file in the same folder, found \"%s\"", name);
        char *file = trd__path_join(path, name);
        if (file && !trd__file_exists(file)) {
            trd__free(file);
            return trd__fail(
                TRD_NOT_FOUND,
                "opening weights %s: shard %s is listed in %s but is not in the folder; download it", path,
                name, index_name);
        }
        TRD_TRY(add_file(folder, file));
    }
    if (folder->count > 0) return TRD_OK;
    return trd__json_fail(map, TRD_CORRUPT, "expected tensor names and shards, found none");
}

/* A shard that the index does not know means that its tensors would be lost in silence. */
static trd_status check_unlisted(const char *path, const trd__hub_folder *folder)
{
    trd_status status = TRD_OK;
    size_t known;
    DIR *directory = opendir(path);
    if (!directory) return trd__fail(TRD_IO, "opening folder %s: %s", path, strerror(errno));
    for (struct dirent *entry; !status && (entry = readdir(directory));)
        if (fnmatch("model-*-of-*.safetensors", entry->d_name, 0) == 0 &&
            !find_file(folder, entry->d_name, &known))
            status = trd__fail(
                TRD_CORRUPT,
                "opening weights %s: shard %s is missing from %s; download the matching index, or remove "
                "the shard if it belongs to another model",
                path, entry->d_name, index_name);
    closedir(directory);
    return status;
}

static trd_status open_index(const char *path, const char *index, trd__hub_folder *folder)
{
    TRD_TRY(trd__json_parse_file(index, &folder->index));
    TRD_TRY(add_shards(path, folder));
    return check_unlisted(path, folder);
}

trd_status trd__hub_folder_open(const char *path, trd__hub_folder *folder)
{
    *folder = (trd__hub_folder){0};
    char *file = trd__path_join(path, single), *index = trd__path_join(path, index_name);
    trd_status status = TRD_NO_MEMORY;
    if (file && index) {
        if (trd__file_exists(file)) {
            status = add_file(folder, file);
            file = NULL; /* owned by the folder, or freed */
        } else {
            status = trd__file_exists(index) ? open_index(path, index, folder) : nothing_found(path);
        }
    }
    trd__free(index);
    trd__free(file);
    if (status) trd__hub_folder_close(folder);
    return status;
}

void trd__hub_folder_close(trd__hub_folder *folder)
{
    for (size_t i = 0; i < folder->count; i++) trd__free(folder->files[i]);
    trd__free(folder->files);
    trd__json_free(folder->index);
    *folder = (trd__hub_folder){0};
}
