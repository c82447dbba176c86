/* What the blocked attention kernels share: blocks of query rows, chunks of keys, and their scratch.
 *
 * A block is a run of queries of one segment, for all heads of a group: row r is head r % group_heads at
 * query r / group_heads, which is the order in memory. So the heads of a group share each product with their
 * keys. A block walks the keys any of its queries sees in chunks of TRD__ATTENTION_CHUNK, so that scores stay
 * in cache. Keys outside a query's range get probability 0.
 *
 * Invariant: where blocks begin and end depends on the segments of their own batch row alone.
 */
#ifndef TRD_BACKEND_CPU_ATTENTION_BLOCKED_H
#define TRD_BACKEND_CPU_ATTENTION_BLOCKED_H

#include "backend/cpu/attention.h"
#include "backend/cpu/gemm.h"

enum { TRD__ATTENTION_ROWS = 128, TRD__ATTENTION_QUERIES = 64, TRD__ATTENTION_CHUNK = 512 };

typedef struct trd__attention_plan {
    const trd__row_math *math;
    trd__attention_dims d;
    trd_dtype dtype;
    int64_t block_queries, block_rows, chunk; /* at most */
    int64_t parts; /* a unit of work is one group of heads and one of so many parts of its blocks */
    bool copies;   /* keys and values are copied to contiguous float32 rows */
} trd__attention_plan;

/* Queries [first, first + queries) of a batch row, for the heads of a group. */
typedef struct trd__query_block {
    int64_t batch, group, index; /* index: of the block in its group */
    int64_t first, queries, rows;
    trd__key_range *keys; /* per query */
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

/* The block before the first one of a group; ranges will go to keys (block_queries). */
trd__query_block trd__attention_blocks(int64_t batch, int64_t group, trd__key_range *keys);
/* Moves to the next block that belongs to the part; false behind the last. Blocks, of slowly rising cost, are
 * dealt in a snake: 0 1 1 0 0 1 1 0 ... */
bool trd__attention_next(const trd__attention_plan *p, const trd__cpu_call *call, int64_t part,
                         trd__query_block *block);

/* Element of a q-like operand where the rows of a query's heads begin, one behind the other. */
static inline int64_t trd__attention_rows_at(const trd__attention_dims *d, const trd__query_block *block,
                                             int64_t query)
{
    return ((block->batch * d->queries + block->first + query) * d->heads + block->group * d->group_heads) *
           d->size;
}

/* Element of the log-sum-exp that belongs to row r. */
static inline int64_t trd__attention_lse_at(const trd__attention_dims *d, const trd__query_block *block,
                                            int64_t r)
{
    int64_t head = block->group * d->group_heads + r % d->group_heads;
    return (block->batch * d->heads + head) * d->queries + block->first + r / d->group_heads;
}

/* Keys 0 .. count of a group of a k or v operand: in place, or contiguous in scratch (S, D). */
trd__float_rows trd__attention_read_keys(const trd__attention_plan *p, const void *data, int64_t batch,
                                         int64_t group, int64_t count, float *scratch);
/* The rows of a q-like operand that a block names, contiguous in scratch (block_rows, D). A row that sees no
 * keys reads as 0: its products are summed with those of other rows, and 0 times a NaN would be a NaN. */
void trd__attention_read_rows(const trd__attention_plan *p, const trd__query_block *block, const void *data,
                              float *scratch);
void trd__attention_write_rows(const trd__attention_plan *p, const trd__query_block *block, const float *rows,
                               void *data);

/* The part of a chunk of keys, counted from its first, that query q of the block sees. */
trd__key_range trd__attention_seen(const trd__query_block *block, int64_t q, int64_t first, int64_t count);

/* The next count floats of a scratch area, 64-byte aligned; *used counts bytes. With base NULL it only
 * counts. */
float *trd__scratch_take(void *base, size_t *used, int64_t count);

#endif
