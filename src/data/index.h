/* Where the samples of the files lie and how many tokens each gives: what packing and seeking need, without
 * keeping text or tokens. Built by tokenizing every line once (in parallel, the result does not depend on the
 * number of threads) or read from the cache. Invariant: samples are in file and line order, each with 1 to
 * row_length tokens of which at least one carries loss. */
#ifndef TRD_DATA_INDEX_H
#define TRD_DATA_INDEX_H

#include <treadle/data.h>

#include "data/sample.h"

typedef struct trd__sample_ref {
    uint64_t offset; /* of the line in its file */
    uint64_t line;   /* from 1 */
    uint32_t bytes;
    uint32_t file;
} trd__sample_ref;

typedef struct trd__index {
    size_t count;
    trd__sample_ref *refs; /* [count] */
    uint32_t *lengths;     /* [count] tokens after truncation */
    trd_data_stats stats;  /* all but rows_per_epoch */
} trd__index;

/* From the cache if it has these files and options, else by reading them (then written to the cache). */
trd_status trd__index_open(const trd_data_options *options, trd__index *index);
void trd__index_free(trd__index *index);

trd__sample_options trd__sample_options_of(const trd_data_options *options);

/* "FILE line N" for messages. */
enum { TRD__LINE_NAME_BYTES = 512 };
void trd__line_name(const trd_data_options *options, const trd__sample_ref *ref, char *name);

#endif
