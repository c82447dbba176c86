/* XXH3 through the xxHash library. */
#include "base/checksum.h"

#include <xxhash.h>

uint64_t trd__checksum(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

uint64_t trd__checksum_more(uint64_t seed, const void *data, size_t bytes)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}
