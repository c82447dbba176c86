/* The safetensors writer. Invariant: the file appears under its name only when exactly the announced data was
 * written. The header is padded so that the data starts on a 64-byte boundary. */
#include <endian.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/shape.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/safetensors_types.h"

enum { DATA_ALIGNMENT = 64 };

struct trd__safetensors_writer {
    trd__file_writer *file;
    char *path;
    uint64_t expected, written; /* bytes of data */
    uint64_t header_checksum;
};

static const trd__safetensors_type types[] = {
    {"F64", 8, TRD_F64},         {"F32", 4, TRD_F32},         {"F16", 2, TRD_F16},
    {"BF16", 2, TRD_BF16},       {"I64", 8, TRD_I64},         {"I32", 4, TRD_I32},
    {"U8", 1, TRD_U8},           {"BOOL", 1, TRD_BOOL},       {"F8_E4M3", 1, TRD_F8_E4M3},
    {"F8_E5M2", 1, TRD_F8_E5M2}, {"I16", 2, TRD_DTYPE_COUNT}, {"I8", 1, TRD_DTYPE_COUNT},
    {"U16", 2, TRD_DTYPE_COUNT}, {"U32", 4, TRD_DTYPE_COUNT}, {"U64", 8, TRD_DTYPE_COUNT},
};

const trd__safetensors_type *trd__safetensors_type_by_name(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

const trd__safetensors_type *trd__safetensors_type_by_dtype(trd_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype && dtype != TRD_DTYPE_COUNT) return &types[i];
    return NULL;
}

static trd_status put_entry(trd__json_writer *json, const trd_array *array, const char *path,
                            uint64_t *offset)
{
    const trd__safetensors_type *type = trd__safetensors_type_by_dtype(array->dtype);
    int64_t count = trd__shape_count(&array->shape);
    uint64_t bytes, end;
    if (!type || count < 0 || __builtin_mul_overflow((uint64_t)count, (uint64_t)type->bytes, &bytes) ||
        __builtin_add_overflow(*offset, bytes, &end) || end > (UINT64_C(1) << 53))
        return trd__fail(TRD_INVALID_ARGUMENT, "writing %s: the dtype or shape of %s cannot be stored", path,
                         array->name);
    trd__json_write_key(json, array->name);
    trd__json_open_object(json);
    trd__json_put_string(json, "dtype", type->name);
    trd__json_write_key(json, "shape");
    trd__json_open_array(json);
    for (int i = 0; i < array->shape.rank; i++) trd__json_write_i64(json, array->shape.dim[i]);
    trd__json_close(json);
    trd__json_write_key(json, "data_offsets");
    trd__json_open_array(json);
    trd__json_write_i64(json, (int64_t)*offset);
    trd__json_write_i64(json, (int64_t)end);
    trd__json_close(json);
    trd__json_close(json);
    *offset = end;
    return TRD_OK;
}

static trd_status make_header(trd__json_writer *json, const char *path, const trd_array *arrays, size_t count,
                              const trd__pair *metadata, size_t metadata_count, uint64_t *data_bytes)
{
    trd__json_open_object(json);
    if (metadata_count > 0) {
        trd__json_write_key(json, "__metadata__");
        trd__json_open_object(json);
        for (size_t i = 0; i < metadata_count; i++)
            trd__json_put_string(json, metadata[i].key, metadata[i].value);
        trd__json_close(json);
    }
    *data_bytes = 0;
    for (size_t i = 0; i < count; i++) TRD_TRY(put_entry(json, &arrays[i], path, data_bytes));
    trd__json_close(json);
    TRD_TRY(trd__json_finish(json));
    if (json->bytes > TRD__SAFETENSORS_HEADER_MAX - DATA_ALIGNMENT)
        return trd__fail(TRD_UNSUPPORTED, "writing %s: the header would pass 100 MB", path);
    return TRD_OK;
}

static trd_status write_header(trd__safetensors_writer *writer, const trd__json_writer *json)
{
    size_t used = 8 + json->bytes;
    size_t bytes = (used + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
    uint64_t length = htole64(bytes - 8);
    char *header = trd__alloc(bytes, 1);
    if (!header) return TRD_NO_MEMORY;
    memcpy(header, &length, 8);
    memcpy(header + 8, json->text, json->bytes);
    memset(header + used, ' ', bytes - used);
    writer->header_checksum = trd__checksum(header, bytes);
    trd_status status = trd__file_write(writer->file, header, bytes);
    trd__free(header);
    return status;
}

trd_status trd__safetensors_writer_open(const char *path, const trd_array *arrays, size_t count,
                                        const trd__pair *metadata, size_t metadata_count, bool uncached,
                                        trd__safetensors_writer **out)
{
    *out = NULL;
    trd__json_writer json = {0};
    trd__safetensors_writer *writer = trd__calloc(1, sizeof *writer);
    if (!writer) return TRD_NO_MEMORY;
    writer->path = trd__strdup(path);
    trd_status status = writer->path ? TRD_OK : TRD_NO_MEMORY;
    if (!status)
        status = make_header(&json, path, arrays, count, metadata, metadata_count, &writer->expected);
    if (!status) status = trd__file_writer_open(path, &writer->file);
    if (!status && uncached) status = trd__file_writer_uncached(writer->file);
    if (!status) status = write_header(writer, &json);
    trd__json_writer_free(&json);
    if (status) {
        trd__safetensors_abandon(writer);
        return status;
    }
    *out = writer;
    return TRD_OK;
}

trd_status trd__safetensors_write(trd__safetensors_writer *writer, const void *data, size_t bytes)
{
    if (bytes > writer->expected - writer->written)
        return trd__fail(TRD_INTERNAL, "writing %s: more data than the shapes need", writer->path);
    TRD_TRY(trd__file_write(writer->file, data, bytes));
    writer->written += bytes;
    return TRD_OK;
}

uint64_t trd__safetensors_writer_header_checksum(const trd__safetensors_writer *writer)
{
    return writer->header_checksum;
}

trd_status trd__safetensors_commit(trd__safetensors_writer *writer)
{
    trd_status status = TRD_OK;
    if (writer->written != writer->expected) {
        status = trd__fail(TRD_INTERNAL, "writing %s: expected %" PRIu64 " bytes of data, got %" PRIu64,
                           writer->path, writer->expected, writer->written);
    } else {
        status = trd__file_writer_commit(writer->file);
        writer->file = NULL;
    }
    trd__safetensors_abandon(writer);
    return status;
}

void trd__safetensors_abandon(trd__safetensors_writer *writer)
{
    if (!writer) return;
    trd__file_writer_abandon(writer->file);
    trd__free(writer->path);
    trd__free(writer);
}
