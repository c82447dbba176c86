/* Choosing the next token from one row of logits, on the host. */
#ifndef TRD_GENERATE_SAMPLE_H
#define TRD_GENERATE_SAMPLE_H

#include <treadle/generate.h>

enum { TRD__CANDIDATE_BYTES = 16 }; /* of scratch per token of the vocabulary */

trd_status trd__sampling_check(const trd_sampling *sampling);

/* Token number `at` of prompt `stream`: scratch has vocab * TRD__CANDIDATE_BYTES bytes, aligned to 16.
 * TRD_INTERNAL when a logit is not a number or the largest is infinite. */
trd_status trd__sample(const trd_sampling *sampling, const float *logits, int64_t vocab, uint64_t stream,
                       uint64_t at, void *scratch, int32_t *token);

#endif
