/* What the blocked attention kernels share: blocks of query rows, chunks of keys, and their scratch.
 *
 * A block is up to TRD__ATTENTION_ROWS query rows of one head; it walks the keys any of its rows sees in
 * chunks of TRD__ATTENTION_CHUNK, so that scores stay in cache. Keys outside a row's range get probability 0.
 */
#ifndef TRD_BACKEND_CPU_ATTENTION_BLOCKED_H
#define TRD_BACKEND_CPU_ATTENTION_BLOCKED_H

#include "backend/cpu/attention.h"
#include "backend/cpu/gemm.h"

enum { TRD__ATTENTION_ROWS = 64, TRD__ATTENTION_CHUNK = 512 };

typedef struct trd__attention_plan {
    const trd__row_math *math;
    trd__attention_dims d;
    trd_dtype dtype;
    int64_t block_rows, chunk; /* at most */
    int64_t blocks;            /* of rows per head */
    int64_t items;             /* blocks of all heads of a group */
    int64_t parts;      /* a unit of work is one group of heads and one of so many parts of its items */
    bool copies;        /* keys and values are copied to contiguous float32 rows */
    bool heads_as_rows; /* decoding one token a time: the rows of a block are the heads of a group */
} trd__attention_plan;

/* Query rows: elements `at`, `at + stride`, ... of q; their log-sum-exp are `lse_at`, `lse_at + 1`, ... */
typedef struct trd__query_block {
    int64_t batch, group, rows, at, stride, lse_at;
    trd__key_range *keys; /* per row */
    int64_t begin, end;   /* all of them */
} trd__query_block;

/* Float32 rows of an operand: pointer and distance between rows. */
typedef struct trd__float_rows {
    const float *data;
    int64_t stride;
} trd__float_rows;

const char *trd__attention_refuse(const trd_node *n, const trd__cpu_info *info);
/* NULL when out of memory. Sets plan->state and plan->workers. */
trd__attention_plan *trd__attention_plan_make(const trd_node *n, trd__cpu_plan *plan);

/* Block `index` of head h (of group h with heads_as_rows): ranges go to keys (block_rows). */
trd__query_block trd__attention_block(const trd__attention_plan *p, const trd__cpu_call *call, int64_t batch,
                                      int64_t h, int64_t index, trd__key_range *keys);

/* Keys 0 .. count of a group of a k or v operand: in place, or contiguous in scratch (S, D). */
trd__float_rows trd__attention_read_keys(const trd__attention_plan *p, const void *data, int64_t batch,
                                         int64_t group, int64_t count, float *scratch);
/* The rows of a q-like operand that a block names, contiguous in scratch (block_rows, D). A row that sees no
 * keys reads as 0: its products are summed with those of other rows, and 0 times a NaN would be a NaN. */
void trd__attention_read_rows(const trd__attention_plan *p, const trd__query_block *block, const void *data,
                              float *scratch);

/* Whether item i of a group (its heads' blocks in order) belongs to the part: items of slowly rising cost are
 * dealt in a snake, 0 1 1 0 0 1 1 0 ... */
bool trd__attention_owns(const trd__attention_plan *p, int64_t item, int64_t part);

/* The next count floats of a scratch area, 64-byte aligned; *used counts bytes. With base NULL it only
 * counts. */
float *trd__scratch_take(void *base, size_t *used, int64_t count);

#endif
