/* The product rate: what this machine reaches on a model's own matrix products, with which a step's rate is
 * compared. Per linear layer of m tokens, n outputs and k inputs it times the forward product, the input's
 * gradient and the weight's gradient by raw calls of the product library, one thread per worker on equal
 * parts (never through gemm.h, which also deals small parts to who is done first), and the same with the
 * library's own OpenMP threads.
 *
 *     rate = total FLOPs / total time, each layer weighted by its count
 *
 * Buffers are as large as the largest layer needs; read the process's memory before creating one. */
#ifndef TRD_BACKEND_CPU_PRODUCT_RATE_H
#define TRD_BACKEND_CPU_PRODUCT_RATE_H

#include "base/status.h"

#include <stdint.h>

typedef struct trd__product {
    int64_t m, n, k;
    int count; /* layers of this shape */
} trd__product;

typedef struct trd__product_rate {
    double partitioned_gflops; /* the product rate */
    double openmp_gflops;
} trd__product_rate;

typedef struct trd__product_bench trd__product_bench;

/* products are copied. */
trd_status trd__product_bench_create(const trd__product *products, int count, int workers,
                                     trd__product_bench **bench);
void trd__product_bench_free(trd__product_bench *bench); /* NULL is fine */
/* Every product of the list once, the partitioned way. */
void trd__product_bench_pass(trd__product_bench *bench);
/* Every product once both ways. */
trd__product_rate trd__product_bench_sample(trd__product_bench *bench);

#endif
