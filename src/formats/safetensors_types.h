/* What the safetensors reader and writer share: the format's element types and its limit. */
#ifndef TRD_FORMATS_SAFETENSORS_TYPES_H
#define TRD_FORMATS_SAFETENSORS_TYPES_H

#include <treadle/tensor.h>

enum { TRD__SAFETENSORS_HEADER_MAX = 100000000 };

typedef struct trd__safetensors_type {
    const char *name;
    size_t bytes;
    trd_dtype dtype; /* TRD_DTYPE_COUNT: no counterpart here */
} trd__safetensors_type;

const trd__safetensors_type *trd__safetensors_type_by_name(const char *name); /* NULL: not known */
const trd__safetensors_type *trd__safetensors_type_by_dtype(trd_dtype dtype); /* NULL: not in the format */

#endif
