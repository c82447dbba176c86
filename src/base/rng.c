/* Counter-based generator; see the header. Invariant: no state, so results never depend on call order. */
#include "base/rng.h"

#include <math.h>
#include <string.h>

static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t trd__rng_u64(uint64_t seed, uint64_t stream, uint64_t i)
{
    return mix(mix(mix(seed) ^ stream) ^ (i * 0xd1342543de82ef95u));
}

double trd__rng_uniform(uint64_t seed, uint64_t stream, uint64_t i)
{
    return (double)(trd__rng_u64(seed, stream, i) >> 11) * 0x1p-53;
}

/* log(x) of a normal float above 0: x = 2^e * m with m in [0.70, 1.41), log m = 2 atanh((m - 1) / (m + 1)).
 */
static inline float log_positive(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t e = (int32_t)(bits - 0x3f350000u) >> 23;
    uint32_t mantissa = bits - ((uint32_t)e << 23);
    float m;
    memcpy(&m, &mantissa, sizeof m);
    float s = (m - 1.0f) / (m + 1.0f), q = s * s;
    float series = 1.0f + q * (1.0f / 3 + q * (1.0f / 5 + q * (1.0f / 7 + q * (1.0f / 9))));
    return (float)e * 0.69314718f + 2.0f * s * series;
}

/* Box and Muller's pair of radius sqrt(-2 log u) and angle 2 pi v; u in (0, 1], v in [0, 1). The angle is cut
 * to a quarter turn around 0, where Taylor's terms up to the tenth suffice. */
static inline void polar(float u, float v, float *x, float *y)
{
    float radius = sqrtf(-2.0f * log_positive(u));
    int32_t quarter = (int32_t)(4.0f * v + 0.5f);
    float a = (4.0f * v - (float)quarter) * 1.57079633f, q = a * a;
    float sine = a * (1 + q * (-1.0f / 6 + q * (1.0f / 120 + q * (-1.0f / 5040 + q * (1.0f / 362880)))));
    float cosine =
        1 + q * (-0.5f + q * (1.0f / 24 + q * (-1.0f / 720 + q * (1.0f / 40320 - q * (1.0f / 3628800)))));
    float c = quarter & 1 ? sine : cosine, s = quarter & 1 ? cosine : sine;
    *x = (quarter + 1) & 2 ? -radius * c : radius * c;
    *y = quarter & 2 ? -radius * s : radius * s;
}

void trd__rng_normals(uint64_t seed, uint64_t stream, uint64_t first, size_t pairs, float *out)
{
    enum { BLOCK = 256 };
    float u[BLOCK], v[BLOCK], x[BLOCK], y[BLOCK];
    uint64_t key = mix(mix(seed) ^ stream);
    for (size_t at = 0; at < pairs; at += BLOCK) {
        size_t count = pairs - at < BLOCK ? pairs - at : BLOCK;
        for (size_t i = 0; i < count; i++) {
            uint64_t bits = mix(key ^ ((first + at + i) * 0xd1342543de82ef95u));
            u[i] = ((float)(int32_t)(bits >> 40) + 1.0f) * 0x1p-24f;
            v[i] = (float)(int32_t)(bits & 0xffffffu) * 0x1p-24f;
        }
        for (size_t i = 0; i < count; i++) polar(u[i], v[i], &x[i], &y[i]);
        for (size_t i = 0; i < count; i++) {
            out[2 * (at + i)] = x[i];
            out[2 * (at + i) + 1] = y[i];
        }
    }
}

uint64_t trd__rng_below(uint64_t seed, uint64_t stream, uint64_t i, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)trd__rng_u64(seed, stream, i) * bound) >> 64);
}

void trd__rng_permutation(uint64_t seed, uint64_t stream, uint64_t *order, size_t count)
{
    for (size_t i = 0; i < count; i++) order[i] = i;
    for (size_t i = count; i > 1; i--) {
        size_t j = (size_t)trd__rng_below(seed, stream, i, i);
        uint64_t swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
}

void trd__threefry(const uint32_t key[2], const uint32_t counter[2], uint32_t out[2])
{
    static const int rotations[8] = TRD__THREEFRY_ROTATIONS;
    const uint32_t schedule[3] = {key[0], key[1], key[0] ^ key[1] ^ TRD__THREEFRY_PARITY};
    uint32_t x = counter[0] + schedule[0], y = counter[1] + schedule[1];
    for (uint32_t round = 0; round < TRD__THREEFRY_ROUNDS; round++) {
        int by = rotations[round % 8];
        x += y;
        y = (y << by | y >> (32 - by)) ^ x;
        uint32_t injection = round / 4 + 1;
        if (round % 4 != 3) continue;
        x += schedule[injection % 3];
        y += schedule[(injection + 1) % 3] + injection;
    }
    out[0] = x;
    out[1] = y;
}

uint64_t trd__rng_stream(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}
