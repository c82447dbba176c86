/* What the blocked log-probability kernels share: blocks of rows that are on, tiles of the vocabulary, and
 * the running softmax statistics of a row.
 *
 * Invariant: forward and gradient cut the vocabulary alike and form logits with stable rows (gemm.h), so a
 * row's log-probability has the same bits in both, whatever other rows are on. */
#ifndef TRD_BACKEND_CPU_TOKEN_LOGPROBS_BLOCKS_H
#define TRD_BACKEND_CPU_TOKEN_LOGPROBS_BLOCKS_H

#include "backend/cpu/gemm.h"
#include "backend/cpu/token_logprobs.h"

/* Rows of a block: whole calls of the library. */
enum { TRD__LOGPROBS_ROWS = 3 * TRD__GEMM_STABLE_ROWS, TRD__LOGPROBS_TILE = 1024 };

/* Softmax statistics of a row over the part of the vocabulary seen so far. */
typedef struct trd__row_stat {
    double sum; /* of e^(logit - largest) */
    float largest;
    int32_t pad_;
} trd__row_stat;

typedef struct trd__logprobs_plan {
    const trd__row_math *math;
    trd__logprobs_dims d;
    int64_t block_rows;                   /* capacity of a block, padding included */
    int64_t blocks;                       /* with every row on */
    int64_t tile;                         /* columns of the vocabulary at a time */
    trd__deal deal;                       /* of the vocabulary */
    trd__gemm logits, d_weight, d_hidden; /* of one tile and a full block */
    size_t gemm_bytes;
} trd__logprobs_plan;

const char *trd__logprobs_refuse(const trd_node *n, const trd__cpu_info *info);
/* NULL when out of memory. Sets plan->workers and plan->state. */
trd__logprobs_plan *trd__logprobs_plan_make(const trd_node *n, trd__cpu_plan *plan);

/* Indices of the rows that are on, into list (rows); returns their number. */
int64_t trd__logprobs_list(const trd__logprobs_plan *p, const trd__cpu_call *call, int32_t *list);
/* Number of rows in block `block` of a list of `count`. */
int64_t trd__logprobs_block_count(int64_t count, int64_t block);
/* Hidden rows of the list as float32 (padded rows, C), rows beyond count zero. */
void trd__logprobs_gather(const trd__logprobs_plan *p, const trd__cpu_call *call, const int32_t *list,
                          int64_t count, float *hidden);
/* Logits of a block's rows by `columns` of the vocabulary from `first` on: (padded rows, columns). */
void trd__logprobs_tile(const trd__logprobs_plan *p, const trd__cpu_call *call, const float *hidden,
                        int64_t count, int64_t first, int64_t columns, float *logits, void *scratch);
/* Folds a tile into the rows' statistics; a row whose target lies in it has target[row] set. */
void trd__logprobs_fold(const trd__logprobs_plan *p, const trd__cpu_call *call, const int32_t *list,
                        int64_t count, int64_t first, int64_t columns, const float *logits,
                        trd__row_stat *stats, float *target);
void trd__logprobs_reset(trd__row_stat *stats, int64_t count);
/* A row's statistics over the whole vocabulary, from those of all parts of it, which lie `stride` apart. */
trd__row_stat trd__logprobs_total(const trd__row_stat *stats, int64_t stride, int parts);
/* From a row's total: its log-sum-exp, and the log-probability of the token with logit `target`. Logits may
 * be large where their difference, which is what counts, is not: so the largest is taken off first. */
float trd__logprobs_log_sum(const trd__row_stat *total);
float trd__logprobs_value(const trd__row_stat *total, float target);

#endif
