/* Dtype names, and element conversions that are not worth inlining. f16 follows IEEE 754 binary16. */
#include "base/dtype.h"

#include <math.h>

#include "base/status.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[TRD_DTYPE_COUNT] = {
#define TRD_DTYPE_ROW(id, text, size) [TRD_##id] = {text, size},
    TRD_DTYPE_LIST(TRD_DTYPE_ROW)
#undef TRD_DTYPE_ROW
};

static const struct {
    const char *name;
    trd_dtype dtype;
} short_names[] = {{"f32", TRD_F32}, {"f64", TRD_F64}, {"bf16", TRD_BF16},
                   {"f16", TRD_F16}, {"i32", TRD_I32}, {"u8", TRD_U8}};

const char *trd_dtype_name(trd_dtype dtype)
{
    return (unsigned)dtype < TRD_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

size_t trd_dtype_bytes(trd_dtype dtype)
{
    return (unsigned)dtype < TRD_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

trd_status trd_dtype_parse(const char *name, trd_dtype *dtype)
{
    for (int i = 0; i < TRD_DTYPE_COUNT; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype = (trd_dtype)i;
            return TRD_OK;
        }
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++)
        if (strcmp(name, short_names[i].name) == 0) {
            *dtype = short_names[i].dtype;
            return TRD_OK;
        }
    return trd__fail(TRD_INVALID_ARGUMENT,
                     "dtype: expected float32, bfloat16, float16 or float64, found \"%s\"", name);
}

trd__f16 trd__f32_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (trd__f16)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (trd__f16)(sign | 0x7c00u); /* rounds past 65504, or infinite */
    if (magnitude < 0x38800000u) {                                   /* subnormal in f16, or zero */
        float scaled = ldexpf(fabsf(value), 24);
        return (trd__f16)(sign | (uint16_t)nearbyintf(scaled));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (trd__f16)(sign | (uint16_t)((rounded - 0x38000000u) >> 13));
}

double trd__load(trd_dtype d, const void *data, size_t i)
{
    switch (d) {
    case TRD_F32:
        return (double)((const float *)data)[i];
    case TRD_F64:
        return ((const double *)data)[i];
    case TRD_BF16:
        return (double)trd__bf16_to_f32(((const trd__bf16 *)data)[i]);
    case TRD_F16:
        return (double)trd__f16_to_f32(((const trd__f16 *)data)[i]);
    case TRD_I32:
        return (double)((const int32_t *)data)[i];
    case TRD_I64:
        return (double)((const int64_t *)data)[i];
    case TRD_U8:
        return (double)((const uint8_t *)data)[i];
    case TRD_BOOL:
        return ((const uint8_t *)data)[i] ? 1.0 : 0.0;
    default:
        return NAN;
    }
}

void trd__store(trd_dtype d, void *data, size_t i, double value)
{
    switch (d) {
    case TRD_F32:
        ((float *)data)[i] = (float)value;
        break;
    case TRD_F64:
        ((double *)data)[i] = value;
        break;
    case TRD_BF16:
        ((trd__bf16 *)data)[i] = trd__f32_to_bf16((float)value);
        break;
    case TRD_F16:
        ((trd__f16 *)data)[i] = trd__f32_to_f16((float)value);
        break;
    case TRD_I32:
        ((int32_t *)data)[i] = (int32_t)value;
        break;
    case TRD_I64:
        ((int64_t *)data)[i] = (int64_t)value;
        break;
    case TRD_U8:
        ((uint8_t *)data)[i] = (uint8_t)value;
        break;
    case TRD_BOOL:
        ((uint8_t *)data)[i] = value != 0.0;
        break;
    default:
        break;
    }
}

void trd__convert(trd_dtype from, const void *source, trd_dtype to, void *target, size_t count)
{
    if (from == to) {
        memcpy(target, source, count * trd_dtype_bytes(from));
    } else if (from == TRD_BF16 && to == TRD_F32) {
        for (size_t i = 0; i < count; i++)
            ((float *)target)[i] = trd__bf16_to_f32(((const trd__bf16 *)source)[i]);
    } else if (from == TRD_F16 && to == TRD_F32) {
        for (size_t i = 0; i < count; i++)
            ((float *)target)[i] = trd__f16_to_f32(((const trd__f16 *)source)[i]);
    } else if (from == TRD_F32 && to == TRD_BF16) {
        for (size_t i = 0; i < count; i++)
            ((trd__bf16 *)target)[i] = trd__f32_to_bf16(((const float *)source)[i]);
    } else if (from == TRD_I64 && to == TRD_I32) {
        for (size_t i = 0; i < count; i++)
            ((int32_t *)target)[i] = (int32_t)(uint32_t)((const int64_t *)source)[i];
    } else {
        for (size_t i = 0; i < count; i++) trd__store(to, target, i, trd__load(from, source, i));
    }
}
