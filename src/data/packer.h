/* Which samples share a row, decided from token counts alone, so that any position can be found again without
 * reading or tokenizing a file.
 *
 * Samples come epoch by epoch, each epoch permuted by (seed, epoch). The packer sees a window of the next
 * samples: a row starts with the oldest one and takes, as long as one fits, the longest that fits (the oldest
 * of equals). The row that takes an epoch's last sample is filled from the next epoch; no other row holds two
 * epochs. Invariant: the rows are a pure function of the options, and every sample is in exactly one row per
 * epoch. */
#ifndef TRD_DATA_PACKER_H
#define TRD_DATA_PACKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct trd__packer_options {
    const uint32_t *lengths; /* tokens of each sample, 1 to row_length; the caller's, outlives the packer */
    size_t count;
    uint32_t row_length;
    bool packing; /* false: one sample a row */
    uint32_t window;
    bool shuffle;
    uint64_t seed;
    uint64_t epochs; /* 0: without end */
} trd__packer_options;

typedef struct trd__packer trd__packer;

trd_status trd__packer_create(const trd__packer_options *options, trd__packer **packer);
void trd__packer_free(trd__packer *packer); /* NULL is fine */

/* The next row's samples in row order, valid until the next call. TRD_END (message untouched) after the last.
 */
trd_status trd__packer_next(trd__packer *packer, const uint64_t **samples, size_t *count);

/* Goes to a row: the next call gives row number position. TRD_INVALID_ARGUMENT beyond the last row. */
trd_status trd__packer_seek(trd__packer *packer, uint64_t position);

/* Rows that the first epoch fills when nothing follows it. */
trd_status trd__packer_rows_per_epoch(const trd__packer_options *options, uint64_t *rows);

#endif
