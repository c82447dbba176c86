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

static inline trd__float_rows trd__rows_from(trd__float_rows rows, int64_t first)
{
    return (trd__float_rows){rows.data + first * rows.stride, rows.stride};
}

const char *trd__attention_refuse(const trd_node *n, const trd__cpu_info *info);
/* NULL when out of memory. Sets plan->state and plan->workers. */
trd__attention_plan *trd__attention_plan_make(const trd_node *n, trd__cpu_plan *plan);

/* The block before the first one of a group; ranges will go to keys (block_queries). */
trd__query_block trd__attention_blocks(int64_t batch, int64_t group, trd__key_range *keys);
/* Moves to the next block that belongs to the part; false behind the last. Blocks,
 * whose cost rises slowly within a segment, are dealt in a snake: 0 1 1 0 0 1 1 0 ... */
bool trd__attention_next(const trd__attention_plan *p, const trd__cpu_call *call, int64_t part,
                         trd__query_block *block);

/* Element of a q-like operand where row r begins; the rows of a query are one behind the other. */
static inline int64_t trd__attention_row_at(const trd__attention_dims *d, const trd__query_block *block,
                                            int64_t r)
{
    int64_t query = block->batch * d->queries + block->first + r / d->group_heads;
    return (query * d->heads + block->group * d->group_heads + r % d->group_heads) * d->size;
}

/* Asks for the memory of row r of a q-like result, which is written when the block is done. */
static inline void trd__attention_prefetch(const trd__attention_plan *p, const trd__query_block *block,
                                           const void *data, int64_t r)
{
    size_t bytes = trd_dtype_bytes(p->dtype), at = (size_t)trd__attention_row_at(&p->d, block, r) * bytes;
    if (data) trd__prefetch((const char *)data + at, (size_t)p->d.size * bytes);
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

/* -- Products (attention_products.c) -- */

/* The first keys of a segment, transposed: element i of key range.begin + s is at i * pitch + s. */
typedef struct trd__transposed_keys {
    int64_t unit; /* they belong to; -1 at first */
    trd__key_range range;
    float *k, *v; /* v may be NULL */
} trd__transposed_keys;

/* Floats of transposed->k, and of v. */
int64_t trd__transposed_floats(const trd__attention_plan *p);
/* Makes transposed hold the keys (and values) the block walks; false where there are too many for strips. k
 * and v are those of the unit, from key 0 on. */
bool trd__attention_transpose(const trd__attention_plan *p, const trd__query_block *block, int64_t unit,
                              trd__float_rows k, trd__float_rows v, trd__transposed_keys *transposed);

/* scores (rows, count) = alpha rows (rows, D) keys^T. transposed: the same keys, of a block that goes by
 * strips, whose rows get the scores they see and undefined ones behind; else NULL. */
void trd__attention_scores(const trd__attention_plan *p, const trd__query_block *block, int64_t count,
                           float alpha, const float *rows, trd__float_rows keys, const float *transposed,
                           float *scores);
/* out (rows, D) = alpha scores (rows, count) values (count, D) + beta out. */
void trd__attention_weigh(const trd__attention_plan *p, const trd__query_block *block, int64_t count,
                          float alpha, const float *scores, trd__float_rows values, bool strips, float beta,
                          float *out);
/* sums (count, D) += alpha scores^T rows (rows, D). */
void trd__attention_add_sums(const trd__attention_plan *p, const trd__query_block *block, int64_t count,
                             float alpha, const float *scores, const float *rows, bool strips, float *sums);

/* The next count floats of a scratch area, 64-byte aligned; *used counts bytes. With base NULL it only
 * counts. */
float *trd__scratch_take(void *base, size_t *used, int64_t count);

#endif
