/* Dimensions of a token_logprobs node, shared by its kernels. */
#ifndef TRD_BACKEND_CPU_TOKEN_LOGPROBS_H
#define TRD_BACKEND_CPU_TOKEN_LOGPROBS_H

#include "backend/cpu/kernel.h"

typedef struct trd__logprobs_dims {
    int64_t rows, channels, vocabulary;
    trd_dtype hidden_dtype, weight_dtype;
    double temperature;
} trd__logprobs_dims;

trd__logprobs_dims trd__logprobs_dims_of(const trd_node *n);
bool trd__logprobs_row_on(const trd__cpu_call *call, int64_t row); /* inside the row mask */

/* Fast variants, in token_logprobs_blocks*.c. */
extern const trd__cpu_kernel trd__token_logprobs_blocks, trd__token_logprobs_grad_blocks;

#endif
