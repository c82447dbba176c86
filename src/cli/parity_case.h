/* A reference case on disk: a tiny Hugging Face checkpoint with batches.json and expected.json beside it. */
#ifndef TRD_CLI_PARITY_CASE_H
#define TRD_CLI_PARITY_CASE_H

#include <treadle/treadle.h>

#include "base/arena.h"
#include "formats/json.h"

typedef struct parity_batch {
    int32_t *tokens;   /* (B, T) */
    int32_t *segments; /* (B, T) */
    float *weights;    /* (B, T) */
    double *logprobs;  /* (B, T), expected */
    double loss_sum, denominator;
} parity_batch;

typedef struct parity_step {
    double loss_sum, denominator, loss, raw_grad_norm;
    trd__json grad_l2; /* absent but in the first step */
} parity_step;

typedef struct parity_run {
    const char *name, *optimizer;
    double learning_rate, clipping, b1, b2, eps, weight_decay;
    int64_t accumulation;
    parity_step *steps;
    int step_count;
    trd__json param_l2, param_sum, delta_l2; /* objects by parameter name */
} parity_run;

typedef struct parity_case {
    trd__arena *arena;
    trd__json_doc *batches_doc, *expected_doc;
    const char *source; /* engine a recorded run comes from; NULL: PyTorch in float64 */
    int rows, length;
    parity_batch *batches;
    int batch_count;
    parity_run *runs;
    int run_count;
} parity_case;

trd_status parity_case_open(const char *folder, parity_case *c);
void parity_case_close(parity_case *c); /* safe on a zeroed case */

#endif
