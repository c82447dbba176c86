/* The GGUF reader: one pass over the header with a bounds-checked cursor. Invariant of an open file: every
 * pointer handed out lies in the map with all its bytes, names and keys are unique, tensors do not overlap.
 */
#include "formats/gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/file.h"
#include "base/shape.h"
#include "formats/sniff.h"

enum { VERSION_MIN = 2, VERSION_MAX = 3, ALIGNMENT_DEFAULT = 32, NAME_MAX_BYTES = 65535 };

/* The least a metadata entry and a tensor's description take in a file: bounds for counts before they are
 * used. */
enum { ENTRY_MIN_BYTES = 13, DESCRIPTION_MIN_BYTES = 24 };

struct trd__gguf {
    char *path;
    trd__file_map map;
    size_t at; /* while opening: the next byte to parse */
    trd__arena *arena;
    trd__gguf_value *values; /* in file order */
    const trd__gguf_value **by_key;
    size_t value_count;
    trd__gguf_tensor *tensors; /* in file order */
    const trd__gguf_tensor **by_name;
    size_t tensor_count;
};

static const struct {
    const char *name;
    size_t bytes; /* 0: of variable length */
} kinds[TRD__GGUF_KIND_COUNT] = {
    [TRD__GGUF_U8] = {"u8", 1},          [TRD__GGUF_I8] = {"i8", 1},     [TRD__GGUF_U16] = {"u16", 2},
    [TRD__GGUF_I16] = {"i16", 2},        [TRD__GGUF_U32] = {"u32", 4},   [TRD__GGUF_I32] = {"i32", 4},
    [TRD__GGUF_F32] = {"f32", 4},        [TRD__GGUF_BOOL] = {"bool", 1}, [TRD__GGUF_STRING] = {"a string", 0},
    [TRD__GGUF_ARRAY] = {"an array", 0}, [TRD__GGUF_U64] = {"u64", 8},   [TRD__GGUF_I64] = {"i64", 8},
    [TRD__GGUF_F64] = {"f64", 8},
};

static trd_status corrupt(const trd__gguf *file, const char *problem)
{
    return trd__fail(TRD_CORRUPT, "reading %s: %s", file->path, problem);
}

static trd_status truncated(const trd__gguf *file)
{
    return trd__fail(
        TRD_CORRUPT,
        "reading %s: the file ends inside its header, at byte %zu; the download is truncated, get it "
        "again",
        file->path, file->map.bytes);
}

/* The next bytes bytes of the file, NULL with the message set when it ends before. */
static const unsigned char *take(trd__gguf *file, uint64_t bytes)
{
    if (bytes > file->map.bytes - file->at) {
        truncated(file);
        return NULL;
    }
    const unsigned char *data = file->map.data + file->at;
    file->at += (size_t)bytes;
    return data;
}

static uint64_t little_endian(const unsigned char *data, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)data[i] << (8 * i);
    return value;
}

static trd_status take_u32(trd__gguf *file, uint32_t *value)
{
    const unsigned char *data = take(file, 4);
    if (!data) return TRD_CORRUPT;
    *value = (uint32_t)little_endian(data, 4);
    return TRD_OK;
}

static trd_status take_u64(trd__gguf *file, uint64_t *value)
{
    const unsigned char *data = take(file, 8);
    if (!data) return TRD_CORRUPT;
    *value = little_endian(data, 8);
    return TRD_OK;
}

static trd_status take_string(trd__gguf *file, trd__gguf_string *text)
{
    uint64_t bytes = 0;
    TRD_TRY(take_u64(file, &bytes));
    text->text = (const char *)take(file, bytes);
    text->bytes = (size_t)bytes;
    return text->text ? TRD_OK : TRD_CORRUPT;
}

/* A key or tensor name, copied with its terminator. */
static trd_status take_name(trd__gguf *file, const char **name)
{
    trd__gguf_string text;
    TRD_TRY(take_string(file, &text));
    if (text.bytes == 0 || text.bytes > NAME_MAX_BYTES || memchr(text.text, '\0', text.bytes))
        return corrupt(file, "expected a key or tensor name of 1 to 65535 bytes without NUL");
    *name = trd__arena_strndup(file->arena, text.text, text.bytes);
    return *name ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status take_elements(trd__gguf *file, trd__gguf_value *value)
{
    if (value->element_kind == TRD__GGUF_STRING) {
        if (value->count > (file->map.bytes - file->at) / 8) return truncated(file);
        trd__gguf_string *strings = trd__arena_alloc(file->arena, value->count + 1, sizeof *strings);
        if (!strings) return TRD_NO_MEMORY;
        for (size_t i = 0; i < value->count; i++) TRD_TRY(take_string(file, &strings[i]));
        value->strings = strings;
        return TRD_OK;
    }
    uint64_t bytes;
    if (__builtin_mul_overflow((uint64_t)value->count, (uint64_t)kinds[value->element_kind].bytes, &bytes))
        bytes = UINT64_MAX;
    value->data = take(file, bytes);
    return value->data ? TRD_OK : TRD_CORRUPT;
}

static trd_status take_value(trd__gguf *file, trd__gguf_value *value)
{
    uint32_t kind = 0;
    uint64_t count = 1;
    TRD_TRY(take_name(file, &value->key));
    TRD_TRY(take_u32(file, &kind));
    value->kind = (trd__gguf_kind)kind;
    if (kind == TRD__GGUF_ARRAY) {
        TRD_TRY(take_u32(file, &kind));
        TRD_TRY(take_u64(file, &count));
    }
    if (kind >= TRD__GGUF_KIND_COUNT || kind == TRD__GGUF_ARRAY)
        return trd__fail(
            kind == TRD__GGUF_ARRAY ? TRD_UNSUPPORTED : TRD_CORRUPT,
            "reading %s: metadata %s: expected numbers, strings or an array of them, found type %" PRIu32,
            file->path, value->key, kind);
    value->element_kind = (trd__gguf_kind)kind;
    value->count = (size_t)count;
    return take_elements(file, value);
}

static bool find_type(uint32_t number, trd__gguf_type *type)
{
    static const uint32_t numbers[TRD__GGUF_TYPE_COUNT] = {
#define TYPE_NUMBER(name, number_, elements, bytes) [TRD__GGUF_TYPE_##name] = number_,
        TRD__GGUF_TYPE_LIST(TYPE_NUMBER)
#undef TYPE_NUMBER
    };
    for (int i = 0; i < TRD__GGUF_TYPE_COUNT; i++)
        if (numbers[i] == number) {
            *type = (trd__gguf_type)i;
            return true;
        }
    return false;
}

static trd_status take_type(trd__gguf *file, trd__gguf_tensor *tensor)
{
#define TYPE_TEXT(name, number, elements, bytes) " " #name
    static const char supported[] = TRD__GGUF_TYPE_LIST(TYPE_TEXT);
#undef TYPE_TEXT
    static const char *const names[] = {
        [9] = "Q8_1",    [10] = "Q2_K",    [11] = "Q3_K",  [13] = "Q5_K",   [15] = "Q8_K",  [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S", [22] = "IQ2_S",
        [23] = "IQ4_XS", [24] = "I8",      [25] = "I16",   [26] = "I32",    [27] = "I64",   [28] = "F64",
        [29] = "IQ1_M",  [34] = "TQ1_0",   [35] = "TQ2_0", [39] = "MXFP4"};
    uint32_t number = 0;
    TRD_TRY(take_u32(file, &number));
    if (find_type(number, &tensor->type)) return TRD_OK;
    bool named = number < sizeof names / sizeof *names && names[number];
    return trd__fail(TRD_UNSUPPORTED, "reading %s: tensor %s has type %s (%" PRIu32 "), supported are%s",
                     file->path, tensor->name, named ? names[number] : "unknown", number, supported);
}

static trd_status take_shape(trd__gguf *file, trd__gguf_tensor *tensor)
{
    uint32_t rank = 0;
    TRD_TRY(take_u32(file, &rank));
    if (rank > TRD_MAX_RANK)
        return trd__fail(TRD_CORRUPT, "reading %s: tensor %s: expected at most %d axes, found %" PRIu32,
                         file->path, tensor->name, TRD_MAX_RANK, rank);
    tensor->shape.rank = (int)rank;
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t dim = 0;
        TRD_TRY(take_u64(file, &dim));
        if (dim > INT64_MAX) return corrupt(file, "an axis of a tensor is longer than 2^63");
        tensor->shape.dim[rank - 1 - i] = (int64_t)dim;
    }
    return TRD_OK;
}

/* offset is relative to the data section until its start is known: kept in the pointer's place by the caller.
 */
static trd_status take_description(trd__gguf *file, trd__gguf_tensor *tensor, uint64_t *offset)
{
    TRD_TRY(take_name(file, &tensor->name));
    TRD_TRY(take_shape(file, tensor));
    TRD_TRY(take_type(file, tensor));
    TRD_TRY(take_u64(file, offset));
    int64_t count = trd__shape_count(&tensor->shape);
    size_t block = trd__gguf_block_elements(tensor->type);
    int64_t row = tensor->shape.rank ? tensor->shape.dim[tensor->shape.rank - 1] : 1;
    char text[TRD__SHAPE_TEXT];
    if (count < 0 || (uint64_t)row % block != 0 ||
        __builtin_mul_overflow((size_t)count / block, trd__gguf_block_bytes(tensor->type), &tensor->bytes))
        return trd__fail(TRD_CORRUPT, "reading %s: tensor %s: shape %s does not divide into blocks of %s",
                         file->path, tensor->name, trd__shape_text(&tensor->shape, text),
                         trd__gguf_type_name(tensor->type));
    return TRD_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const trd__gguf_tensor *const *x = a, *const *y = b;
    const char *p = (*x)->data, *q = (*y)->data;
    if (p != q) return p < q ? -1 : 1;
    return (*x)->bytes < (*y)->bytes ? -1 : (*x)->bytes > (*y)->bytes;
}

static int compare_names(const void *a, const void *b)
{
    const trd__gguf_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int compare_keys(const void *a, const void *b)
{
    const trd__gguf_value *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

/* Sorts the index by data, checks that tensors neither overlap nor leave a tail, then sorts it by name. */
static trd_status check_tensors(trd__gguf *file, size_t start, size_t alignment)
{
    size_t end = start;
    qsort((void *)file->by_name, file->tensor_count, sizeof *file->by_name, compare_offsets);
    for (size_t i = 0; i < file->tensor_count; i++) {
        size_t begin = (size_t)((const unsigned char *)file->by_name[i]->data - file->map.data);
        if (begin < end)
            return trd__fail(TRD_CORRUPT, "reading %s: tensors %s and %s overlap", file->path,
                             file->by_name[i - 1]->name, file->by_name[i]->name);
        end = begin + file->by_name[i]->bytes;
    }
    if (file->map.bytes > end && file->map.bytes - end >= alignment)
        return trd__fail(
            TRD_CORRUPT,
            "reading %s: %zu trailing bytes after the last tensor; the file was damaged or appended to, "
            "get it again",
            file->path, file->map.bytes - end);
    qsort((void *)file->by_name, file->tensor_count, sizeof *file->by_name, compare_names);
    for (size_t i = 1; i < file->tensor_count; i++)
        if (compare_names(&file->by_name[i - 1], &file->by_name[i]) == 0)
            return trd__fail(TRD_CORRUPT, "reading %s: tensor %s appears twice", file->path,
                             file->by_name[i]->name);
    return TRD_OK;
}

static trd_status place_tensor(const trd__gguf *file, trd__gguf_tensor *tensor, uint64_t offset, size_t start,
                               size_t alignment)
{
    size_t available = file->map.bytes - start;
    if (offset % alignment != 0)
        return trd__fail(TRD_CORRUPT, "reading %s: tensor %s: offset %" PRIu64 " is not aligned to %zu",
                         file->path, tensor->name, offset, alignment);
    if (offset > available || tensor->bytes > available - offset)
        return trd__fail(
            TRD_CORRUPT,
            "reading %s: tensor %s ends beyond the file's %zu bytes; the download is truncated, get the "
            "file again",
            file->path, tensor->name, file->map.bytes);
    tensor->data = file->map.data + start + offset;
    return TRD_OK;
}

static trd_status read_tensors(trd__gguf *file)
{
    int64_t alignment = ALIGNMENT_DEFAULT;
    uint64_t *offsets = trd__arena_alloc(file->arena, file->tensor_count + 1, sizeof *offsets);
    if (!offsets) return TRD_NO_MEMORY;
    for (size_t i = 0; i < file->tensor_count; i++) {
        TRD_TRY(take_description(file, &file->tensors[i], &offsets[i]));
        file->by_name[i] = &file->tensors[i];
    }
    TRD_TRY(trd__gguf_opt_i64(file, "general.alignment", &alignment));
    if (alignment < 1 || alignment > 65536 || (alignment & (alignment - 1)) != 0)
        return corrupt(file, "general.alignment: expected a power of two up to 65536");
    size_t step = (size_t)alignment, start = (file->at + step - 1) & ~(step - 1);
    if (start > file->map.bytes) start = file->map.bytes;
    for (size_t i = 0; i < file->tensor_count; i++)
        TRD_TRY(place_tensor(file, &file->tensors[i], offsets[i], start, step));
    return check_tensors(file, start, step);
}

static trd_status read_values(trd__gguf *file)
{
    for (size_t i = 0; i < file->value_count; i++) {
        TRD_TRY(take_value(file, &file->values[i]));
        file->by_key[i] = &file->values[i];
    }
    qsort((void *)file->by_key, file->value_count, sizeof *file->by_key, compare_keys);
    for (size_t i = 1; i < file->value_count; i++)
        if (compare_keys(&file->by_key[i - 1], &file->by_key[i]) == 0)
            return trd__fail(TRD_CORRUPT, "reading %s: metadata %s appears twice", file->path,
                             file->by_key[i]->key);
    return TRD_OK;
}

/* Magic, version and counts. */
static trd_status read_head(trd__gguf *file)
{
    uint32_t version = 0;
    uint64_t tensors = 0, values = 0;
    if (file->map.bytes == 0) return corrupt(file, "the file is empty");
    if (file->map.bytes < 4 || memcmp(file->map.data, "GGUF", 4) != 0) {
        const char *mistake = trd__sniff_mistake(file->map.data, file->map.bytes);
        if (mistake) return trd__fail(TRD_CORRUPT, "reading %s: it %s", file->path, mistake);
        return corrupt(file,
                       "expected the letters GGUF at the start, found something else; is this a GGUF file?");
    }
    file->at = 4;
    TRD_TRY(take_u32(file, &version));
    if (version == __builtin_bswap32(VERSION_MAX) || version == __builtin_bswap32(VERSION_MIN))
        return trd__fail(TRD_UNSUPPORTED, "reading %s: a big-endian GGUF file; convert it to little-endian",
                         file->path);
    if (version < VERSION_MIN || version > VERSION_MAX)
        return trd__fail(TRD_UNSUPPORTED, "reading %s: expected GGUF version 2 or 3, found %" PRIu32,
                         file->path, version);
    TRD_TRY(take_u64(file, &tensors));
    TRD_TRY(take_u64(file, &values));
    size_t left = file->map.bytes - file->at;
    if (tensors > left / DESCRIPTION_MIN_BYTES || values > left / ENTRY_MIN_BYTES)
        return trd__fail(TRD_CORRUPT,
                         "reading %s: %" PRIu64 " tensors and %" PRIu64
                         " metadata entries cannot fit into a file of %zu bytes; it is truncated or damaged",
                         file->path, tensors, values, file->map.bytes);
    file->tensor_count = (size_t)tensors;
    file->value_count = (size_t)values;
    return TRD_OK;
}

static trd_status open_file(trd__gguf *file, const char *path)
{
    file->path = trd__strdup(path);
    file->arena = trd__arena_create();
    if (!file->path || !file->arena) return TRD_NO_MEMORY;
    TRD_TRY(trd__file_map_open(path, &file->map));
    TRD_TRY(read_head(file));
    file->values = trd__arena_alloc(file->arena, file->value_count + 1, sizeof *file->values);
    file->by_key = trd__arena_alloc(file->arena, file->value_count + 1, sizeof *file->by_key);
    file->tensors = trd__arena_alloc(file->arena, file->tensor_count + 1, sizeof *file->tensors);
    file->by_name = trd__arena_alloc(file->arena, file->tensor_count + 1, sizeof *file->by_name);
    if (!file->values || !file->by_key || !file->tensors || !file->by_name) return TRD_NO_MEMORY;
    TRD_TRY(read_values(file));
    return read_tensors(file);
}

trd_status trd__gguf_open(const char *path, trd__gguf **out)
{
    *out = NULL;
    trd__gguf *file = trd__calloc(1, sizeof *file);
    if (!file) return TRD_NO_MEMORY;
    trd_status status = open_file(file, path);
    if (status) {
        trd__gguf_close(file);
        return status;
    }
    *out = file;
    return TRD_OK;
}

void trd__gguf_close(trd__gguf *file)
{
    if (!file) return;
    trd__arena_free(file->arena);
    trd__file_map_close(&file->map);
    trd__free(file->path);
    trd__free(file);
}

size_t trd__gguf_value_count(const trd__gguf *file)
{
    return file->value_count;
}
const trd__gguf_value *trd__gguf_value_at(const trd__gguf *file, size_t i)
{
    return &file->values[i];
}

const trd__gguf_value *trd__gguf_find(const trd__gguf *file, const char *key)
{
    trd__gguf_value value = {.key = key};
    const trd__gguf_value *sought = &value;
    const trd__gguf_value *const *found =
        bsearch(&sought, file->by_key, file->value_count, sizeof *file->by_key, compare_keys);
    return found ? *found : NULL;
}

size_t trd__gguf_tensor_count(const trd__gguf *file)
{
    return file->tensor_count;
}
const trd__gguf_tensor *trd__gguf_tensor_at(const trd__gguf *file, size_t i)
{
    return &file->tensors[i];
}

const trd__gguf_tensor *trd__gguf_find_tensor(const trd__gguf *file, const char *name)
{
    trd__gguf_tensor tensor = {.name = name};
    const trd__gguf_tensor *sought = &tensor;
    const trd__gguf_tensor *const *found =
        bsearch(&sought, file->by_name, file->tensor_count, sizeof *file->by_name, compare_names);
    return found ? *found : NULL;
}

bool trd__gguf_is_number(trd__gguf_kind kind)
{
    return kinds[kind].bytes > 0;
}

static int64_t signed_number(uint64_t bits, size_t bytes)
{
    unsigned shift = 64 - 8 * (unsigned)bytes;
    return (int64_t)(bits << shift) >> shift;
}

double trd__gguf_number(const trd__gguf_value *value, size_t i)
{
    size_t bytes = kinds[value->element_kind].bytes;
    uint64_t bits = little_endian(value->data + i * bytes, bytes);
    uint32_t word = (uint32_t)bits;
    float single;
    double wide;
    switch (value->element_kind) {
    case TRD__GGUF_F32:
        memcpy(&single, &word, sizeof single);
        return (double)single;
    case TRD__GGUF_F64:
        memcpy(&wide, &bits, sizeof wide);
        return wide;
    case TRD__GGUF_BOOL:
        return bits ? 1.0 : 0.0;
    case TRD__GGUF_I8:
    case TRD__GGUF_I16:
    case TRD__GGUF_I32:
    case TRD__GGUF_I64:
        return (double)signed_number(bits, bytes);
    default:
        return (double)bits;
    }
}

static trd_status expected(const trd__gguf *file, const char *key, const char *what,
                           const trd__gguf_value *value)
{
    return trd__fail(TRD_CORRUPT, "reading %s: metadata %s: expected %s, found %s", file->path, key, what,
                     value ? kinds[value->kind].name : "no such key");
}

static trd_status value_as_i64(const trd__gguf *file, const trd__gguf_value *value, int64_t *number)
{
    trd__gguf_kind kind = value->kind;
    if (!trd__gguf_is_number(kind) || kind == TRD__GGUF_F32 || kind == TRD__GGUF_F64 ||
        kind == TRD__GGUF_BOOL)
        return expected(file, value->key, "an integer", value);
    uint64_t bits = little_endian(value->data, kinds[kind].bytes);
    bool negative_kind =
        kind == TRD__GGUF_I8 || kind == TRD__GGUF_I16 || kind == TRD__GGUF_I32 || kind == TRD__GGUF_I64;
    if (!negative_kind && bits > INT64_MAX) return expected(file, value->key, "an integer below 2^63", value);
    *number = negative_kind ? signed_number(bits, kinds[kind].bytes) : (int64_t)bits;
    return TRD_OK;
}

static trd_status value_as_f64(const trd__gguf *file, const trd__gguf_value *value, double *number)
{
    if (!trd__gguf_is_number(value->kind) || value->kind == TRD__GGUF_BOOL)
        return expected(file, value->key, "a number", value);
    *number = trd__gguf_number(value, 0);
    return TRD_OK;
}

static trd_status value_as_bool(const trd__gguf *file, const trd__gguf_value *value, bool *flag)
{
    if (value->kind != TRD__GGUF_BOOL) return expected(file, value->key, "a bool", value);
    *flag = value->data[0] != 0;
    return TRD_OK;
}

static trd_status value_as_string(const trd__gguf *file, const trd__gguf_value *value, trd__gguf_string *text)
{
    if (value->kind != TRD__GGUF_STRING) return expected(file, value->key, "a string", value);
    *text = value->strings[0];
    return TRD_OK;
}

#define REQUIRED(name, type, what)                                                                           \
    trd_status trd__gguf_get_##name(const trd__gguf *file, const char *key, type *out)                       \
    {                                                                                                        \
        const trd__gguf_value *value = trd__gguf_find(file, key);                                            \
        return value ? value_as_##name(file, value, out) : expected(file, key, what, NULL);                  \
    }
REQUIRED(i64, int64_t, "an integer")
REQUIRED(string, trd__gguf_string, "a string")
#undef REQUIRED

#define OPTIONAL(name, type)                                                                                 \
    trd_status trd__gguf_opt_##name(const trd__gguf *file, const char *key, type *out)                       \
    {                                                                                                        \
        const trd__gguf_value *value = trd__gguf_find(file, key);                                            \
        return value ? value_as_##name(file, value, out) : TRD_OK;                                           \
    }
OPTIONAL(i64, int64_t)
OPTIONAL(f64, double)
OPTIONAL(bool, bool)
OPTIONAL(string, trd__gguf_string)
#undef OPTIONAL

trd_status trd__gguf_get_strings(const trd__gguf *file, const char *key, const trd__gguf_string **strings,
                                 size_t *count)
{
    const trd__gguf_value *value = trd__gguf_find(file, key);
    if (!value || value->kind != TRD__GGUF_ARRAY || value->element_kind != TRD__GGUF_STRING)
        return expected(file, key, "an array of strings", value);
    *strings = value->strings;
    *count = value->count;
    return TRD_OK;
}
