/* The safetensors reader. Invariant of an open file: tensors are sorted by their data, which they cover
 * without hole or overlap from the header's end to the file's end, and each one's bytes are what its shape
 * needs. */
#include "formats/safetensors.h"

#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/file.h"
#include "base/shape.h"
#include "formats/json.h"
#include "formats/safetensors_types.h"
#include "formats/sniff.h"

struct trd__safetensors {
    char *path;
    trd__file_map map;
    size_t header_bytes; /* the length field included */
    trd__arena *arena;
    trd__safetensor *tensors; /* by data */
    const trd__safetensor **by_name;
    size_t count;
    trd__pair *metadata;
    size_t metadata_count;
};

/* Why a file cannot be a safetensors file, from its first bytes; TRD_OK sets *header to the JSON's length. */
static trd_status read_length(const trd__safetensors *file, uint64_t *header)
{
    const unsigned char *data = file->map.data;
    size_t bytes = file->map.bytes;
    if (bytes == 0) return trd__fail(TRD_CORRUPT, "reading %s: the file is empty", file->path);
    uint64_t length = 0;
    if (bytes >= 8) {
        memcpy(&length, data, 8);
        length = le64toh(length);
    }
    bool plausible = bytes > 8 && length <= TRD__SAFETENSORS_HEADER_MAX && data[8] == '{';
    const char *mistake = plausible ? NULL : trd__sniff_mistake(data, bytes);
    if (mistake) return trd__fail(TRD_CORRUPT, "reading %s: it %s", file->path, mistake);
    if (bytes >= 4 && !plausible && memcmp(data, "GGUF", 4) == 0)
        return trd__fail(TRD_CORRUPT, "reading %s: it is a GGUF file, not safetensors; name it .gguf",
                         file->path);
    if (bytes < 8)
        return trd__fail(TRD_CORRUPT, "reading %s: expected a safetensors header, found a file of %zu bytes",
                         file->path, bytes);
    if (length > TRD__SAFETENSORS_HEADER_MAX)
        return trd__fail(
            TRD_CORRUPT,
            "reading %s: its first 8 bytes announce a header of %" PRIu64
            " bytes, more than the 100 MB a safetensors header may have; is this a safetensors file?",
            file->path, length);
    if (length > bytes - 8)
        return trd__fail(TRD_CORRUPT,
                         "reading %s: its header of %" PRIu64
                         " bytes is longer than the file (%zu bytes); the "
                         "download is truncated or this is no safetensors file",
                         file->path, length, bytes);
    if (!plausible)
        return trd__fail(TRD_CORRUPT,
                         "reading %s: expected a JSON object as header, found something else; is this a "
                         "safetensors file?",
                         file->path);
    *header = length;
    return TRD_OK;
}

static trd_status read_shape(trd__json entry, trd_shape *shape)
{
    trd__json dims;
    TRD_TRY(trd__json_get_array(entry, "shape", &dims));
    shape->rank = 0;
    for (trd__json d = trd__json_first(dims); trd__json_exists(d); d = trd__json_next(d)) {
        if (shape->rank == TRD_MAX_RANK)
            return trd__json_fail(dims, TRD_UNSUPPORTED, "expected at most %d axes, found more",
                                  TRD_MAX_RANK);
        TRD_TRY(trd__json_as_i64(d, &shape->dim[shape->rank]));
        if (shape->dim[shape->rank++] < 0)
            return trd__json_fail(d, TRD_CORRUPT, "expected a size, found a negative one");
    }
    return TRD_OK;
}

static trd_status read_offsets(const trd__safetensors *file, trd__json entry, size_t *begin, size_t *end)
{
    trd__json offsets;
    int64_t values[2] = {0, 0};
    TRD_TRY(trd__json_get_array(entry, "data_offsets", &offsets));
    if (trd__json_count(offsets) != 2)
        return trd__json_fail(offsets, TRD_CORRUPT, "expected begin and end, found %zu values",
                              trd__json_count(offsets));
    trd__json first = trd__json_first(offsets);
    TRD_TRY(trd__json_as_i64(first, &values[0]));
    TRD_TRY(trd__json_as_i64(trd__json_next(first), &values[1]));
    if (values[0] < 0 || values[1] < values[0])
        return trd__json_fail(offsets, TRD_CORRUPT,
                              "expected 0 <= begin <= end, found %" PRId64 " and %" PRId64, values[0],
                              values[1]);
    uint64_t available = file->map.bytes - file->header_bytes;
    if ((uint64_t)values[1] > available)
        return trd__fail(TRD_CORRUPT,
                         "reading %s: tensor %s ends at byte %" PRId64
                         " of the data, but the file holds only %" PRIu64
                         "; the download is truncated, get the file again",
                         file->path, trd__json_key(entry), values[1], available);
    *begin = (size_t)values[0];
    *end = (size_t)values[1];
    return TRD_OK;
}

static trd_status read_entry(trd__safetensors *file, trd__json entry, trd__safetensor *tensor)
{
    const char *type;
    size_t begin = 0, end = 0, needed = 0;
    TRD_TRY(trd__json_get_string(entry, "dtype", &type));
    const trd__safetensors_type *row = trd__safetensors_type_by_name(type);
    if (!row) return trd__json_fail(entry, TRD_UNSUPPORTED, "dtype \"%s\" is not known", type);
    tensor->type = row->name;
    tensor->dtype = row->dtype;
    TRD_TRY(read_shape(entry, &tensor->shape));
    TRD_TRY(read_offsets(file, entry, &begin, &end));
    int64_t count = trd__shape_count(&tensor->shape);
    char text[TRD__SHAPE_TEXT];
    if (count < 0 || __builtin_mul_overflow((size_t)count, row->bytes, &needed))
        return trd__json_fail(entry, TRD_CORRUPT, "the size of shape %s overflows",
                              trd__shape_text(&tensor->shape, text));
    if (needed != end - begin)
        return trd__json_fail(entry, TRD_CORRUPT, "shape %s of %s needs %zu bytes, data_offsets give %zu",
                              trd__shape_text(&tensor->shape, text), type, needed, end - begin);
    tensor->name = trd__arena_strdup(file->arena, trd__json_key(entry));
    tensor->data = file->map.data + file->header_bytes + begin;
    tensor->bytes = needed;
    return tensor->name ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status read_metadata(trd__safetensors *file, trd__json object)
{
    TRD_TRY(trd__json_as_object(object));
    file->metadata = trd__arena_alloc(file->arena, trd__json_count(object) + 1, sizeof *file->metadata);
    if (!file->metadata) return TRD_NO_MEMORY;
    for (trd__json v = trd__json_first(object); trd__json_exists(v); v = trd__json_next(v)) {
        const char *text;
        TRD_TRY(trd__json_as_string(v, &text));
        trd__pair *pair = &file->metadata[file->metadata_count];
        *pair = (trd__pair){trd__arena_strdup(file->arena, trd__json_key(v)),
                            trd__arena_strdup(file->arena, text)};
        if (!pair->key || !pair->value) return TRD_NO_MEMORY;
        file->metadata_count++;
    }
    return TRD_OK;
}

static int by_data(const void *a, const void *b)
{
    const trd__safetensor *x = a, *y = b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    const trd__safetensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The data must be covered exactly once. */
static trd_status check_cover(const trd__safetensors *file)
{
    const unsigned char *next = file->map.data + file->header_bytes;
    const unsigned char *end = file->map.data + file->map.bytes;
    for (size_t i = 0; i < file->count; i++) {
        const trd__safetensor *tensor = &file->tensors[i];
        const unsigned char *data = tensor->data;
        if (data < next)
            return trd__fail(TRD_CORRUPT, "reading %s: tensors %s and %s overlap", file->path,
                             file->tensors[i - 1].name, tensor->name);
        if (data > next)
            return trd__fail(TRD_CORRUPT, "reading %s: %zu bytes before tensor %s belong to no tensor",
                             file->path, (size_t)(data - next), tensor->name);
        next = data + tensor->bytes;
    }
    if (next == end) return TRD_OK;
    return trd__fail(
        TRD_CORRUPT,
        "reading %s: %zu trailing bytes after the last tensor; the file was damaged or appended to, get "
        "it again",
        file->path, (size_t)(end - next));
}

static trd_status read_header(trd__safetensors *file, trd__json root)
{
    size_t members = trd__json_count(root);
    TRD_TRY(trd__json_as_object(root));
    file->arena = trd__arena_create();
    if (!file->arena) return TRD_NO_MEMORY;
    file->tensors = trd__arena_alloc(file->arena, members + 1, sizeof *file->tensors);
    file->by_name = trd__arena_alloc(file->arena, members + 1, sizeof *file->by_name);
    if (!file->tensors || !file->by_name) return TRD_NO_MEMORY;
    for (trd__json v = trd__json_first(root); trd__json_exists(v); v = trd__json_next(v)) {
        if (strcmp(trd__json_key(v), "__metadata__") == 0) {
            TRD_TRY(read_metadata(file, v));
        } else {
            TRD_TRY(read_entry(file, v, &file->tensors[file->count]));
            file->count++;
        }
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, by_data);
    for (size_t i = 0; i < file->count; i++) file->by_name[i] = &file->tensors[i];
    qsort((void *)file->by_name, file->count, sizeof *file->by_name, by_name);
    return check_cover(file);
}

static trd_status open_file(trd__safetensors *file, const char *path)
{
    uint64_t header = 0;
    file->path = trd__strdup(path);
    if (!file->path) return TRD_NO_MEMORY;
    TRD_TRY(trd__file_map_open(path, &file->map));
    TRD_TRY(read_length(file, &header));
    file->header_bytes = 8 + (size_t)header;
    trd__json_doc *doc;
    TRD_TRY(trd__json_parse((const char *)file->map.data + 8, (size_t)header, path, &doc));
    trd_status status = read_header(file, trd__json_root(doc));
    trd__json_free(doc);
    return status;
}

trd_status trd__safetensors_open(const char *path, trd__safetensors **out)
{
    *out = NULL;
    trd__safetensors *file = trd__calloc(1, sizeof *file);
    if (!file) return TRD_NO_MEMORY;
    trd_status status = open_file(file, path);
    if (status) {
        trd__safetensors_close(file);
        return status;
    }
    *out = file;
    return TRD_OK;
}

void trd__safetensors_close(trd__safetensors *file)
{
    if (!file) return;
    trd__arena_free(file->arena);
    trd__file_map_close(&file->map);
    trd__free(file->path);
    trd__free(file);
}

size_t trd__safetensors_count(const trd__safetensors *file)
{
    return file->count;
}

const trd__safetensor *trd__safetensors_at(const trd__safetensors *file, size_t i)
{
    return &file->tensors[i];
}

const trd__safetensor *trd__safetensors_find(const trd__safetensors *file, const char *name)
{
    trd__safetensor key = {.name = name};
    const trd__safetensor *sought = &key;
    const trd__safetensor *const *found =
        bsearch(&sought, file->by_name, file->count, sizeof *file->by_name, by_name);
    return found ? *found : NULL;
}

size_t trd__safetensors_metadata(const trd__safetensors *file, const trd__pair **pairs)
{
    *pairs = file->metadata;
    return file->metadata_count;
}

const void *trd__safetensors_header(const trd__safetensors *file, size_t *bytes)
{
    *bytes = file->header_bytes;
    return file->map.data;
}
