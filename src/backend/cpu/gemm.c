/* The float32 call into the product library and the widening driver for bf16 operands around it.
 *
 * Invariant: panels are cut by fixed sizes from the tile's start, so they never depend on scratch or timing.
 */
#include "backend/cpu/gemm.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "backend/cpu/bf16_product.h"

/* Rows and columns the library computes together, and the panels of the widening driver: each of the three
 * panels takes 1 MiB at most. */
enum { ROW_GRAIN = 16, COLUMN_GRAIN = 48, PANEL_M = 512, PANEL_N = 512, PANEL_K = 512 };
/* Small parts of C per worker, where each is worth SMALL_PART multiplications. */
enum { SMALL_PARTS = 2, SMALL_PART = 1 << 20 };
/* Multiplications up to which a call of the library costs more than it saves; TINY: of n * k, whatever m is,
 * where rows must keep their bits. */
enum { SMALL = 1 << 17, TINY = 256 };

static int64_t smaller(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* A product that the library has no memory for: slow then, but right. */
static void plain(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                  const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int64_t p = 0; p < k; p++)
                sum += (ta ? a[p * lda + i] : a[i * lda + p]) * (tb ? b[j * ldb + p] : b[p * ldb + j]);
            float *out = c + i * ldc + j;
            *out = beta == 0.0f ? alpha * sum : alpha * sum + beta * *out;
        }
}

bool trd__is_small_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k)
{
    if (transpose_a && transpose_b) return false;
    return n * k <= TINY || (m <= SMALL && n <= SMALL && k <= SMALL && m * n <= SMALL && m * n * k <= SMALL);
}

static void library_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                            const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                            int64_t ldc)
{
    dnnl_status_t status = dnnl_invalid_arguments;
    omp_set_num_threads(1); /* of the calling thread: the pool's workers are the parallelism */
    if (k > 0)              /* else the library would leave C as it is */
        status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb,
                            beta, c, ldc);
    if (status != dnnl_success) plain(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void trd__sgemm(const trd__row_math *math, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                int64_t k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                float *c, int64_t ldc)
{
    if (m <= 0 || n <= 0) return;
    if (trd__is_small_product(transpose_a, transpose_b, m, n, k))
        math->product(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    else
        library_product(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

trd__deal trd__gemm_deal(const trd__gemm *g, int workers)
{
    int small = SMALL_PARTS * workers;
    double of_one = (double)g->m * (double)g->n * (double)g->k / (TRD__DEAL_SHARE * small);
    bool by_rows = g->m >= g->n;
    return trd__deal_of(by_rows ? g->m : g->n, by_rows ? ROW_GRAIN : COLUMN_GRAIN, workers,
                        of_one < SMALL_PART ? 0 : small);
}

trd__gemm_tile trd__gemm_part(const trd__gemm *g, const trd__deal *deal, int part)
{
    int64_t begin, end;
    trd__deal_part(deal, part, &begin, &end);
    return g->m >= g->n ? (trd__gemm_tile){begin, end - begin, 0, g->n}
                        : (trd__gemm_tile){0, g->m, begin, end - begin};
}

static bool all_f32(const trd__gemm *g)
{
    return g->a_dtype == TRD_F32 && g->b_dtype == TRD_F32 && g->c_dtype == TRD_F32;
}

/* Floats of the three panels; 0 where the operand is used as it is. */
typedef struct panels {
    int64_t a, b, c;
} panels;

static panels panels_of(const trd__gemm *g)
{
    int64_t m = smaller(g->m, PANEL_M), n = smaller(g->n, PANEL_N), k = smaller(g->k, PANEL_K);
    return (panels){g->a_dtype == TRD_F32 ? 0 : (m * k + 15) / 16 * 16,
                    g->b_dtype == TRD_F32 ? 0 : (k * n + 15) / 16 * 16, g->c_dtype == TRD_F32 ? 0 : m * n};
}

size_t trd__gemm_scratch_bytes(const trd__gemm *g)
{
    panels p = panels_of(g);
    return (size_t)(p.a + p.b + p.c) * sizeof(float);
}

/* Panel of an operand stored as rows of ld elements: rows [row, row + rows) by columns [column, ...). Sets ld
 * to the panel's own. */
static const float *panel(const trd__row_math *math, trd_dtype dtype, const void *data, int64_t *ld,
                          int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch)
{
    if (dtype == TRD_F32) return (const float *)data + row * *ld + column;
    for (int64_t r = 0; r < rows; r++)
        math->widen((const trd__bf16 *)data + (row + r) * *ld + column, scratch + r * columns, columns);
    *ld = columns;
    return scratch;
}

/* Brings the accumulator's tile into C where it is not there already (float32 C). */
static void bring_accumulator(const trd__gemm *g, trd__gemm_tile tile, const float *accumulator, float *c)
{
    if (!accumulator || accumulator == c) return;
    for (int64_t r = tile.row; r < tile.row + tile.rows; r++)
        memcpy(c + r * g->ldc + tile.column, accumulator + r * g->ldc + tile.column,
               (size_t)tile.columns * sizeof *c);
}

static void round_panel(const trd__gemm *g, const trd__row_math *math, trd__gemm_tile t, const float *product,
                        const trd__bf16 *accumulator, trd__bf16 *c)
{
    for (int64_t r = 0; r < t.rows; r++) {
        int64_t at = (t.row + r) * g->ldc + t.column;
        if (accumulator)
            math->narrow_add(product + r * t.columns, accumulator + at, c + at, t.columns);
        else
            math->narrow(product + r * t.columns, c + at, t.columns);
    }
}

/* One block of C by the library's own product of bfloat16. False: it could not, and C is as it was. */
static bool run_native(const trd__gemm *g, const trd__row_math *math, trd__gemm_tile t, const trd__bf16 *a,
                       const trd__bf16 *b, const void *accumulator, void *c, float *scratch)
{
    if (!g->native || g->k == 0 || g->alpha != 1.0f || g->stable_rows) return false;
    panels sizes = panels_of(g);
    bool direct = g->c_dtype == TRD_F32;
    float *out = direct ? (float *)c + t.row * g->ldc + t.column : scratch + sizes.a + sizes.b;
    a += g->transpose_a ? t.row : t.row * g->lda;
    b += g->transpose_b ? t.column * g->ldb : t.column;
    if (!trd__bf16_product_run(g->native, g->transpose_a, g->transpose_b, t.rows, t.columns, g->k, a, g->lda,
                               b, g->ldb, direct && accumulator, out, direct ? g->ldc : t.columns))
        return false;
    if (!direct) round_panel(g, math, t, out, accumulator, c);
    return true;
}

/* One block of C: the sum over panels of k. */
static void run_block(const trd__gemm *g, const trd__row_math *math, trd__gemm_tile t, const void *a,
                      const void *b, const void *accumulator, void *c, float *scratch)
{
    panels sizes = panels_of(g);
    bool direct = g->c_dtype == TRD_F32;
    float *out = direct ? (float *)c + t.row * g->ldc + t.column : scratch + sizes.a + sizes.b;
    int64_t out_ld = direct ? g->ldc : t.columns, step = PANEL_K;
    if (g->a_dtype == TRD_F32 && g->b_dtype == TRD_F32) step = g->k;
    int64_t k = 0, rows = g->stable_rows ? TRD__GEMM_STABLE_ROWS : t.rows;
    /* Asked once, of whole rows and depth: a shorter last call must not add in another order. */
    bool small = trd__is_small_product(g->transpose_a, g->transpose_b, rows, t.columns, smaller(step, g->k));
    do { /* once even when k is 0, so that C is defined */
        int64_t depth = smaller(step, g->k - k), lda = g->lda, ldb = g->ldb;
        const float *left = g->transpose_a
                                ? panel(math, g->a_dtype, a, &lda, k, depth, t.row, t.rows, scratch)
                                : panel(math, g->a_dtype, a, &lda, t.row, t.rows, k, depth, scratch);
        const float *right =
            g->transpose_b
                ? panel(math, g->b_dtype, b, &ldb, t.column, t.columns, k, depth, scratch + sizes.a)
                : panel(math, g->b_dtype, b, &ldb, k, depth, t.column, t.columns, scratch + sizes.a);
        float beta = k > 0 || (direct && accumulator) ? 1.0f : 0.0f;
        for (int64_t r = 0; r < t.rows; r += rows)
            (small ? math->product : library_product)(
                g->transpose_a, g->transpose_b, smaller(rows, t.rows - r), t.columns, depth, g->alpha,
                left + (g->transpose_a ? r : r * lda), lda, right, ldb, beta, out + r * out_ld, out_ld);
        k += depth;
    } while (k < g->k);
    if (!direct) round_panel(g, math, t, out, accumulator, c);
}

void trd__gemm_run(const trd__gemm *g, const trd__row_math *math, trd__gemm_tile tile, const void *a,
                   const void *b, const void *accumulator, void *c, void *scratch)
{
    if (tile.rows <= 0 || tile.columns <= 0) return;
    if (g->c_dtype == TRD_F32) bring_accumulator(g, tile, accumulator, c);
    if (all_f32(g)) {
        run_block(g, math, tile, a, b, accumulator, c, scratch);
        return;
    }
    for (int64_t column = 0; column < tile.columns; column += PANEL_N)
        for (int64_t row = 0; row < tile.rows; row += PANEL_M) {
            trd__gemm_tile block = {tile.row + row, smaller(PANEL_M, tile.rows - row), tile.column + column,
                                    smaller(PANEL_N, tile.columns - column)};
            if (!run_native(g, math, block, a, b, accumulator, c, scratch))
                run_block(g, math, block, a, b, accumulator, c, scratch);
        }
}
