/* Bodies of the streaming product, compiled once per instruction set: the including file defines
 * STREAM_MATH_TABLE. The loops have constant bounds once they are inlined, so accumulators live in registers.
 */
#include "backend/cpu/simd.h"
#include "backend/cpu/stream_math.h"

#define INLINE static inline __attribute__((always_inline))

/* Rows of x whose sums with TRD__STREAM_COLUMNS weight rows fit the registers. */
#if TRD__LANES == 16
#define ROWS_AT_ONCE 4
#else
#define ROWS_AT_ONCE 2
#endif

typedef float v4 __attribute__((vector_size(16)));
#if TRD__LANES > 4
typedef float v8 __attribute__((vector_size(32)));
#endif

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
 * is asked for here are the next call's rows, some bytes for every LANES elements: blocks of rows of x
 * that follow each other ask in turn, so that memory is busy all the time. Behind the last row it is nobody's
 * memory and harmless. */
INLINE void prefetch(const char *next, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += TRD__CACHE_LINE) __builtin_prefetch(next + at);
}

/* The sums of the lanes of TRD__STREAM_COLUMNS vectors, each in the order of vsum: halves are folded until
 * four lanes are left, and those of all four vectors are folded together. */
INLINE v4 sum_lanes(const vf *x)
{
    v4 part[TRD__STREAM_COLUMNS];
    for (int c = 0; c < TRD__STREAM_COLUMNS; c++) {
#if TRD__LANES == 16
        v8 half = __builtin_shufflevector(x[c], x[c], 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(x[c], x[c], 8, 9, 10, 11, 12, 13, 14, 15);
#elif TRD__LANES == 8
        v8 half = x[c];
#endif
#if TRD__LANES > 4
        part[c] =
            __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#else
        part[c] = x[c];
#endif
    }
    v4 low = __builtin_shufflevector(part[0], part[1], 0, 1, 4, 5) +
             __builtin_shufflevector(part[0], part[1], 2, 3, 6, 7);
    v4 high = __builtin_shufflevector(part[2], part[3], 0, 1, 4, 5) +
              __builtin_shufflevector(part[2], part[3], 2, 3, 6, 7);
    return __builtin_shufflevector(low, high, 0, 2, 4, 6) + __builtin_shufflevector(low, high, 1, 3, 5, 7);
}

/* `rows` rows of x by the weight rows. next is prefetched, `ask` bytes for every LANES elements. */
INLINE void block(const float *x, int rows, const void *weight, bool narrow, const char *next, int64_t ask,
                  int64_t k, float *out)
{
    vf sum[ROWS_AT_ONCE][TRD__STREAM_COLUMNS];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < TRD__STREAM_COLUMNS; c++) sum[r][c] = (vf){0};
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) {
        vf w[TRD__STREAM_COLUMNS];
        for (int c = 0; c < TRD__STREAM_COLUMNS; c++) w[c] = weight_at(weight, narrow, c * k + i);
        prefetch(next, ask);
        next += ask;
        for (int r = 0; r < rows; r++) {
            vf value = vload(x + r * k + i);
            for (int c = 0; c < TRD__STREAM_COLUMNS; c++) sum[r][c] = vfma(value, w[c], sum[r][c]);
        }
    }
    for (int c = 0; i < k && c < TRD__STREAM_COLUMNS; c++) {
        vf w = weight_tail(weight, narrow, c * k + i, k - i);
        for (int r = 0; r < rows; r++) sum[r][c] = vfma(vload_n(x + r * k + i, k - i, 0.0f), w, sum[r][c]);
    }
    for (int r = 0; r < rows; r++) {
        v4 sums = sum_lanes(sum[r]);
        memcpy(out + r * TRD__STREAM_COLUMNS, &sums, sizeof sums);
    }
}

INLINE void every_block(const float *x, int64_t rows, const void *weight, bool narrow, int64_t k, float *out)
{
    const int64_t size = narrow ? sizeof(trd__bf16) : sizeof(float);
    int64_t blocks = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, r = 0;
    int64_t ask = TRD__STREAM_COLUMNS * LANES * size / blocks, share = k / LANES * ask;
    const char *next = (const char *)weight + TRD__STREAM_COLUMNS * k * size;
    for (; r + ROWS_AT_ONCE <= rows; r += ROWS_AT_ONCE, next += share)
        block(x + r * k, ROWS_AT_ONCE, weight, narrow, next, ask, k, out + r * TRD__STREAM_COLUMNS);
    x += r * k;
    out += r * TRD__STREAM_COLUMNS;
    if (rows - r == 1) block(x, 1, weight, narrow, next, ask, k, out);
#if ROWS_AT_ONCE > 2
    if (rows - r == 2) block(x, 2, weight, narrow, next, ask, k, out);
    if (rows - r == 3) block(x, 3, weight, narrow, next, ask, k, out);
#endif
}

static void stream_f32(const float *x, int64_t rows, const float *weight, int64_t k, float *out)
{
    every_block(x, rows, weight, false, k, out);
}

static void stream_bf16(const float *x, int64_t rows, const trd__bf16 *weight, int64_t k, float *out)
{
    every_block(x, rows, weight, true, k, out);
}

const trd__stream_math STREAM_MATH_TABLE = {.f32 = stream_f32, .bf16 = stream_bf16};
