/* The vector loops that kernels are made of: float32 rows of n contiguous elements, any n, any alignment. One
 * table per instruction set, all made from row_math_body.h. bf16 rows are widened into scratch first. Outputs
 * may equal an input of the same row, but for products and attention. Exponentials are a softmax's: 0 below
 * e^-60. */
#ifndef TRD_BACKEND_CPU_ROW_MATH_H
#define TRD_BACKEND_CPU_ROW_MATH_H

#include "backend/cpu/kernel.h"

/* What dropout draws from and decides by: ops/attrs.h. */
typedef struct trd__dropout_draw {
    uint32_t key[2], threshold;
    float factor;
} trd__dropout_draw;

enum { TRD__NORM_ROWS = 16, TRD__FEW_TOKENS = 16 };

/* At most TRD__FEW_TOKENS tokens of one segment and one head of theirs, `size` elements each. Token t sees
 * 0 .. t. The steps are elements from a token to the next: of q, dy, y and dq; of k, v, dk and dv. */
typedef struct trd__few_tokens {
    int64_t tokens, size;
    int64_t q_step, k_step;
    float scale;
} trd__few_tokens;

typedef struct trd__row_math {
    void (*widen)(const trd__bf16 *x, float *y, int64_t n);
    void (*narrow)(const float *x, trd__bf16 *y, int64_t n);
    /* y = bf16(f32(accumulator) + x) */
    void (*narrow_add)(const float *x, const trd__bf16 *accumulator, trd__bf16 *y, int64_t n);
    void (*add)(const float *x, const float *y, float *z, int64_t n); /* z = x + y */
    void (*scale)(float *x, float factor, int64_t n);                 /* x *= factor */
    float (*dot)(const float *x, const float *y, int64_t n);
    float (*largest)(const float *x, int64_t n);              /* -infinity when n is 0 */
    float (*exp_sum)(const float *x, float shift, int64_t n); /* sum of e^(x - shift) */
    float (*exp_in_place)(float *x, float shift, int64_t n);  /* x = e^(x - shift); returns the sum */
    void (*logit_gradient)(float *x, float shift, float factor, int64_t n); /* x = -factor e^(x - shift) */
    void (*attention_gradient)(const float *p, float *dp, float delta, int64_t n); /* dp = p (dp - delta) */
    /* At most TRD__NORM_ROWS rows of n channels: y = x r scale with r = 1 / sqrt(mean(x^2) + eps). */
    void (*norm)(const float *x, const float *scale, double eps, float *y, int64_t rows, int64_t n);
    /* dx = r (scale dy - x r^2 mean(scale dy x)) (dx may be NULL), d_scale += r dy x of all rows */
    void (*norm_gradient)(const float *x, const float *scale, double eps, const float *dy, float *dx,
                          float *d_scale, int64_t rows, int64_t n);
    void (*swiglu)(const float *gate, const float *up, float *y, int64_t n);
    void (*swiglu_gradient)(const float *gate, const float *up, const float *dy, float *d_gate, float *d_up,
                            int64_t n);
    /* Of each head of `size` elements (x, x + pairs) rotated by the angles whose cosines and sines are given;
     * the others are copied. */
    void (*rotate)(const float *x, const float *cosines, const float *sines, float *y, int64_t heads,
                   int64_t size, int64_t pairs);
    /* trd__sgemm (gemm.h) for few multiplications; not with both operands transposed. */
    void (*product)(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                    const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                    int64_t ldc);
    /* Attention of a head within a segment; y and lse (tokens apart by 1) may be NULL, and any of the
     * gradients. more: dk and dv are added to what is there. */
    void (*attend)(const trd__few_tokens *a, const float *q, const float *k, const float *v, float *y,
                   float *lse);
    void (*attend_gradient)(const trd__few_tokens *a, const float *q, const float *k, const float *v,
                            const float *lse, const float *dy, bool more, float *dq, float *dk, float *dv);
    /* Elements from number `first`, a multiple of TRD__DROPOUT_GROUP, on. */
    void (*dropout)(const float *x, const trd__dropout_draw *draw, int64_t first, float *y, int64_t n);
} trd__row_math;

extern const trd__row_math trd__row_math_baseline, trd__row_math_avx2, trd__row_math_avx512;

const trd__row_math *trd__row_math_for(trd__isa isa);

/* f32 view of n elements of a float32 or bfloat16 array from `at` on: the array itself, or a copy in scratch.
 */
const float *trd__row_read(const trd__row_math *math, trd_dtype dtype, const void *data, int64_t at,
                           int64_t n, float *scratch);
/* Always the copy. */
void trd__row_copy(const trd__row_math *math, trd_dtype dtype, const void *data, int64_t at, int64_t n,
                   float *copy);
/* Where to put n results so that trd__row_write can finish: the array itself, or scratch. trd__row_write
 * takes results from anywhere. */
float *trd__row_target(trd_dtype dtype, void *data, int64_t at, float *scratch);
void trd__row_write(const trd__row_math *math, trd_dtype dtype, const float *row, void *data, int64_t at,
                    int64_t n);

static inline bool trd__is_f32_or_bf16(trd_dtype d)
{
    return d == TRD_F32 || d == TRD_BF16;
}

#endif
