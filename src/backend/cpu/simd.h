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

static inline vd vfma_wide(vd x, vd y, vd z)
{
#if defined(__AVX512F__)
    return (vd)_mm512_fmadd_pd((__m512d)x, (__m512d)y, (__m512d)z);
#elif defined(__AVX2__)
    return (vd)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)z);
#else
    return x * y + z;
#endif
}
static inline vd vload_wide_bf16(const uint16_t *p)
{
#if defined(__AVX512F__)
    __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
    return (vd)_mm512_cvtps_pd((__m256)bits);
#elif defined(__AVX2__)
    __m128i bits = _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), 16);
    return (vd)_mm256_cvtps_pd((__m128)bits);
#else
    vd x;
    for (int i = 0; i < WIDE_LANES; i++) {
        uint32_t bits = (uint32_t)p[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        x[i] = (double)value;
    }
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
/* The upper halves are the rounded values: a half of the lower bits is a tie unless the last bit kept is odd,
 * which then stands for more than half. The lower halves are anything. */
static inline vu vround_halves(vf x)
{
    vu bits = (vu)x, rounded = (bits | (bits >> 16 & 1u)) + 0x7fffu;
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return (vu)_mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)bits, _mm512_set1_epi32(0x400000));
#else
    vu is_nan = (vu)(x != x);
    return (rounded & ~is_nan) | ((bits | 0x400000u) & is_nan);
#endif
}
static inline vf vround_bf16(vf x)
{
    return (vf)(vround_halves(x) & 0xffff0000u);
}
static inline void vstore_bf16(uint16_t *p, vf x)
{
    *(vh_unaligned *)p = __builtin_convertvector(vround_halves(x) >> 16, vh);
}

/* Two neighbouring vectors: as words of 16 bits they are rounded in one go, those of y between those of x. */
static inline void vstore2_bf16(uint16_t *p, vf x, vf y)
{
#if defined(__AVX512BW__)
    const __mmask32 odd = 0xaaaaaaaa;
    __m512i high = _mm512_mask_blend_epi16(odd, _mm512_srli_epi32((__m512i)x, 16), (__m512i)y);
    __m512i low = _mm512_mask_blend_epi16(odd, (__m512i)x, _mm512_slli_epi32((__m512i)y, 16));
    __m512i one = _mm512_set1_epi16(1), half = _mm512_set1_epi16(INT16_MIN);
    __m512i beyond = _mm512_or_si512(low, _mm512_and_si512(high, one)); /* half: see vround_halves */
    high = _mm512_mask_add_epi16(high, _mm512_cmpgt_epu16_mask(beyond, half), high, one);
    if (__builtin_expect(!_mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_UNORD_Q), 1)) {
        static const uint16_t apart[2 * TRD__LANES] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                                       22, 24, 26, 28, 30, 1,  3,  5,  7,  9,  11,
                                                       13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
        _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_loadu_si512(apart), high));
        return;
    }
#endif
    vstore_bf16(p, x);
    vstore_bf16(p + LANES, y);
}

/* f(lane, half) for every lane, as the list of a shuffle. */
#define TRD__EACH4(f, at, half) f(at, half), f(at + 1, half), f(at + 2, half), f(at + 3, half)
#if TRD__LANES == 16
#define TRD__EACH(f, half)                                                                                   \
    TRD__EACH4(f, 0, half), TRD__EACH4(f, 4, half), TRD__EACH4(f, 8, half), TRD__EACH4(f, 12, half)
#elif TRD__LANES == 8
#define TRD__EACH(f, half) TRD__EACH4(f, 0, half), TRD__EACH4(f, 4, half)
#else
#define TRD__EACH(f, half) TRD__EACH4(f, 0, half)
#endif

/* The lanes that differ in the bit `half` take each other's places. */
#define TRD__PARTNER(lane, half) ((lane) ^ (half))
#define TRD__PARTNERS(x, half) __builtin_shufflevector(x, x, TRD__EACH(TRD__PARTNER, half))

/* Sum and maximum of the lanes, in a fixed order: the upper half to the lower, and so on. */
static inline float vsum(vf x)
{
#if TRD__LANES == 16
    x += TRD__PARTNERS(x, 8);
#endif
#if TRD__LANES >= 8
    x += TRD__PARTNERS(x, 4);
#endif
    x += TRD__PARTNERS(x, 2);
    x += TRD__PARTNERS(x, 1);
    return x[0];
}
static inline float vlargest(vf x)
{
#if TRD__LANES == 16
    x = vmax(x, TRD__PARTNERS(x, 8));
#endif
#if TRD__LANES >= 8
    x = vmax(x, TRD__PARTNERS(x, 4));
#endif
    x = vmax(x, TRD__PARTNERS(x, 2));
    x = vmax(x, TRD__PARTNERS(x, 1));
    return x[0];
}

/* e^x to 1 ulp or so for -104 <= x <= 89: x = n ln 2 + r with |r| <= ln 2 / 2, a Taylor polynomial of degree
 * 7 in r, times 2^n so that the result overflows to infinity and underflows through the subnormals. */
static inline vf vexp_within(vf x)
{
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
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    vi exponent = (vi)shifted - 0x4b400000; /* the bits of 1.5 * 2^23 */
    vi half = exponent >> 1;                /* two factors: 2^n itself may be out of range */
    return p * (vf)((half + 127) << 23) * (vf)((exponent - half + 127) << 23);
#endif
}

static inline vf vexp(vf x)
{
    return vexp_within(vmin(vset(89.0f), vmax(vset(-104.0f), x)));
}

static inline vf vsigmoid(vf x)
{
#if defined(__AVX512F__)
    /* A division takes as long as all the rest. Below -87, where the inverse would be subnormal, the result
     * is 0. */
    const __m512 least = _mm512_set1_ps(-87.0f);
    __m512 divisor = (__m512)(1.0f + vexp_within(vmin(vset(87.0f), vmax(vset(-104.0f), -x))));
    __m512 inverse = _mm512_rcp14_ps(divisor);
    __mmask16 in_range = _mm512_cmp_ps_mask((__m512)x, least, _CMP_NLT_UQ);
    __m512 error = _mm512_fnmadd_ps(divisor, inverse, _mm512_set1_ps(1.0f));
    return (vf)_mm512_maskz_mov_ps(in_range, _mm512_fmadd_ps(inverse, error, inverse));
#else
    return 1.0f / (1.0f + vexp(-x));
#endif
}

#endif
