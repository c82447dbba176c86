/* The products of blocked attention: of a block's rows with a chunk of keys. The library multiplies all rows
 * with all keys of the chunk. Where a block sees few keys, the diagonal is much of it and the library's calls
 * are short; there strips of a few rows, or of a few keys, are multiplied with what they see alone, in
 * registers, and keys are transposed first: once for the blocks of a segment that follow each other in a
 * unit.
 *
 * Invariant: which way is taken depends on the number of keys the block sees, and on whether they are a
 * cache's. */
#include "backend/cpu/attention_blocked.h"

enum {
    STRIP = 8,             /* rows or keys */
    TRANSPOSED_KEYS = 256, /* at most; the pitch spreads rows over the sets of a cache */
    PITCH = TRANSPOSED_KEYS + 16
};

int64_t trd__transposed_floats(const trd__attention_plan *p)
{
    return p->d.cached ? 0 : p->d.size * PITCH;
}

static int64_t smaller(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* Keys of the range, which belong behind those from base on. */
static void transpose(const trd__float_rows *keys, trd__key_range range, int64_t base, int64_t size,
                      float *transposed)
{
    for (int64_t i = 0; i < size; i++)
        for (int64_t s = range.begin; s < range.end; s++)
            transposed[i * PITCH + s - base] = keys->data[s * keys->stride + i];
}

bool trd__attention_transpose(const trd__attention_plan *p, const trd__query_block *block, int64_t unit,
                              trd__float_rows k, trd__float_rows v, trd__transposed_keys *transposed)
{
    int64_t count = block->end - block->begin;
    if (p->d.cached || count <= 0 || count > TRANSPOSED_KEYS) return false;
    if (transposed->unit != unit || transposed->range.begin != block->begin) {
        transposed->unit = unit;
        transposed->range = (trd__key_range){block->begin, block->begin};
    }
    trd__key_range missing = {transposed->range.end, block->end};
    transpose(&k, missing, block->begin, p->d.size, transposed->k);
    if (transposed->v) transpose(&v, missing, block->begin, p->d.size, transposed->v);
    if (block->end > transposed->range.end) transposed->range.end = block->end;
    return true;
}

/* Keys of the block's chunk that rows up to r see. */
static int64_t seen_by(const trd__attention_plan *p, const trd__query_block *block, int64_t r)
{
    return block->keys[r / p->d.group_heads].end - block->begin;
}

void trd__attention_scores(const trd__attention_plan *p, const trd__query_block *block, int64_t count,
                           float alpha, const float *rows, trd__float_rows keys, const float *transposed,
                           float *scores)
{
    int64_t size = p->d.size;
    if (!transposed) {
        trd__sgemm(p->math, false, true, block->rows, count, size, alpha, rows, size, keys.data, keys.stride,
                   0.0f, scores, count);
        return;
    }
    for (int64_t r = 0; r < block->rows; r += STRIP) {
        int64_t m = smaller(STRIP, block->rows - r);
        p->math->product(false, false, m, seen_by(p, block, r + m - 1), size, alpha, rows + r * size, size,
                         transposed, PITCH, 0.0f, scores + r * count, count);
    }
}

void trd__attention_weigh(const trd__attention_plan *p, const trd__query_block *block, int64_t count,
                          float alpha, const float *scores, trd__float_rows values, bool strips, float beta,
                          float *out)
{
    int64_t size = p->d.size;
    if (!strips) {
        trd__sgemm(p->math, false, false, block->rows, size, count, alpha, scores, count, values.data,
                   values.stride, beta, out, size);
        return;
    }
    for (int64_t r = 0; r < block->rows; r += STRIP) {
        int64_t m = smaller(STRIP, block->rows - r);
        p->math->product(false, false, m, size, seen_by(p, block, r + m - 1), alpha, scores + r * count,
                         count, values.data, values.stride, beta, out + r * size, size);
    }
}

void trd__attention_add_sums(const trd__attention_plan *p, const trd__query_block *block, int64_t count,
                             float alpha, const float *scores, const float *rows, bool strips, float *sums)
{
    int64_t size = p->d.size;
    if (!strips) {
        trd__sgemm(p->math, true, false, count, size, block->rows, alpha, scores, count, rows, size, 1.0f,
                   sums, size);
        return;
    }
    int64_t earlier = block->first - block->begin; /* keys that all rows see */
    p->math->product(true, false, earlier, size, block->rows, alpha, scores, count, rows, size, 1.0f, sums,
                     size);
    for (int64_t s = earlier; s < count; s += STRIP) {
        int64_t r = (s - earlier) * p->d.group_heads; /* the first row that sees key s */
        p->math->product(true, false, smaller(STRIP, count - s), size, block->rows - r, alpha,
                         scores + r * count + s, count, rows + r * size, size, 1.0f, sums + s * size, size);
    }
}
