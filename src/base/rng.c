/* Counter-based generator; see the header. Invariant: no state, so results never depend on call order. */
#include "base/rng.h"

#include <math.h>

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

double trd__rng_normal(uint64_t seed, uint64_t stream, uint64_t i)
{
    double u = 1.0 - trd__rng_uniform(seed, stream, 2 * i); /* (0, 1] */
    double v = trd__rng_uniform(seed, stream, 2 * i + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
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

uint64_t trd__rng_stream(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}
