/* Counter-based random numbers: the i-th draw of a stream is a pure function of (seed, stream, i), so any
 * position can be resumed and threads need no shared state. Mixing function: SplitMix64 (Steele, Lea, Flood
 * 2014). */
#ifndef TRD_BASE_RNG_H
#define TRD_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

uint64_t trd__rng_u64(uint64_t seed, uint64_t stream, uint64_t i);
double trd__rng_uniform(uint64_t seed, uint64_t stream, uint64_t i); /* [0, 1), 53 bits */
/* 2 * pairs float32 normals into out: elements 2k and 2k + 1 of the stream for k from first on. Made of
 * additions, products and one division only, so every machine draws the same bits; within 4e-6 of exact. */
void trd__rng_normals(uint64_t seed, uint64_t stream, uint64_t first, size_t pairs, float *out);
uint64_t trd__rng_below(uint64_t seed, uint64_t stream, uint64_t i, uint64_t bound); /* [0, bound) */
/* Fisher-Yates permutation of 0..count-1 into order. */
void trd__rng_permutation(uint64_t seed, uint64_t stream, uint64_t *order, size_t count);
uint64_t trd__rng_stream(const char *name); /* a stream number from a name (FNV-1a) */

/* Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw 2011): additions, rotations and exclusive ors of
 * 32-bit words only, so that a graph of plain ops and vector loops draw the same bits. Round r rotates the
 * second word by rotation r % 8; after every fourth round the next two words of the key's schedule (its words
 * and their parity) and the count of such injections are added. */
enum { TRD__THREEFRY_ROUNDS = 20, TRD__THREEFRY_PARITY = 0x1bd11bda };
#define TRD__THREEFRY_ROTATIONS                                                                              \
    {                                                                                                        \
        13, 15, 26, 6, 17, 29, 16, 24                                                                        \
    }
void trd__threefry(const uint32_t key[2], const uint32_t counter[2], uint32_t out[2]);

#endif
