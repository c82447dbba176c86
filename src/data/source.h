/* Rows of tokens by sample number: reads a sample's line again from its file, tokenizes it and lays samples
 * side by side. Invariant: what is laid out is what the index promised, else an error (a file changed
 * meanwhile). */
#ifndef TRD_DATA_SOURCE_H
#define TRD_DATA_SOURCE_H

#include "data/index.h"

typedef struct trd__source {
    const trd_data_options *options; /* the loader's copy */
    trd__index index;
    int *files; /* [file_count] descriptors, -1: not open */
    trd__sample sample;
    char *line;
    size_t line_capacity;
    int32_t padding_id;
} trd__source;

/* source must be zeroed or made by open; close is safe on both. One thread at a time. */
trd_status trd__source_open(const trd_data_options *options, trd__source *source);
void trd__source_close(trd__source *source);

/* Fills one row of options->length tokens: segments numbered from 1, padding after them (segment 0, weight
 * 0). A segment's first token has weight 0. */
trd_status trd__source_row(trd__source *source, const uint64_t *samples, size_t count, int32_t *token_ids,
                           int32_t *segment_ids, float *loss_weights);

#endif
