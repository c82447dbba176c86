/* Dimensions and visible keys of an attention node, shared by its kernels.
 *
 * Invariant: the keys a query sees are one run [begin, end): segments are contiguous, and a cache is read
 * from its start to the query's position. A query of segment 0 sees none: output, log-sum-exp and gradient
 * are 0. */
#ifndef TRD_BACKEND_CPU_ATTENTION_H
#define TRD_BACKEND_CPU_ATTENTION_H

#include "backend/cpu/kernel.h"

typedef struct trd__attention_dims {
    int64_t batch, queries, heads, size; /* q (B, T, H, D) */
    int64_t keys, groups;                /* k, v (B, S, G, D) */
    int64_t group_heads;                 /* heads per group, H / G */
    double scale;
    bool cached;
} trd__attention_dims;

typedef struct trd__key_range {
    int64_t begin, end;
} trd__key_range;

trd__attention_dims trd__attention_dims_of(const trd_node *n);

/* Keys seen by query t, given row b's segments (T) and positions (T; read only when cached). */
trd__key_range trd__attention_keys(const trd__attention_dims *d, const int32_t *segments,
                                   const int32_t *positions, int64_t t);

/* Fast variants, in attention_few.c, and in attention_blocked*.c and attention_products.c. */
extern const trd__cpu_kernel trd__attention_few, trd__attention_grad_few;
extern const trd__cpu_kernel trd__attention_blocked, trd__attention_grad_blocked;

#endif
