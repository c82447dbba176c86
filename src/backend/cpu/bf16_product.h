/* The product library's own product of bfloat16 operands, for processors that multiply them as they are
 * faster than float32 (AMX, or a dot product of bfloat16 pairs at full rate). Elsewhere operands are widened
 * (gemm.h). Which of the two a process takes is measured once, before its first program with bfloat16 is
 * compiled.
 *
 * Instructions for bfloat16 take subnormal operands and results as 0, which widening does not.
 *
 * Invariant: one object serves every shape and every thread; dimensions are given with each call. */
#ifndef TRD_BACKEND_CPU_BF16_PRODUCT_H
#define TRD_BACKEND_CPU_BF16_PRODUCT_H

#include "backend/cpu/kernel.h"
#include "base/log.h"

typedef enum trd__bf16_way { TRD__BF16_AUTO, TRD__BF16_NATIVE, TRD__BF16_WIDEN } trd__bf16_way;

/* *product stays NULL where operands are to be widened. TRD__BF16_AUTO measures both ways, in less than 5 ms,
 * on processors that have instructions for bfloat16, and takes the library's where it is clearly faster; a
 * processor without them widens. TRD_UNSUPPORTED: native was asked for and the library has none here. */
trd_status trd__bf16_product_choose(trd__bf16_way way, trd__isa isa, const trd_log_sink *log,
                                    trd__bf16_product **product);
void trd__bf16_product_free(trd__bf16_product *product); /* NULL is fine */

/* C (m, n) = op(A) (m, k) op(B) (k, n), k > 0, added to what C holds when accumulate is set; C is float32, ld
 * counts elements. On the calling thread alone; the library may allocate. False: it failed and C is as it
 * was.
 */
bool trd__bf16_product_run(const trd__bf16_product *product, bool transpose_a, bool transpose_b, int64_t m,
                           int64_t n, int64_t k, const trd__bf16 *a, int64_t lda, const trd__bf16 *b,
                           int64_t ldb, bool accumulate, float *c, int64_t ldc);

#endif
