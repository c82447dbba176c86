/* GGUF files of version 3 (or 2, the same layout) over a memory map: metadata with typed access, tensors,
 * dequantization to float32.
 *
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Everything is checked at open: a file
 * that was opened can be read without further checks, by any number of threads. */
#ifndef TRD_FORMATS_GGUF_H
#define TRD_FORMATS_GGUF_H

#include <treadle/tensor.h>

typedef struct trd__gguf trd__gguf;

typedef enum trd__gguf_kind { /* value types, numbered as in the file */
                              TRD__GGUF_U8,
                              TRD__GGUF_I8,
                              TRD__GGUF_U16,
                              TRD__GGUF_I16,
                              TRD__GGUF_U32,
                              TRD__GGUF_I32,
                              TRD__GGUF_F32,
                              TRD__GGUF_BOOL,
                              TRD__GGUF_STRING,
                              TRD__GGUF_ARRAY,
                              TRD__GGUF_U64,
                              TRD__GGUF_I64,
                              TRD__GGUF_F64,
                              TRD__GGUF_KIND_COUNT
} trd__gguf_kind;

typedef struct trd__gguf_string {
    const char *text; /* in the map, not NUL-terminated */
    size_t bytes;
} trd__gguf_string;

typedef struct trd__gguf_value {
    const char *key;
    trd__gguf_kind kind; /* TRD__GGUF_ARRAY: of element_kind */
    trd__gguf_kind element_kind;
    size_t count; /* elements of an array, else 1 */
    const unsigned char
        *data; /* numbers as they lie in the file (little-endian, unaligned); NULL for strings */
    const trd__gguf_string *strings; /* count of them; NULL for numbers */
} trd__gguf_value;

/* X(name, number in the file, elements a block, bytes a block): the only list of tensor types that are read.
 */
#define TRD__GGUF_TYPE_LIST(X)                                                                               \
    X(F32, 0, 1, 4)                                                                                          \
    X(F16, 1, 1, 2)                                                                                          \
    X(Q4_0, 2, 32, 18)                                                                                       \
    X(Q4_1, 3, 32, 20)                                                                                       \
    X(Q5_0, 6, 32, 22)                                                                                       \
    X(Q5_1, 7, 32, 24)                                                                                       \
    X(Q8_0, 8, 32, 34)                                                                                       \
    X(Q4_K, 12, 256, 144)                                                                                    \
    X(Q6_K, 14, 256, 210)                                                                                    \
    X(BF16, 30, 1, 2)

typedef enum trd__gguf_type {
#define TRD__GGUF_TYPE_ENUM(name, number, elements, bytes) TRD__GGUF_TYPE_##name,
    TRD__GGUF_TYPE_LIST(TRD__GGUF_TYPE_ENUM)
#undef TRD__GGUF_TYPE_ENUM
        TRD__GGUF_TYPE_COUNT
} trd__gguf_type;

typedef struct trd__gguf_tensor {
    const char *name;
    trd__gguf_type type;
    trd_shape shape; /* row-major, outermost first: the reverse of the file's order */
    const void *data;
    size_t bytes;
} trd__gguf_tensor;

/* Errors: TRD_NOT_FOUND, TRD_IO, TRD_CORRUPT, TRD_UNSUPPORTED (version, byte order, tensor type). */
trd_status trd__gguf_open(const char *path, trd__gguf **file);
void trd__gguf_close(trd__gguf *file); /* NULL is fine */

size_t trd__gguf_value_count(const trd__gguf *file);
const trd__gguf_value *trd__gguf_value_at(const trd__gguf *file, size_t i);
const trd__gguf_value *trd__gguf_find(const trd__gguf *file, const char *key); /* NULL: none */

/* A required scalar: TRD_CORRUPT naming file and key when it is missing or of another kind. Integers of any
 * width and sign convert when they fit. A string is not NUL-terminated. */
trd_status trd__gguf_get_i64(const trd__gguf *file, const char *key, int64_t *number);
trd_status trd__gguf_get_string(const trd__gguf *file, const char *key, trd__gguf_string *text);
/* The same for a key that may be missing: *out keeps what it held. */
trd_status trd__gguf_opt_i64(const trd__gguf *file, const char *key, int64_t *number);
trd_status trd__gguf_opt_f64(const trd__gguf *file, const char *key, double *number);
trd_status trd__gguf_opt_bool(const trd__gguf *file, const char *key, bool *flag);
trd_status trd__gguf_opt_string(const trd__gguf *file, const char *key, trd__gguf_string *text);

/* A required array of strings. */
trd_status trd__gguf_get_strings(const trd__gguf *file, const char *key, const trd__gguf_string **strings,
                                 size_t *count);
/* Element i of a number or bool, or of an array of them, as double (64-bit integers round). i < value->count.
 */
double trd__gguf_number(const trd__gguf_value *value, size_t i);
bool trd__gguf_is_number(trd__gguf_kind kind); /* integers, floats, bool */

size_t trd__gguf_tensor_count(const trd__gguf *file);
const trd__gguf_tensor *trd__gguf_tensor_at(const trd__gguf *file, size_t i);
const trd__gguf_tensor *trd__gguf_find_tensor(const trd__gguf *file, const char *name); /* NULL: none */

const char *trd__gguf_type_name(trd__gguf_type type);
size_t trd__gguf_block_elements(trd__gguf_type type);
size_t trd__gguf_block_bytes(trd__gguf_type type);
/* Whole blocks to float32. data needs no alignment. */
void trd__gguf_dequantize(trd__gguf_type type, const void *data, float *out, size_t blocks);

#endif
