/* Dequantization of GGUF blocks to float32. Block layouts are those of ggml (ggml-common.h); products are
 * formed in the order of its reference, so results agree to the bit. Inner loops have fixed counts and no
 * branches, so that the compiler vectorizes them. */
#include <string.h>

#include "base/dtype.h"
#include "formats/gguf.h"

static float half_at(const unsigned char *p)
{
    trd__f16 bits;
    memcpy(&bits, p, sizeof bits);
    return trd__f16_to_f32(bits);
}

static void f32_block(const unsigned char *p, float *out, size_t blocks)
{
    memcpy(out, p, blocks * sizeof *out);
}

static void f16_block(const unsigned char *p, float *out, size_t blocks)
{
    for (size_t i = 0; i < blocks; i++) out[i] = half_at(p + 2 * i);
}

static void bf16_block(const unsigned char *p, float *out, size_t blocks)
{
    for (size_t i = 0; i < blocks; i++) {
        trd__bf16 bits;
        memcpy(&bits, p + 2 * i, sizeof bits);
        out[i] = trd__bf16_to_f32(bits);
    }
}

/* d, 16 bytes of two 4-bit values: low nibbles are elements 0-15, high nibbles 16-31. */
static void q4_0_block(const unsigned char *p, float *out, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, p += 18, out += 32) {
        float d = half_at(p);
        for (int i = 0; i < 16; i++) {
            out[i] = (float)((p[2 + i] & 15) - 8) * d;
            out[i + 16] = (float)((p[2 + i] >> 4) - 8) * d;
        }
    }
}

/* d, m, nibbles as in Q4_0. */
static void q4_1_block(const unsigned char *p, float *out, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, p += 20, out += 32) {
        float d = half_at(p), m = half_at(p + 2);
        for (int i = 0; i < 16; i++) {
            out[i] = (float)(p[4 + i] & 15) * d + m;
            out[i + 16] = (float)(p[4 + i] >> 4) * d + m;
        }
    }
}

/* The fifth bits of 32 elements, element i in bit i. */
static uint32_t high_bits(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void q5_0_block(const unsigned char *p, float *out, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, p += 22, out += 32) {
        float d = half_at(p);
        uint32_t high = high_bits(p + 2);
        for (int i = 0; i < 16; i++) {
            int low = (int)(p[6 + i] & 15) | (int)((high >> i & 1) << 4);
            int top = (int)(p[6 + i] >> 4) | (int)((high >> (i + 16) & 1) << 4);
            out[i] = (float)(low - 16) * d;
            out[i + 16] = (float)(top - 16) * d;
        }
    }
}

static void q5_1_block(const unsigned char *p, float *out, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, p += 24, out += 32) {
        float d = half_at(p), m = half_at(p + 2);
        uint32_t high = high_bits(p + 4);
        for (int i = 0; i < 16; i++) {
            int low = (int)(p[8 + i] & 15) | (int)((high >> i & 1) << 4);
            int top = (int)(p[8 + i] >> 4) | (int)((high >> (i + 16) & 1) << 4);
            out[i] = (float)low * d + m;
            out[i + 16] = (float)top * d + m;
        }
    }
}

static void q8_0_block(const unsigned char *p, float *out, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, p += 34, out += 32) {
        float d = half_at(p);
        for (int i = 0; i < 32; i++) out[i] = (float)(signed char)p[2 + i] * d;
    }
}

/* Scale and minimum j of the eight that Q4_K packs as 6-bit numbers into 12 bytes. */
static void k4_scale(const unsigned char *s, int j, float *scale, float *minimum)
{
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *minimum = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *minimum = (float)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

/* d, dmin, 12 bytes of scales, 128 bytes of nibbles: 32 bytes hold 64 elements, the low nibbles first. */
static void q4_k_block(const unsigned char *p, float *out, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, p += 144) {
        float d = half_at(p), dmin = half_at(p + 2);
        const unsigned char *q = p + 16;
        for (int j = 0; j < 8; j += 2, q += 32, out += 64) {
            float scale[2], minimum[2];
            k4_scale(p + 4, j, &scale[0], &minimum[0]);
            k4_scale(p + 4, j + 1, &scale[1], &minimum[1]);
            float d1 = d * scale[0], m1 = dmin * minimum[0], d2 = d * scale[1], m2 = dmin * minimum[1];
            for (int i = 0; i < 32; i++) {
                out[i] = d1 * (float)(q[i] & 15) - m1;
                out[i + 32] = d2 * (float)(q[i] >> 4) - m2;
            }
        }
    }
}

/* 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales of 16 elements each, d. */
static void q6_k_block(const unsigned char *p, float *out, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++, p += 210) {
        float d = half_at(p + 208);
        for (int half = 0; half < 2; half++, out += 128) {
            const unsigned char *low = p + 64 * half, *high = p + 128 + 32 * half;
            const unsigned char *scales = p + 192 + 8 * half;
            for (int quarter = 0; quarter < 4; quarter++)
                for (int i = 0; i < 32; i++) {
                    int nibble = low[i + 32 * (quarter & 1)] >> (quarter < 2 ? 0 : 4) & 15;
                    int value = (nibble | (high[i] >> 2 * quarter & 3) << 4) - 32;
                    float scale = (float)(signed char)scales[2 * quarter + i / 16];
                    out[32 * quarter + i] = d * scale * (float)value;
                }
        }
    }
}

static const struct {
    const char *name;
    size_t elements, bytes;
} types[TRD__GGUF_TYPE_COUNT] = {
#define TYPE_ROW(name, number, elements, bytes) [TRD__GGUF_TYPE_##name] = {#name, elements, bytes},
    TRD__GGUF_TYPE_LIST(TYPE_ROW)
#undef TYPE_ROW
};

static void (*const decoders[TRD__GGUF_TYPE_COUNT])(const unsigned char *p, float *out, size_t blocks) = {
    [TRD__GGUF_TYPE_F32] = f32_block,   [TRD__GGUF_TYPE_F16] = f16_block,
    [TRD__GGUF_TYPE_BF16] = bf16_block, [TRD__GGUF_TYPE_Q4_0] = q4_0_block,
    [TRD__GGUF_TYPE_Q4_1] = q4_1_block, [TRD__GGUF_TYPE_Q5_0] = q5_0_block,
    [TRD__GGUF_TYPE_Q5_1] = q5_1_block, [TRD__GGUF_TYPE_Q8_0] = q8_0_block,
    [TRD__GGUF_TYPE_Q4_K] = q4_k_block, [TRD__GGUF_TYPE_Q6_K] = q6_k_block,
};

const char *trd__gguf_type_name(trd__gguf_type type)
{
    return types[type].name;
}
size_t trd__gguf_block_elements(trd__gguf_type type)
{
    return types[type].elements;
}
size_t trd__gguf_block_bytes(trd__gguf_type type)
{
    return types[type].bytes;
}

void trd__gguf_dequantize(trd__gguf_type type, const void *data, float *out, size_t blocks)
{
    decoders[type](data, out, blocks);
}
