/* Safetensors files: a reader over a memory map and a writer that streams and commits atomically.
 *
 * Layout: u64 little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data,
 * without holes or overlap (https://github.com/huggingface/safetensors). The reader checks all of it at open;
 * a file that was opened can be read without further checks. Readers may be shared by threads. */
#ifndef TRD_FORMATS_SAFETENSORS_H
#define TRD_FORMATS_SAFETENSORS_H

#include <treadle/tensor.h>

typedef struct trd__safetensor {
    const char *name;
    const char *type; /* as in the file: "F32", "BF16", ... */
    trd_dtype dtype;  /* TRD_DTYPE_COUNT: a type that tensors of this library cannot have (I16, ...) */
    trd_shape shape;
    const void *data; /* in the map: row-major, not necessarily aligned to its element */
    size_t bytes;
} trd__safetensor;

typedef struct trd__pair {
    const char *key, *value;
} trd__pair;

typedef struct trd__safetensors trd__safetensors;

/* Errors: TRD_NOT_FOUND, TRD_IO, TRD_CORRUPT (what is wrong with the file), TRD_UNSUPPORTED (rank above 8).
 */
trd_status trd__safetensors_open(const char *path, trd__safetensors **file);
void trd__safetensors_close(trd__safetensors *file); /* NULL is fine */

size_t trd__safetensors_count(const trd__safetensors *file);
const trd__safetensor *trd__safetensors_at(const trd__safetensors *file,
                                           size_t i); /* in the order of the data */
const trd__safetensor *trd__safetensors_find(const trd__safetensors *file, const char *name); /* NULL: none */
size_t trd__safetensors_metadata(const trd__safetensors *file, const trd__pair **pairs);
/* The length field and the JSON header, as they lie in the file: what a checksum of the header covers. */
const void *trd__safetensors_header(const trd__safetensors *file, size_t *bytes);

/* Writes the tensors' data in the order given. Names must be unique; the data pointers of arrays are not read
 * by open, which takes names, dtypes and shapes only. An uncached file is not kept in the system's cache. */
typedef struct trd__safetensors_writer trd__safetensors_writer;
trd_status trd__safetensors_writer_open(const char *path, const trd_array *arrays, size_t count,
                                        const trd__pair *metadata, size_t metadata_count, bool uncached,
                                        trd__safetensors_writer **writer);
/* The next bytes of the data, in pieces of any size. */
trd_status trd__safetensors_write(trd__safetensors_writer *writer, const void *data, size_t bytes);
uint64_t trd__safetensors_writer_header_checksum(const trd__safetensors_writer *writer);
/* Fails when fewer bytes than the shapes need were written. Frees the writer in any case. */
trd_status trd__safetensors_commit(trd__safetensors_writer *writer);
void trd__safetensors_abandon(trd__safetensors_writer *writer); /* NULL is fine */

#endif
