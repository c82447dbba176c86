/* Body of the small float32 product, compiled once per instruction set as part of row_math_body.h: what a
 * call of the product library costs before its first multiplication is more than these products take whole.
 *
 * Where B is stored (k, n), a block of C lives in registers while k runs: elements of A are broadcast, rows
 * of B are vectors. Where B is stored (n, k), as weights are in the forward pass, a vector's worth of columns
 * is summed along k, lane by lane, and the lanes are then added crosswise into one vector of results.
 *
 * Invariant: the bits of an element of C depend on its row of A and its column of B alone, whatever other
 * rows and columns there are. Where B is stored (n, k) they are also those of stream_math_body.h, which takes
 * over where more rows make the product large: both add in the same order. */
#include <stdbool.h>

#include "backend/cpu/simd.h"

#define PRODUCT_INLINE static inline __attribute__((always_inline))

typedef struct product_out {
    float alpha, beta;
    int64_t ldc;
} product_out;

/* The first n lanes of C at c; n is LANES, or less at the last columns. */
PRODUCT_INLINE void finish_product(const product_out *o, vf sum, float *c, int64_t n)
{
    vf x = sum * o->alpha;
    if (n == LANES) {
        if (o->beta != 0.0f) x = vfma(vload(c), vset(o->beta), x);
        vstore(c, x);
    } else {
        if (o->beta != 0.0f) x = vfma(vload_n(c, n, 0.0f), vset(o->beta), x);
        vstore_n(c, x, n);
    }
}

/* -- B stored (k, n) -- */

/* One operand A of a block: element (row, p) is at row * row_step + p * step. */
typedef struct product_rows {
    const float *at;
    int64_t row_step, step;
} product_rows;

/* Rows x vectors of C; `last` lanes of the last vector. */
PRODUCT_INLINE void broadcast_block(const product_out *o, product_rows a, int rows, const float *b,
                                    int64_t ldb, int vectors, int64_t last, int64_t k, float *c)
{
    enum { MOST_ROWS = 8, MOST_VECTORS = 2, AHEAD = 16 };
    vf sum[MOST_ROWS][MOST_VECTORS];
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++) sum[r][v] = (vf){0};
        for (int v = 0; v < vectors; v++) __builtin_prefetch(c + (rows + r) * o->ldc + v * LANES, 1);
    }
    for (int64_t p = 0; p < k; p++) {
        vf right[MOST_VECTORS];
        for (int v = 0; v < vectors; v++) {
            __builtin_prefetch(b + (p + AHEAD) * ldb + v * LANES);
            bool whole = v + 1 < vectors || last == LANES;
            right[v] = whole ? vload(b + p * ldb + v * LANES) : vload_n(b + p * ldb + v * LANES, last, 0.0f);
        }
        for (int r = 0; r < rows; r++) {
            vf left = vset(a.at[r * a.row_step + p * a.step]);
            for (int v = 0; v < vectors; v++) sum[r][v] = vfma(left, right[v], sum[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            finish_product(o, sum[r][v], c + r * o->ldc + v * LANES, v + 1 < vectors ? LANES : last);
}

PRODUCT_INLINE void broadcast_columns(const product_out *o, product_rows a, int rows, const float *b,
                                      int64_t ldb, int64_t n, int64_t k, float *c)
{
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) broadcast_block(o, a, rows, b + j, ldb, 2, LANES, k, c + j);
    for (; j + LANES <= n; j += LANES) broadcast_block(o, a, rows, b + j, ldb, 1, LANES, k, c + j);
    if (j < n) broadcast_block(o, a, rows, b + j, ldb, 1, n - j, k, c + j);
}

/* As many rows at a time as leave registers for the sums. */
static void broadcast_product(const product_out *o, product_rows a, int64_t m, const float *b, int64_t ldb,
                              int64_t n, int64_t k, float *c)
{
    enum { BLOCK_ROWS = LANES == 16 ? 8 : 4 };
    for (; m >= BLOCK_ROWS; m -= BLOCK_ROWS, a.at += BLOCK_ROWS * a.row_step, c += BLOCK_ROWS * o->ldc)
        broadcast_columns(o, a, BLOCK_ROWS, b, ldb, n, k, c);
    for (; m >= 2; m -= 2, a.at += 2 * a.row_step, c += 2 * o->ldc)
        broadcast_columns(o, a, 2, b, ldb, n, k, c);
    if (m) broadcast_columns(o, a, 1, b, ldb, n, k, c);
}

/* -- B stored (n, k) -- */

/* The lanes of x and y that differ in the bit `half` are added: results of x where the bit is 0, of y where
 * it is 1. */
#define KEEP(lane, half) ((lane) & (half) ? LANES + (lane) : (lane))
#define SWAP(lane, half) (((lane) & (half) ? LANES : 0) + ((lane) ^ (half)))
#define ADD_CROSSWISE(x, y, half)                                                                            \
    (__builtin_shufflevector(x, y, TRD__EACH(KEEP, half)) +                                                  \
     __builtin_shufflevector(x, y, TRD__EACH(SWAP, half)))

/* Lane i of the result is the sum of the lanes of sum[i]. */
PRODUCT_INLINE vf sum_crosswise(vf *sum)
{
#if TRD__LANES == 16
    for (int i = 0; i < 8; i++) sum[i] = ADD_CROSSWISE(sum[i], sum[i + 8], 8);
#endif
#if TRD__LANES >= 8
    for (int i = 0; i < 4; i++) sum[i] = ADD_CROSSWISE(sum[i], sum[i + 4], 4);
#endif
    for (int i = 0; i < 2; i++) sum[i] = ADD_CROSSWISE(sum[i], sum[i + 2], 2);
    return ADD_CROSSWISE(sum[0], sum[1], 1);
}

/* Sums along k: a row or two of A with stored rows of B, as many as there are pointers for in registers. */
enum { DOT_ROWS = LANES == 16 ? 2 : 1, DOT_COLUMNS = LANES / DOT_ROWS };

/* whole: k is a multiple of LANES. The sums then never leave their registers. */
PRODUCT_INLINE vf dot_block(const float *const *a, const float *const *b, int64_t k, bool whole)
{
    vf sum[LANES];
    for (int i = 0; i < LANES; i++) sum[i] = (vf){0};
    int64_t p = 0;
    for (; p + LANES <= k; p += LANES)
        for (int j = 0; j < DOT_COLUMNS; j++) {
            vf right = vload(b[j] + p);
            for (int r = 0; r < DOT_ROWS; r++)
                sum[r * DOT_COLUMNS + j] = vfma(vload(a[r] + p), right, sum[r * DOT_COLUMNS + j]);
        }
    for (int j = 0; !whole && p < k && j < DOT_COLUMNS; j++) {
        vf right = vload_n(b[j] + p, k - p, 0.0f);
        for (int r = 0; r < DOT_ROWS; r++)
            sum[r * DOT_COLUMNS + j] = vfma(vload_n(a[r] + p, k - p, 0.0f), right, sum[r * DOT_COLUMNS + j]);
    }
    return sum_crosswise(sum);
}

PRODUCT_INLINE void finish_dots(const product_out *o, vf sums, int64_t rows, int64_t columns, float *c)
{
    float values[LANES];
    if (DOT_ROWS == 1) {
        finish_product(o, sums, c, columns);
        return;
    }
    vstore(values, sums * o->alpha);
    if (o->beta == 0.0f && rows == DOT_ROWS && columns == DOT_COLUMNS) {
        for (int64_t r = 0; r < DOT_ROWS; r++)
            memcpy(c + r * o->ldc, values + r * DOT_COLUMNS, DOT_COLUMNS * sizeof *c);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < columns; j++) {
            float *out = c + r * o->ldc + j;
            float sum = values[r * DOT_COLUMNS + j];
            *out = o->beta != 0.0f ? sum + o->beta * *out : sum;
        }
}

/* A few stored rows of B stay in the first-level cache while all rows of A pass, and later ones are asked
 * for; behind the last that is nobody's memory and harmless, as in broadcast_block. Behind the last column
 * and the last row these are repeated. */
PRODUCT_INLINE void dot_columns(const product_out *o, product_rows left, int64_t m, const float *b,
                                int64_t ldb, int64_t n, int64_t k, float *c, bool whole)
{
    enum { AHEAD = 3 * DOT_COLUMNS };
    const float *rows[DOT_ROWS], *columns[DOT_COLUMNS];
    const int64_t share = (DOT_COLUMNS * DOT_ROWS + m - 1) / m; /* to ask for with each block */
    for (int64_t j = 0; j < n; j += DOT_COLUMNS) {
        int64_t count = n - j < DOT_COLUMNS ? n - j : DOT_COLUMNS, asked = 0;
        for (int64_t i = 0; i < DOT_COLUMNS; i++) columns[i] = b + (j + (i < count ? i : count - 1)) * ldb;
        for (int64_t i = 0; i < m; i += DOT_ROWS) {
            for (int64_t last = asked + share; asked < last && asked < DOT_COLUMNS; asked++)
                for (int64_t p = 0; p < k; p += 16)
                    __builtin_prefetch(columns[0] + (AHEAD + asked) * ldb + p);
            for (int64_t r = 0; r < DOT_ROWS; r++)
                rows[r] = left.at + (i + r < m ? i + r : m - 1) * left.row_step;
            finish_dots(o, dot_block(rows, columns, k, whole), m - i < DOT_ROWS ? m - i : DOT_ROWS, count,
                        c + i * o->ldc + j);
        }
    }
}

static void dot_product(const product_out *o, product_rows left, int64_t m, const float *b, int64_t ldb,
                        int64_t n, int64_t k, float *c)
{
    if (k % LANES == 0)
        dot_columns(o, left, m, b, ldb, n, k, c, true);
    else
        dot_columns(o, left, m, b, ldb, n, k, c, false);
}

static void product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                    const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                    int64_t ldc)
{
    if (m <= 0 || n <= 0) return;
    product_out out = {.alpha = alpha, .beta = beta, .ldc = ldc};
    product_rows rows = {.at = a, .row_step = transpose_a ? 1 : lda, .step = transpose_a ? lda : 1};
    if (transpose_b)
        dot_product(&out, rows, m, b, ldb, n, k, c);
    else
        broadcast_product(&out, rows, m, b, ldb, n, k, c);
}
