/* Checksums of bytes (XXH3, 64 bits), for checkpoints, caches and fingerprints. */
#ifndef TRD_BASE_CHECKSUM_H
#define TRD_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t trd__checksum(const void *data, size_t bytes);
/* Folds further bytes into a running checksum: order matters, start from any seed. */
uint64_t trd__checksum_more(uint64_t seed, const void *data, size_t bytes);

#endif
