/* Matrix products: the one place that calls the product library. Row-major,
 *
 *     C (m, n) = alpha op(A) (m, k) op(B) (k, n)  [+ accumulator (m, n)]
 *
 * with A and B each float32 or bfloat16. bf16 operands are widened by panels into bounded scratch and
 * multiplied in float32, or multiplied as they are where the processor does that faster (bf16_product.h).
 * Either way a sum is rounded once: a bf16 accumulator gets C = bf16(f32(accumulator) + product) per call.
 *
 * Everything here runs on the calling thread alone; trd__gemm_deal says who computes which part of C. The
 * library may allocate inside. Determinism: the bits of C depend on the arguments only, native
 * included. */
#ifndef TRD_BACKEND_CPU_GEMM_H
#define TRD_BACKEND_CPU_GEMM_H

#include "backend/cpu/deal.h"
#include "backend/cpu/row_math.h"

typedef struct trd__gemm {
    trd_dtype a_dtype, b_dtype, c_dtype;
    bool transpose_a, transpose_b; /* the operand is stored transposed: A (k, m), B (n, k) */
    int64_t m, n, k;
    int64_t lda, ldb, ldc; /* elements from one stored row to the next */
    float alpha;
    bool stable_rows;                /* a row of C gets the same bits whatever other rows there are: see
                                        TRD__GEMM_STABLE_STEP */
    const trd__bf16_product *native; /* multiplies A and B, both bfloat16, as they are: for alpha 1 and rows
                                        that need not be stable; NULL: they are widened */
} trd__gemm;

/* The library takes other paths for few rows and for rows left over by its blocks (of 6 with AVX2, 8 or 16
 * with AVX-512), which round differently. Calls of at most TRD__GEMM_STABLE_ROWS rows, each a multiple of
 * TRD__GEMM_STABLE_STEP, all take the same; so with stable_rows a tile's rows must be such a multiple. */
enum { TRD__GEMM_STABLE_ROWS = 96, TRD__GEMM_STABLE_STEP = 24 };

/* A range of C: rows [row, row + rows) and columns [column, column + columns). */
typedef struct trd__gemm_tile {
    int64_t row, rows, column, columns;
} trd__gemm_tile;

/* How workers share C: parts of rows when m >= n, else of columns, at multiples of the library's blocks. */
trd__deal trd__gemm_deal(const trd__gemm *g, int workers);
trd__gemm_tile trd__gemm_part(const trd__gemm *g, const trd__deal *deal, int part);

/* A product of this shape, float32 throughout, is not worth a call of the library. */
bool trd__is_small_product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k);

/* Scratch that one trd__gemm_run needs at most, 0 for float32 throughout. */
size_t trd__gemm_scratch_bytes(const trd__gemm *g);

/* Computes the tile of C. accumulator: of C's dtype and layout, may be C itself; NULL defines every element.
 */
void trd__gemm_run(const trd__gemm *g, const trd__row_math *math, trd__gemm_tile tile, const void *a,
                   const void *b, const void *accumulator, void *c, void *scratch);

/* The float32 product itself: C = alpha op(A) op(B) + beta C. beta = 0 defines C whatever it holds, also when
 * k is 0. Small ones do not go to the library: math->product takes them. */
void trd__sgemm(const trd__row_math *math, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                int64_t k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                float *c, int64_t ldc);

#endif
