/* The row loops for any processor, the choice among the tables, and bf16 rows seen as float32. */
#define ROW_MATH_TABLE trd__row_math_baseline
#include "backend/cpu/row_math_body.h"

const trd__row_math *trd__row_math_for(trd__isa isa)
{
#if defined(__x86_64__)
    if (isa == TRD__ISA_AVX512) return &trd__row_math_avx512;
    if (isa == TRD__ISA_AVX2) return &trd__row_math_avx2;
#endif
    (void)isa;
    return &trd__row_math_baseline;
}

const float *trd__row_read(const trd__row_math *math, trd_dtype dtype, const void *data, int64_t at,
                           int64_t n, float *scratch)
{
    if (dtype == TRD_F32) return (const float *)data + at;
    math->widen((const trd__bf16 *)data + at, scratch, n);
    return scratch;
}

void trd__row_copy(const trd__row_math *math, trd_dtype dtype, const void *data, int64_t at, int64_t n,
                   float *copy)
{
    if (dtype == TRD_F32)
        memcpy(copy, (const float *)data + at, (size_t)n * sizeof *copy);
    else
        math->widen((const trd__bf16 *)data + at, copy, n);
}

float *trd__row_target(trd_dtype dtype, void *data, int64_t at, float *scratch)
{
    return dtype == TRD_F32 ? (float *)data + at : scratch;
}

void trd__row_write(const trd__row_math *math, trd_dtype dtype, const float *row, void *data, int64_t at,
                    int64_t n)
{
    if (dtype == TRD_BF16)
        math->narrow(row, (trd__bf16 *)data + at, n);
    else if (row != (float *)data + at)
        memcpy((float *)data + at, row, (size_t)n * sizeof *row);
}
