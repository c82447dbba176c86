/* Dimensions of a matmul node, shared by its kernels. */
#ifndef TRD_BACKEND_CPU_MATMUL_H
#define TRD_BACKEND_CPU_MATMUL_H

#include "backend/cpu/kernel.h"

/* op(x) (batch, m, k) by op(y) (batch or shared, k, n). */
typedef struct trd__matmul_dims {
    int64_t batch, m, n, k;
    bool y_batch; /* y has batch axes too */
    bool small;   /* not worth a second worker */
} trd__matmul_dims;

trd__matmul_dims trd__matmul_dims_of(const trd_node *n);

extern const trd__cpu_kernel trd__matmul_small, trd__matmul_stream, trd__matmul_bf16, trd__matmul_gemm;

#endif
