/* Blocked attention, forward (Dao et al. 2022): per block of query rows the scores of a chunk of keys, a
 * softmax that is rescaled when a later chunk holds a larger score, and the product with the values. Every
 * output row is written by one worker and does not depend on which. */
#include "backend/cpu/attention_blocked.h"

#include <math.h>

enum {
    SMALL = 1 << 18, /* multiply-adds below which a second worker does not pay */
    MAX_PARTS = 16
};

const char *trd__attention_refuse(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    return trd__is_f32_or_bf16(trd__type_of(n->inputs[0])->dtype) ? NULL : "only float32 and bfloat16";
}

static int64_t smaller(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* The least number of parts of a group's blocks that leaves the busiest of the workers at most a tenth above
 * its share, of rows that are one segment. */
static int64_t parts_for(const trd__attention_plan *p, int64_t workers)
{
    int64_t groups = p->d.batch * p->d.groups;
    int64_t most = smaller((p->d.queries + p->block_queries - 1) / p->block_queries, MAX_PARTS);
    for (int64_t parts = 1; parts < most; parts++) {
        int64_t units = groups * parts, busiest = (units + workers - 1) / workers;
        if (busiest * workers * 10 <= units * 11) return parts;
    }
    return most;
}

trd__attention_plan *trd__attention_plan_make(const trd_node *n, trd__cpu_plan *plan)
{
    trd__attention_plan *p = trd__arena_alloc(plan->arena, 1, sizeof *p);
    if (!p) return NULL;
    p->math = trd__row_math_for(plan->info->isa);
    p->d = trd__attention_dims_of(n);
    p->dtype = trd__type_of(n->inputs[0])->dtype;
    const trd__attention_dims *d = &p->d;
    int64_t queries = smaller(TRD__ATTENTION_ROWS / d->group_heads, TRD__ATTENTION_QUERIES);
    if (queries > 16) queries -= queries % 16;
    p->block_queries = smaller(queries > 0 ? queries : 1, d->queries);
    p->block_rows = p->block_queries * d->group_heads;
    p->chunk = smaller(d->keys, TRD__ATTENTION_CHUNK);
    p->copies = p->dtype != TRD_F32 || d->queries > p->block_queries;
    double scores = (double)d->batch * (double)d->heads * (double)d->queries * (double)d->keys;
    bool small = scores * (double)d->size < SMALL;
    plan->workers = small ? 1 : 0;
    p->parts = small ? 1 : parts_for(p, plan->info->workers);
    plan->state = p;
    return p;
}

trd__query_block trd__attention_blocks(int64_t batch, int64_t group, trd__key_range *keys)
{
    return (trd__query_block){.batch = batch, .group = group, .index = -1, .keys = keys};
}

static bool owns(const trd__attention_plan *p, int64_t index, int64_t part)
{
    int64_t place = index % p->parts;
    return (index / p->parts % 2 ? p->parts - 1 - place : place) == part;
}

bool trd__attention_next(const trd__attention_plan *p, const trd__cpu_call *call, int64_t part,
                         trd__query_block *block)
{
    const trd__attention_dims *d = &p->d;
    const int32_t *segments = (const int32_t *)call->inputs[3] + block->batch * d->queries;
    do {
        block->first += block->queries;
        if (block->first >= d->queries) return false;
        block->index++;
        int64_t most = smaller(p->block_queries, d->queries - block->first);
        const int32_t *own = segments + block->first;
        for (block->queries = 1; block->queries < most && own[block->queries] == own[0];) block->queries++;
    } while (!owns(p, block->index, part));
    const int32_t *positions =
        d->cached ? (const int32_t *)call->inputs[4] + block->batch * d->queries : NULL;
    block->rows = block->queries * d->group_heads;
    block->begin = d->keys;
    block->end = 0;
    for (int64_t q = 0; q < block->queries; q++) {
        trd__key_range *seen = &block->keys[q];
        if (d->cached || q == 0)
            *seen = trd__attention_keys(d, segments, positions, block->first + q);
        else /* the next key of the same segment, or more padding */
            *seen = (trd__key_range){seen[-1].begin, seen[-1].end + (segments[block->first] != 0)};
        if (seen->begin >= seen->end) continue;
        block->begin = smaller(block->begin, seen->begin);
        if (seen->end > block->end) block->end = seen->end;
    }
    return true;
}

trd__key_range trd__attention_seen(const trd__query_block *block, int64_t q, int64_t first, int64_t count)
{
    int64_t begin = block->keys[q].begin - first, end = block->keys[q].end - first;
    begin = begin < 0 ? 0 : smaller(begin, count);
    return (trd__key_range){begin, end < begin ? begin : smaller(end, count)};
}

trd__float_rows trd__attention_read_keys(const trd__attention_plan *p, const void *data, int64_t batch,
                                         int64_t group, int64_t count, float *scratch)
{
    const trd__attention_dims *d = &p->d;
    int64_t stride = d->groups * d->size, at = batch * d->keys * stride + group * d->size;
    if (!p->copies) return (trd__float_rows){(const float *)data + at, stride};
    for (int64_t s = 0; s < count; s++)
        trd__row_copy(p->math, p->dtype, data, at + s * stride, d->size, scratch + s * d->size);
    return (trd__float_rows){scratch, d->size};
}

void trd__attention_read_rows(const trd__attention_plan *p, const trd__query_block *block, const void *data,
                              float *scratch)
{
    int64_t floats = p->d.group_heads * p->d.size;
    for (int64_t q = 0; q < block->queries; q++, scratch += floats) {
        if (block->keys[q].begin < block->keys[q].end)
            trd__row_copy(p->math, p->dtype, data, trd__attention_row_at(&p->d, block, q * p->d.group_heads),
                          floats, scratch);
        else
            memset(scratch, 0, (size_t)floats * sizeof *scratch);
    }
}

void trd__attention_write_rows(const trd__attention_plan *p, const trd__query_block *block, const float *rows,
                               void *data)
{
    int64_t floats = p->d.group_heads * p->d.size;
    for (int64_t q = 0; q < block->queries; q++)
        trd__row_write(p->math, p->dtype, rows + q * floats, data,
                       trd__attention_row_at(&p->d, block, q * p->d.group_heads), floats);
}

float *trd__scratch_take(void *base, size_t *used, int64_t count)
{
    float *at = base ? (float *)((unsigned char *)base + *used) : NULL;
    *used += ((size_t)count * sizeof(float) + 63) / 64 * 64;
    return at;
}

typedef struct scratch {
    float *q, *out;       /* (rows, D) */
    float *k, *v;         /* (S, D), with copies */
    float *scores;        /* (rows, chunk) */
    float *largest, *sum; /* per row: of the scores so far, of e^(score - largest) */
    trd__key_range *keys;
    trd__transposed_keys transposed;
} scratch;

static scratch scratch_layout(const trd__attention_plan *p, void *base, size_t *used)
{
    int64_t rows = p->block_rows, copies = p->copies ? p->d.keys * p->d.size : 0;
    *used = 0;
    return (scratch){
        .q = trd__scratch_take(base, used, rows * p->d.size),
        .out = trd__scratch_take(base, used, rows * p->d.size),
        .k = trd__scratch_take(base, used, copies),
        .v = trd__scratch_take(base, used, copies),
        .scores = trd__scratch_take(base, used, rows * p->chunk),
        .largest = trd__scratch_take(base, used, rows),
        .sum = trd__scratch_take(base, used, rows),
        .transposed = {.unit = -1, .k = trd__scratch_take(base, used, trd__transposed_floats(p))},
        .keys = (trd__key_range *)(void *)trd__scratch_take(
            base, used, p->block_queries * (int64_t)(sizeof(trd__key_range) / sizeof(float)))};
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    trd__attention_plan *p = trd__attention_plan_make(n, plan);
    if (!p) return TRD_NO_MEMORY;
    scratch_layout(p, NULL, &plan->worker_bytes);
    return TRD_OK;
}

/* Scores of a chunk to e^(score - largest), 0 outside the rows' ranges; earlier output rows are rescaled. */
static void softmax_chunk(const trd__attention_plan *p, const trd__cpu_call *call, const scratch *w,
                          const trd__query_block *block, int64_t first, int64_t count)
{
    for (int64_t r = 0; r < block->rows; r++) {
        if (first + count == block->end) trd__attention_prefetch(p, block, call->outputs[0], r);
        float *row = w->scores + r * count;
        trd__key_range seen = trd__attention_seen(block, r / p->d.group_heads, first, count);
        int64_t length = seen.end - seen.begin;
        memset(row, 0, (size_t)seen.begin * sizeof *row);
        memset(row + seen.end, 0, (size_t)(count - seen.end) * sizeof *row);
        if (length == 0) continue;
        float top = p->math->largest(row + seen.begin, length);
        if (top < w->largest[r]) top = w->largest[r];
        float shift = w->largest[r] - top, earlier = shift < -60.0f ? 0.0f : expf(shift);
        if (w->sum[r] > 0.0f && earlier != 1.0f) p->math->scale(w->out + r * p->d.size, earlier, p->d.size);
        w->sum[r] = w->sum[r] * earlier + p->math->exp_in_place(row + seen.begin, top, length);
        w->largest[r] = top;
    }
}

static void run_block(const trd__attention_plan *p, const trd__cpu_call *call, scratch *w,
                      const trd__query_block *block, int64_t unit, trd__float_rows k, trd__float_rows v)
{
    int64_t size = p->d.size;
    float *lse = call->outputs[1];
    trd__attention_read_rows(p, block, call->inputs[0], w->q);
    for (int64_t r = 0; r < block->rows; r++) {
        w->largest[r] = -INFINITY;
        w->sum[r] = 0.0f;
    }
    bool strips = trd__attention_transpose(p, block, unit, k, v, &w->transposed);
    for (int64_t first = block->begin; first < block->end; first += p->chunk) {
        int64_t count = smaller(p->chunk, block->end - first);
        trd__attention_scores(p, block, count, (float)p->d.scale, w->q, trd__rows_from(k, first),
                              strips ? w->transposed.k : NULL, w->scores);
        softmax_chunk(p, call, w, block, first, count);
        trd__attention_weigh(p, block, count, 1.0f, w->scores, trd__rows_from(v, first), strips,
                             first > block->begin ? 1.0f : 0.0f, w->out);
    }
    for (int64_t r = 0; r < block->rows; r++) {
        float *row = w->out + r * size;
        const trd__key_range *seen = &block->keys[r / p->d.group_heads];
        bool sees_keys = seen->begin < seen->end;
        if (sees_keys)
            p->math->scale(row, 1.0f / w->sum[r], size);
        else
            memset(row, 0, (size_t)size * sizeof *row);
        if (lse)
            lse[trd__attention_lse_at(&p->d, block, r)] = sees_keys ? w->largest[r] + logf(w->sum[r]) : 0.0f;
    }
    if (call->outputs[0]) trd__attention_write_rows(p, block, w->out, call->outputs[0]);
}

/* Keys that some query of a batch row may see: all of them, or those up to the last position of a cache. */
static int64_t keys_in_use(const trd__attention_dims *d, const trd__cpu_call *call, int64_t batch)
{
    if (!d->cached) return d->keys;
    const int32_t *positions = (const int32_t *)call->inputs[4] + batch * d->queries;
    int64_t end = 0;
    for (int64_t t = 0; t < d->queries; t++)
        if (positions[t] + 1 > end) end = positions[t] + 1;
    return smaller(end, d->keys);
}

static void run(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__attention_plan *p = call->state;
    const trd__attention_dims *d = &p->d;
    size_t used;
    scratch w = scratch_layout(p, call->worker_scratch, &used);
    int64_t begin, end, held = -1;
    trd__float_rows k = {0}, v = {0};
    trd__partition(call->worker, call->workers, d->batch * d->groups * p->parts, 1, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t part = unit % p->parts, group = unit / p->parts % d->groups,
                batch = unit / p->parts / d->groups;
        if (unit / p->parts != held) {
            int64_t count = keys_in_use(d, call, batch);
            k = trd__attention_read_keys(p, call->inputs[1], batch, group, count, w.k);
            v = trd__attention_read_keys(p, call->inputs[2], batch, group, count, w.v);
            held = unit / p->parts;
        }
        trd__query_block block = trd__attention_blocks(batch, group, w.keys);
        while (trd__attention_next(p, call, part, &block))
            run_block(p, call, &w, &block, unit / p->parts, k, v);
    }
}

const trd__cpu_kernel trd__attention_blocked = {
    .name = "blocked", .refuse = trd__attention_refuse, .plan = plan, .run = run};
