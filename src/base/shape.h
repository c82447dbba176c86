/* Shape arithmetic. Element counts saturate at an error, never wrap. */
#ifndef TRD_BASE_SHAPE_H
#define TRD_BASE_SHAPE_H

#include <treadle/tensor.h>

enum { TRD__SHAPE_TEXT = 128 };

/* TRD__SHAPE(2, 3, 4): rank 3, dims 2, 3 and 4. */
#define TRD__SHAPE(...)                                                                                      \
    trd__shape_of((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

trd_shape trd__shape_of(int rank, const int64_t *dims);
trd_shape trd__shape_scalar(void);
bool trd__shape_equal(const trd_shape *a, const trd_shape *b);
/* Elements; -1 if a dim is negative, or if there are so many that their bytes overflow whatever the dtype. */
int64_t trd__shape_count(const trd_shape *shape);
/* Bytes of a tensor whose shape has a count. */
size_t trd__tensor_bytes(const trd_shape *shape, trd_dtype dtype);
/* Writes "(2, 3)" to text (TRD__SHAPE_TEXT bytes) and returns text. */
const char *trd__shape_text(const trd_shape *shape, char *text);

#endif
