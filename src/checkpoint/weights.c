/* One table of tensors over whatever files they lie in. Invariant of an open source: entries are sorted by
 * unique hub name and each points at bytes whose count its type and shape need. */
#include "checkpoint/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/hub_folder.h"
#include "checkpoint/weights_metadata.h"
#include "formats/json.h"

/* Elements converted at a time on the stack: a multiple of every block, small enough for the first-level
 * cache. */
enum { CHUNK = 2048 };

typedef struct entry {
    trd__weight weight;
    const void *data;
    trd__gguf_type type; /* TRD__GGUF_TYPE_COUNT: plain elements of weight.dtype */
    int64_t head_dim;    /* rows a head where they are permuted, else 0 */
} entry;

struct trd__weights {
    char *path;
    trd__arena *arena;
    trd__gguf *gguf;
    trd__safetensors **files;
    size_t file_count;
    entry *entries;
    size_t count;
    char *config;
    trd__pair *metadata;
    size_t metadata_count;
};

static int compare(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->weight.name, ((const entry *)b)->weight.name);
}

static trd_status sort_entries(trd__weights *w)
{
    if (w->count) qsort(w->entries, w->count, sizeof *w->entries, compare);
    for (size_t i = 1; i < w->count; i++)
        if (compare(&w->entries[i - 1], &w->entries[i]) == 0)
            return trd__fail(TRD_CORRUPT, "opening weights %s: tensor %s is there twice", w->path,
                             w->entries[i].weight.name);
    return TRD_OK;
}

static trd_status add_safetensors(trd__weights *w, const char *path)
{
    trd__safetensors **files = trd__realloc(w->files, w->file_count + 1, sizeof *files);
    if (!files) return TRD_NO_MEMORY;
    w->files = files;
    TRD_TRY(trd__safetensors_open(path, &files[w->file_count]));
    const trd__safetensors *file = files[w->file_count++];
    size_t added = trd__safetensors_count(file);
    entry *entries = trd__realloc(w->entries, w->count + added + 1, sizeof *entries);
    if (!entries) return TRD_NO_MEMORY;
    w->entries = entries;
    for (size_t i = 0; i < added; i++) {
        const trd__safetensor *t = trd__safetensors_at(file, i);
        trd__weight weight = {t->name, t->type, t->dtype, t->shape, t->bytes};
        if (!trd__dtype_is_float(t->dtype) && t->dtype > TRD_BOOL) weight.dtype = TRD_DTYPE_COUNT;
        w->entries[w->count++] = (entry){weight, t->data, TRD__GGUF_TYPE_COUNT, 0};
    }
    return TRD_OK;
}

/* Each tensor of the index must be in the shard it names. */
static trd_status check_index(const trd__weights *w, const trd__hub_folder *folder)
{
    trd__json map = trd__json_find(trd__json_root(folder->index), "weight_map");
    for (trd__json v = trd__json_first(map); trd__json_exists(v); v = trd__json_next(v)) {
        size_t shard = 0;
        TRD_TRY(trd__hub_folder_shard(folder, v, &shard));
        if (!trd__safetensors_find(w->files[shard], trd__json_key(v)))
            return trd__fail(TRD_CORRUPT,
                             "opening weights %s: the index says that %s is in %s, which does not hold it",
                             w->path, trd__json_key(v), folder->files[shard]);
    }
    return TRD_OK;
}

static trd_status read_config_file(trd__weights *w, const char *folder)
{
    trd__file_map map;
    trd__json_doc *doc = NULL; /* only to refuse a file that is no JSON here, where its path is known */
    char *path = trd__path_join(folder, "config.json");
    if (!path) return TRD_NO_MEMORY;
    trd_status status = TRD_OK;
    if (trd__file_exists(path)) {
        status = trd__file_map_open(path, &map);
        if (!status) status = trd__json_parse((const char *)map.data, map.bytes, path, &doc);
        trd__json_free(doc);
        if (!status) {
            w->config = trd__alloc(map.bytes + 1, 1);
            if (w->config) memcpy(w->config, map.data, map.bytes);
            if (w->config) w->config[map.bytes] = '\0';
            if (!w->config) status = TRD_NO_MEMORY;
        }
        trd__file_map_close(&map);
    }
    trd__free(path);
    return status;
}

static trd_status open_folder(trd__weights *w)
{
    trd__hub_folder folder;
    TRD_TRY(trd__hub_folder_open(w->path, &folder));
    trd_status status = TRD_OK;
    for (size_t i = 0; !status && i < folder.count; i++) status = add_safetensors(w, folder.files[i]);
    if (!status && folder.index) status = check_index(w, &folder);
    trd__hub_folder_close(&folder);
    return status ? status : read_config_file(w, w->path);
}

static trd_status open_single(trd__weights *w)
{
    TRD_TRY(add_safetensors(w, w->path));
    const char *slash = strrchr(w->path, '/');
    char *folder = slash ? trd__format("%.*s", (int)(slash - w->path) + 1, w->path) : trd__strdup(".");
    if (!folder) return TRD_NO_MEMORY;
    trd_status status = read_config_file(w, folder);
    trd__free(folder);
    return status;
}

/* Heads of the query or key projection, for the permutation. */
static trd_status head_rows(const trd__weights *w, const trd__gguf_tensor *tensor, bool key,
                            int64_t *head_dim)
{
    int64_t heads = 0;
    TRD_TRY(trd__gguf_get_i64(w->gguf, "llama.attention.head_count", &heads));
    if (key) TRD_TRY(trd__gguf_opt_i64(w->gguf, "llama.attention.head_count_kv", &heads));
    int64_t rows = tensor->shape.rank ? tensor->shape.dim[0] : 0;
    bool whole_rows = tensor->shape.rank == 2 || trd__gguf_block_elements(tensor->type) == 1;
    if (heads <= 0 || rows % heads != 0 || rows / heads % 2 != 0 || !whole_rows)
        return trd__fail(TRD_CORRUPT, "opening weights %s: %lld rows of %s do not divide into %lld heads",
                         w->path, (long long)rows, tensor->name, (long long)heads);
    *head_dim = rows / heads;
    return TRD_OK;
}

static trd_status add_gguf_tensor(trd__weights *w, const trd__gguf_architecture *architecture,
                                  const trd__gguf_tensor *tensor)
{
    char hub[TRD__GGUF_NAME_BYTES];
    bool mapped = architecture && trd__gguf_hub_name(tensor->name, hub), key;
    if (architecture && strcmp(tensor->name, "rope_freqs.weight") == 0)
        return TRD_OK; /* part of the config */
    entry *e = &w->entries[w->count];
    *e = (entry){.data = tensor->data, .type = tensor->type};
    e->weight = (trd__weight){.name = mapped ? trd__arena_strdup(w->arena, hub) : tensor->name,
                              .type = trd__gguf_type_name(tensor->type),
                              .dtype = tensor->type == TRD__GGUF_TYPE_BF16  ? TRD_BF16
                                       : tensor->type == TRD__GGUF_TYPE_F16 ? TRD_F16
                                                                            : TRD_F32,
                              .shape = tensor->shape,
                              .bytes = tensor->bytes};
    if (!e->weight.name) return TRD_NO_MEMORY;
    if (trd__gguf_block_elements(tensor->type) == 1) e->type = TRD__GGUF_TYPE_COUNT;
    w->count++;
    if (mapped && architecture->permuted && trd__gguf_permuted_name(hub, &key))
        TRD_TRY(head_rows(w, tensor, key, &e->head_dim));
    return TRD_OK;
}

static trd_status open_gguf(trd__weights *w)
{
    TRD_TRY(trd__gguf_open(w->path, &w->gguf));
    const trd__gguf_architecture *architecture = trd__gguf_architecture_of(w->gguf);
    size_t count = trd__gguf_tensor_count(w->gguf);
    w->entries = trd__calloc(count + 1, sizeof *w->entries);
    if (!w->entries) return TRD_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        TRD_TRY(add_gguf_tensor(w, architecture, trd__gguf_tensor_at(w->gguf, i)));
    trd_status status = trd__gguf_config(w->gguf, &w->config);
    return status ? trd__fail_in(status, "opening weights %s", w->path) : TRD_OK;
}

static bool is_gguf(const char *path)
{
    trd__file_map map;
    size_t length = strlen(path);
    if (length > 5 && strcmp(path + length - 5, ".gguf") == 0) return true;
    if (trd__file_map_open(path, &map)) return false;
    bool magic = map.bytes >= 4 && memcmp(map.data, "GGUF", 4) == 0;
    trd__file_map_close(&map);
    return magic;
}

static trd_status open_path(trd__weights *w, const char *path)
{
    w->path = trd__strdup(path);
    w->arena = trd__arena_create();
    if (!w->path || !w->arena) return TRD_NO_MEMORY;
    if (trd__is_directory(path))
        TRD_TRY(open_folder(w));
    else if (is_gguf(path))
        TRD_TRY(open_gguf(w));
    else
        TRD_TRY(open_single(w));
    TRD_TRY(sort_entries(w));
    const trd__safetensors *first = w->file_count ? w->files[0] : NULL;
    return trd__weights_describe(w->gguf, first, w->config, w->arena, &w->metadata, &w->metadata_count);
}

trd_status trd__weights_open(const char *path, trd__weights **out)
{
    *out = NULL;
    trd__weights *w = trd__calloc(1, sizeof *w);
    if (!w) return TRD_NO_MEMORY;
    trd_status status = open_path(w, path);
    if (status) {
        trd__weights_close(w);
        return status;
    }
    *out = w;
    return TRD_OK;
}

void trd__weights_close(trd__weights *w)
{
    if (!w) return;
    trd__free(w->config);
    trd__free(w->entries);
    for (size_t i = 0; i < w->file_count; i++) trd__safetensors_close(w->files[i]);
    trd__free(w->files);
    trd__gguf_close(w->gguf);
    trd__arena_free(w->arena);
    trd__free(w->path);
    trd__free(w);
}

size_t trd__weights_count(const trd__weights *w)
{
    return w->count;
}
const trd__weight *trd__weights_at(const trd__weights *w, size_t i)
{
    return &w->entries[i].weight;
}

static const entry *find(const trd__weights *w, const char *name)
{
    entry key = {.weight.name = name};
    return w->count ? bsearch(&key, w->entries, w->count, sizeof *w->entries, compare) : NULL;
}

const trd__weight *trd__weights_find(const trd__weights *w, const char *name)
{
    const entry *found = find(w, name);
    return found ? &found->weight : NULL;
}

/* Elements of a plain type, whose address in the file may be unaligned. */
static void read_plain(trd_dtype from, const unsigned char *data, trd_dtype to, unsigned char *out,
                       size_t count)
{
    union {
        unsigned char bytes[CHUNK * sizeof(double)];
        double alignment;
    } chunk;
    size_t size = trd_dtype_bytes(from);
    if (from == to) {
        memcpy(out, data, count * size);
        return;
    }
    if ((uintptr_t)data % size == 0) {
        trd__convert(from, data, to, out, count);
        return;
    }
    for (size_t done = 0; done < count;) {
        size_t part = count - done < CHUNK ? count - done : CHUNK;
        memcpy(chunk.bytes, data + done * size, part * size);
        trd__convert(from, chunk.bytes, to, out + done * trd_dtype_bytes(to), part);
        done += part;
    }
}

static void read_blocks(trd__gguf_type type, const unsigned char *data, trd_dtype to, unsigned char *out,
                        size_t count)
{
    size_t elements = trd__gguf_block_elements(type);
    if (to == TRD_F32) {
        trd__gguf_dequantize(type, data, (float *)(void *)out, count / elements);
        return;
    }
    float chunk[CHUNK];
    for (size_t done = 0; done < count;) {
        size_t part = count - done < CHUNK ? count - done : CHUNK;
        trd__gguf_dequantize(type, data, chunk, part / elements);
        trd__convert(TRD_F32, chunk, to, out + done * trd_dtype_bytes(to), part);
        data += part / elements * trd__gguf_block_bytes(type);
        done += part;
    }
}

static void read_elements(const entry *e, const unsigned char *data, trd_dtype to, unsigned char *out,
                          size_t count)
{
    if (e->type == TRD__GGUF_TYPE_COUNT)
        read_plain(e->weight.dtype, data, to, out, count);
    else
        read_blocks(e->type, data, to, out, count);
}

trd_status trd__weights_read(const trd__weights *w, const char *name, trd_dtype dtype, void *out)
{
    const entry *e = find(w, name);
    if (!e) return trd__fail(TRD_NOT_FOUND, "reading weights %s: there is no tensor %s", w->path, name);
    trd_dtype from = e->weight.dtype;
    bool converts = dtype == from || ((unsigned)dtype < TRD_DTYPE_COUNT && trd__dtype_is_float(dtype));
    if (from == TRD_DTYPE_COUNT || !converts)
        return trd__fail(TRD_UNSUPPORTED, "reading weights %s: tensor %s of type %s cannot be read as %s",
                         w->path, name, e->weight.type, trd_dtype_name(dtype));
    size_t count = (size_t)trd__shape_count(&e->weight.shape);
    if (e->head_dim == 0) {
        read_elements(e, e->data, dtype, out, count);
        return TRD_OK;
    }
    int64_t rows = e->weight.shape.dim[0];
    size_t row_bytes = e->weight.bytes / (size_t)rows, columns = count / (size_t)rows;
    for (int64_t row = 0; row < rows; row++) {
        size_t source = (size_t)trd__gguf_permuted_row(row, e->head_dim);
        read_elements(e, (const unsigned char *)e->data + source * row_bytes, dtype,
                      (unsigned char *)out + (size_t)row * columns * trd_dtype_bytes(dtype), columns);
    }
    return TRD_OK;
}

const char *trd__weights_config(const trd__weights *w)
{
    return w->config;
}
const char *trd__weights_format(const trd__weights *w)
{
    return w->gguf ? "gguf" : "safetensors";
}
const char *trd__weights_path(const trd__weights *w)
{
    return w->path;
}

size_t trd__weights_metadata(const trd__weights *w, const trd__pair **pairs)
{
    *pairs = w->metadata;
    return w->metadata_count;
}
