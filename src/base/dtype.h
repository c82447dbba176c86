/* Conversions between element types, and properties of dtypes. Rounding to bf16 and f16 is to nearest even.
 */
#ifndef TRD_BASE_DTYPE_H
#define TRD_BASE_DTYPE_H

#include <string.h>

#include <treadle/tensor.h>

typedef uint16_t trd__bf16; /* stored bits */
typedef uint16_t trd__f16;  /* stored bits */

static inline bool trd__dtype_is_float(trd_dtype d)
{
    return d == TRD_F32 || d == TRD_F64 || d == TRD_BF16 || d == TRD_F16;
}

static inline float trd__bf16_to_f32(trd__bf16 bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline trd__bf16 trd__f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (trd__bf16)((bits >> 16) | 0x40u); /* keep NaN a quiet NaN */
    return (trd__bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Without branches, so that loops over it vectorize. */
static inline float trd__f16_to_f32(trd__f16 bits)
{
    uint32_t exponent = bits & 0x7c00u, rebias = UINT32_C(112) << 23;
    uint32_t wide = ((uint32_t)(bits & 0x7fffu) << 13) + rebias;
    wide += exponent == 0x7c00u ? rebias : 0; /* infinity and NaN */
    float subnormal = (float)(bits & 0x3ffu) * 0x1p-24f;
    uint32_t small;
    memcpy(&small, &subnormal, sizeof small);
    wide = (exponent == 0 ? small : wide) | (uint32_t)(bits & 0x8000u) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

trd__f16 trd__f32_to_f16(float value);

/* Element i of an array of dtype d, as double (bool: 0 or 1), and back (rounded once to d). For reference
 * kernels, tests and cold paths. */
double trd__load(trd_dtype d, const void *data, size_t i);
void trd__store(trd_dtype d, void *data, size_t i, double value);

/* Converts count elements; from and to may be any of f32, f64, bf16, f16, i32, i64, u8, bool. No overlap.
 * From i64 to i32 the low bits are kept; elsewhere a value must fit its new dtype. */
void trd__convert(trd_dtype from, const void *source, trd_dtype to, void *target, size_t count);

#endif
