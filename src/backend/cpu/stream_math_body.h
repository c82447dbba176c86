/* Bodies of the streaming product, compiled once per instruction set: the including file defines
 * STREAM_MATH_TABLE. The loops have constant bounds once they are inlined, so accumulators live in registers.
 */
#include "backend/cpu/simd.h"
#include "backend/cpu/stream_math.h"

#define INLINE static inline __attribute__((always_inline))

INLINE vf weight_at(const void *weight, bool narrow, int64_t i)
{
    return narrow ? vload_bf16((const trd__bf16 *)weight + i) : vload((const float *)weight + i);
}

/* The last n < LANES elements, 0 behind them. */
INLINE vf weight_tail(const void *weight, bool narrow, int64_t i, int64_t n)
{
    if (!narrow) return vload_n((const float *)weight + i, n, 0.0f);
    float wide[LANES] = {0};
    for (int64_t j = 0; j < n; j++) wide[j] = trd__bf16_to_f32(((const trd__bf16 *)weight)[i + j]);
    return vload(wide);
}

/* Rows are short and several are read side by side, which the processor's own prefetching follows badly. What
 * is asked for here is the same place in the next call's rows; behind the last row that is nobody's and
 * harmless. */
INLINE void prefetch(const void *weight, bool narrow, int64_t i)
{
    __builtin_prefetch((const char *)weight + (size_t)i * (narrow ? sizeof(trd__bf16) : sizeof(float)));
}

/* Rows of x by `columns` weight rows from number `first` on. */
INLINE void block(const float *x, int rows, const void *weight, bool narrow, int first, int columns,
                  int64_t k, float *out)
{
    vf sum[TRD__STREAM_ROWS][TRD__STREAM_COLUMNS];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) sum[r][c] = (vf){0};
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES)
        for (int c = 0; c < columns; c++) {
            int64_t at = (first + c) * k + i;
            vf w = weight_at(weight, narrow, at);
            prefetch(weight, narrow, at + TRD__STREAM_COLUMNS * k);
            for (int r = 0; r < rows; r++) sum[r][c] = vfma(vload(x + r * k + i), w, sum[r][c]);
        }
    for (int c = 0; i < k && c < columns; c++) {
        vf w = weight_tail(weight, narrow, (first + c) * k + i, k - i);
        for (int r = 0; r < rows; r++) sum[r][c] = vfma(vload_n(x + r * k + i, k - i, 0.0f), w, sum[r][c]);
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) out[r * TRD__STREAM_COLUMNS + first + c] = vsum(sum[r][c]);
}

/* As many weight rows at a time as leave registers for the sums. */
INLINE void every_column(const float *x, int rows, const void *weight, bool narrow, int64_t k, float *out)
{
    int columns = rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
    for (int first = 0; first < TRD__STREAM_COLUMNS; first += columns)
        block(x, rows, weight, narrow, first, columns, k, out);
}

INLINE void every_row(const float *x, int64_t rows, const void *weight, bool narrow, int64_t k, float *out)
{
    switch (rows) {
    case 1:
        every_column(x, 1, weight, narrow, k, out);
        break;
    case 2:
        every_column(x, 2, weight, narrow, k, out);
        break;
    case 3:
        every_column(x, 3, weight, narrow, k, out);
        break;
    case 4:
        every_column(x, 4, weight, narrow, k, out);
        break;
    case 5:
        every_column(x, 5, weight, narrow, k, out);
        break;
    case 6:
        every_column(x, 6, weight, narrow, k, out);
        break;
    case 7:
        every_column(x, 7, weight, narrow, k, out);
        break;
    default:
        every_column(x, TRD__STREAM_ROWS, weight, narrow, k, out);
        break;
    }
}

static void stream_f32(const float *x, int64_t rows, const float *weight, int64_t k, float *out)
{
    every_row(x, rows, weight, false, k, out);
}

static void stream_bf16(const float *x, int64_t rows, const trd__bf16 *weight, int64_t k, float *out)
{
    every_row(x, rows, weight, true, k, out);
}

const trd__stream_math STREAM_MATH_TABLE = {.f32 = stream_f32, .bf16 = stream_bf16};
