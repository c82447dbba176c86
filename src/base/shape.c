/* Shape helpers; see the header. Invariant: dims beyond rank are 0, so shapes can be compared with memcmp. */
#include "base/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WIDEST = 8 }; /* bytes of the largest dtype */

trd_shape trd__shape_of(int rank, const int64_t *dims)
{
    trd_shape shape = {.rank = rank};
    for (int i = 0; i < rank && i < TRD_MAX_RANK; i++) shape.dim[i] = dims[i];
    return shape;
}

trd_shape trd__shape_scalar(void)
{
    return (trd_shape){.rank = 0};
}

bool trd__shape_equal(const trd_shape *a, const trd_shape *b)
{
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

int64_t trd__shape_count(const trd_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++)
        if (shape->dim[i] < 0 || __builtin_mul_overflow(count, shape->dim[i], &count)) return -1;
    return count <= INT64_MAX / WIDEST ? count : -1;
}

size_t trd__tensor_bytes(const trd_shape *shape, trd_dtype dtype)
{
    return (size_t)trd__shape_count(shape) * trd_dtype_bytes(dtype);
}

const char *trd__shape_text(const trd_shape *shape, char *text)
{
    size_t used = 0;
    text[used++] = '(';
    for (int i = 0; i < shape->rank && used + 24 < TRD__SHAPE_TEXT; i++)
        used += (size_t)snprintf(text + used, TRD__SHAPE_TEXT - used, i ? ", %" PRId64 : "%" PRId64,
                                 shape->dim[i]);
    snprintf(text + used, TRD__SHAPE_TEXT - used, ")");
    return text;
}
