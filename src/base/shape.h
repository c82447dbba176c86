/* Shape arithmetic. Element counts saturate at an error, never wrap. */
#ifndef TRD_BASE_SHAPE_H
#define TRD_BASE_SHAPE_H

#include <treadle/tensor.h>

enum { TRD__SHAPE_TEXT = 128 };

/* trd__shape(2, 3, 4): rank 2, dims 3 and 4 (dims as int64_t). */
#define TRD__SHAPE(...)                                                                                      \
    trd__shape_of((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

trd_shape trd__shape_of(int rank, const int64_t *dims);
trd_shape trd__shape_scalar(void);
bool trd__shape_equal(const trd_shape *a, const trd_shape *b);
int64_t
trd__shape_count(const trd_shape *shape); /* elements; -1 if a dim is negative or the count overflows */
/* Writes "(2, 3)" to text (TRD__SHAPE_TEXT bytes) and returns text. */
const char *trd__shape_text(const trd_shape *shape, char *text);

#endif
