/* The vector loop of products with few rows: a weight row is read once and multiplied with every row of x, so
 * the time is that of reading the weights. One table per instruction set, all made from stream_math_body.h.
 * A result's bits depend on its two rows alone, not on how many rows run together. */
#ifndef TRD_BACKEND_CPU_STREAM_MATH_H
#define TRD_BACKEND_CPU_STREAM_MATH_H

#include "backend/cpu/kernel.h"

/* Rows of x that run together at most, and weight rows of one call. */
enum { TRD__STREAM_ROWS = 32, TRD__STREAM_COLUMNS = 4 };

typedef struct trd__stream_math {
    /* out[r * TRD__STREAM_COLUMNS + c] = x row r . weight row c; x (rows, k), weight (TRD__STREAM_COLUMNS,
     * k), both without gaps. */
    void (*f32)(const float *x, int64_t rows, const float *weight, int64_t k, float *out);
    void (*bf16)(const float *x, int64_t rows, const trd__bf16 *weight, int64_t k, float *out);
} trd__stream_math;

extern const trd__stream_math trd__stream_math_baseline, trd__stream_math_avx2, trd__stream_math_avx512;

const trd__stream_math *trd__stream_math_for(trd__isa isa);

#endif
