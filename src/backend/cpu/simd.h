/* One float vector per instruction set, by GCC and Clang vector extensions: a file that includes this is
 * compiled once per set (x.c, x_avx2.c, x_avx512.c) and sees the widest vector its flags allow. Intrinsics
 * appear only where the extensions have no word for an operation.
 *
 * Invariant: nothing here swallows a NaN, except that vmax and vmin return their second operand when either
 * is one (so a constant bound goes first). */
#ifndef TRD_BACKEND_CPU_SIMD_H
#define TRD_BACKEND_CPU_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define TRD__LANES 16
#elif defined(__AVX2__)
#define TRD__LANES 8
#else
#define TRD__LANES 4
#endif

enum { LANES = TRD__LANES };
typedef float vf __attribute__((vector_size(4 * TRD__LANES)));
typedef int32_t vi __attribute__((vector_size(4 * TRD__LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * TRD__LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * TRD__LANES)));
typedef float vf_unaligned __attribute__((vector_size(4 * TRD__LANES), aligned(4), may_alias));
typedef uint16_t vh_unaligned __attribute__((vector_size(2 * TRD__LANES), aligned(2), may_alias));

static inline vf vset(float x)
{
    return x - (vf){0};
}
static inline vf vload(const float *p)
{
    return *(const vf_unaligned *)p;
}
static inline void vstore(float *p, vf x)
{
    *(vf_unaligned *)p = x;
}

/* The first n < LANES lanes; the rest are fill. */
static inline vf vload_n(const float *p, int64_t n, float fill)
{
#if defined(__AVX512F__)
    return (vf)_mm512_mask_loadu_ps((__m512)vset(fill), (__mmask16)((1u << n) - 1), p);
#else
    vf x = vset(fill);
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
#endif
}
static inline void vstore_n(float *p, vf x, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#else
    memcpy(p, &x, (size_t)n * sizeof *p);
#endif
}

static inline vf vselect(vi mask, vf x, vf y)
{
    return (vf)(((vi)x & mask) | ((vi)y & ~mask));
}

#if defined(__AVX512F__)
static inline vf vmax(vf x, vf y)
{
    return (vf)_mm512_max_ps((__m512)x, (__m512)y);
}
static inline vf vmin(vf x, vf y)
{
    return (vf)_mm512_min_ps((__m512)x, (__m512)y);
}
static inline vf vfma(vf x, vf y, vf z)
{
    return (vf)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
}
static inline vf vsqrt(vf x)
{
    return (vf)_mm512_sqrt_ps((__m512)x);
}
#elif defined(__AVX2__)
static inline vf vmax(vf x, vf y)
{
    return (vf)_mm256_max_ps((__m256)x, (__m256)y);
}
static inline vf vmin(vf x, vf y)
{
    return (vf)_mm256_min_ps((__m256)x, (__m256)y);
}
static inline vf vfma(vf x, vf y, vf z)
{
    return (vf)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
}
static inline vf vsqrt(vf x)
{
    return (vf)_mm256_sqrt_ps((__m256)x);
}
#else
static inline vf vmax(vf x, vf y)
{
    return vselect(x > y, x, y);
}
static inline vf vmin(vf x, vf y)
{
    return vselect(x < y, x, y);
}
static inline vf vfma(vf x, vf y, vf z)
{
    return x * y + z;
}
static inline vf vsqrt(vf x)
{
    for (int i = 0; i < LANES; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
}
#endif

/* Floats as doubles, as many as a register holds. */
enum { WIDE_LANES = LANES / 2 };
typedef double vd __attribute__((vector_size(WIDE_LANES * sizeof(double))));

static inline vd vload_wide(const float *p)
{
#if defined(__AVX512F__)
    return (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(__AVX2__)
    return (vd)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
    vd x;
    for (int i = 0; i < WIDE_LANES; i++) x[i] = (double)p[i];
    return x;
#endif
}

static inline vf vabs(vf x)
{
    return (vf)((vu)x & 0x7fffffffu);
}

/* bf16 to float and back, rounding to nearest even; a NaN stays a quiet NaN. */
static inline vf vwiden(vh bits)
{
#if defined(__AVX512F__) /* one instruction, where the conversion below becomes five */
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)bits), 16);
#else
    return (vf)(__builtin_convertvector(bits, vu) << 16);
#endif
}
static inline vf vload_bf16(const uint16_t *p)
{
    return vwiden(*(const vh_unaligned *)p);
}
static inline vh vnarrow(vf x)
{
    vu bits = (vu)x;
    vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    vu quiet = (bits >> 16) | 0x40u;
    vu is_nan = (vu)((bits & 0x7fffffffu) > 0x7f800000u);
    return __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), vh);
}
static inline void vstore_bf16(uint16_t *p, vf x)
{
    *(vh_unaligned *)p = vnarrow(x);
}

/* Sum and maximum of the lanes, in a fixed order. */
static inline float vsum(vf x)
{
    float sum[LANES];
    memcpy(sum, &x, sizeof sum);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sum[i] += sum[i + half];
    return sum[0];
}
static inline float vlargest(vf x)
{
    float largest = x[0];
    for (int i = 1; i < LANES; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

/* e^x to 1 ulp or so: x = n ln 2 + r with |r| <= ln 2 / 2, a Taylor polynomial of degree 7 in r, and 2^n in
 * two factors so that the result overflows to infinity and underflows through the subnormals. */
static inline vf vexp(vf x)
{
    x = vmin(vset(89.0f), vmax(vset(-104.0f), x));
    vf shifted = vfma(x, vset(1.44269504f), vset(12582912.0f)); /* 1.5 * 2^23: rounds to an integer */
    vf n = shifted - 12582912.0f;
    vf r = vfma(n, vset(-0.693359375f), x); /* ln 2 in two parts, the first exact in 9 bits */
    r = vfma(n, vset(2.12194440e-4f), r);
    vf p = vset(1.0f / 5040.0f);
    p = vfma(p, r, vset(1.0f / 720.0f));
    p = vfma(p, r, vset(1.0f / 120.0f));
    p = vfma(p, r, vset(1.0f / 24.0f));
    p = vfma(p, r, vset(1.0f / 6.0f));
    p = vfma(p, r, vset(0.5f));
    p = vfma(p * r, r, r) + 1.0f;
    vi exponent = (vi)shifted - 0x4b400000; /* the bits of 1.5 * 2^23 */
    vi half = exponent >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((exponent - half + 127) << 23);
}

static inline vf vsigmoid(vf x)
{
    return 1.0f / (1.0f + vexp(-x));
}

#endif
