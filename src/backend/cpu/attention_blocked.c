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

/* The least number of parts that leaves the busiest of the workers at most a tenth above its share. */
static int64_t parts_for(const trd__attention_plan *p, int64_t workers)
{
    int64_t groups = p->d.batch * p->d.groups, most = p->items < MAX_PARTS ? p->items : MAX_PARTS;
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
    bool decode = p->heads_as_rows = p->d.cached && p->d.queries == 1;
    p->block_rows = decode ? p->d.group_heads : smaller(p->d.queries, TRD__ATTENTION_ROWS);
    p->blocks = decode ? 1 : (p->d.queries + p->block_rows - 1) / p->block_rows;
    p->items = decode ? 1 : p->blocks * p->d.group_heads;
    p->chunk = smaller(p->d.keys, TRD__ATTENTION_CHUNK);
    p->copies = p->dtype != TRD_F32 || p->items > 1;
    const trd__attention_dims *d = &p->d;
    double scores = (double)d->batch * (double)d->heads * (double)d->queries * (double)d->keys;
    bool small = scores * (double)d->size < SMALL;
    plan->workers = small ? 1 : 0;
    p->parts = small ? 1 : parts_for(p, plan->info->workers);
    plan->state = p;
    return p;
}

trd__query_block trd__attention_block(const trd__attention_plan *p, const trd__cpu_call *call, int64_t batch,
                                      int64_t h, int64_t index, trd__key_range *keys)
{
    const trd__attention_dims *d = &p->d;
    const int32_t *segments = (const int32_t *)call->inputs[3] + batch * d->queries;
    const int32_t *positions = d->cached ? (const int32_t *)call->inputs[4] + batch * d->queries : NULL;
    bool decode = p->heads_as_rows;
    int64_t head = decode ? h * d->group_heads : h, t = index * p->block_rows;
    trd__query_block block = {.batch = batch,
                              .group = head / d->group_heads,
                              .rows = decode ? d->group_heads : smaller(p->block_rows, d->queries - t),
                              .at = ((batch * d->queries + t) * d->heads + head) * d->size,
                              .stride = decode ? d->size : d->heads * d->size,
                              .lse_at = (batch * d->heads + head) * d->queries + t,
                              .keys = keys,
                              .begin = d->keys,
                              .end = 0};
    for (int64_t r = 0; r < block.rows; r++) {
        bool repeats = decode && r > 0;
        bool continues = !decode && !d->cached && r > 0 && segments[t + r] == segments[t + r - 1];
        if (repeats)
            keys[r] = keys[0];
        else if (continues) /* the next key of the same segment, or more padding */
            keys[r] = segments[t + r] ? (trd__key_range){keys[r - 1].begin, t + r + 1} : keys[r - 1];
        else
            keys[r] = trd__attention_keys(d, segments, positions, t + r);
        if (keys[r].begin >= keys[r].end) continue;
        if (keys[r].begin < block.begin) block.begin = keys[r].begin;
        if (keys[r].end > block.end) block.end = keys[r].end;
    }
    return block;
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
    for (int64_t r = 0; r < block->rows; r++) {
        float *row = scratch + r * p->d.size;
        if (block->keys[r].begin < block->keys[r].end)
            trd__row_copy(p->math, p->dtype, data, block->at + r * block->stride, p->d.size, row);
        else
            memset(row, 0, (size_t)p->d.size * sizeof *row);
    }
}

bool trd__attention_owns(const trd__attention_plan *p, int64_t item, int64_t part)
{
    int64_t place = item % p->parts;
    return (item / p->parts % 2 ? p->parts - 1 - place : place) == part;
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
} scratch;

static scratch scratch_layout(const trd__attention_plan *p, void *base, size_t *used)
{
    int64_t rows = p->block_rows, copies = p->copies ? p->d.keys * p->d.size : 0;
    *used = 0;
    return (scratch){.q = trd__scratch_take(base, used, rows * p->d.size),
                     .out = trd__scratch_take(base, used, rows * p->d.size),
                     .k = trd__scratch_take(base, used, copies),
                     .v = trd__scratch_take(base, used, copies),
                     .scores = trd__scratch_take(base, used, rows * p->chunk),
                     .largest = trd__scratch_take(base, used, rows),
                     .sum = trd__scratch_take(base, used, rows),
                     .keys = (trd__key_range *)(void *)trd__scratch_take(
                         base, used, rows * (int64_t)(sizeof(trd__key_range) / sizeof(float)))};
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    trd__attention_plan *p = trd__attention_plan_make(n, plan);
    if (!p) return TRD_NO_MEMORY;
    scratch_layout(p, NULL, &plan->worker_bytes);
    return TRD_OK;
}

/* Scores of a chunk to e^(score - largest), 0 outside the rows' ranges; earlier output rows are rescaled. */
static void softmax_chunk(const trd__attention_plan *p, const scratch *w, const trd__query_block *block,
                          int64_t first, int64_t count)
{
    for (int64_t r = 0; r < block->rows; r++) {
        float *row = w->scores + r * count;
        int64_t begin = block->keys[r].begin - first, end = block->keys[r].end - first;
        begin = begin < 0 ? 0 : smaller(begin, count);
        end = end < begin ? begin : smaller(end, count);
        memset(row, 0, (size_t)begin * sizeof *row);
        memset(row + end, 0, (size_t)(count - end) * sizeof *row);
        if (begin == end) continue;
        float top = p->math->largest(row + begin, end - begin);
        if (top < w->largest[r]) top = w->largest[r];
        float shift = w->largest[r] - top, earlier = shift < -60.0f ? 0.0f : expf(shift);
        if (w->sum[r] > 0.0f && earlier != 1.0f) p->math->scale(w->out + r * p->d.size, earlier, p->d.size);
        w->sum[r] = w->sum[r] * earlier + p->math->exp_in_place(row + begin, top, end - begin);
        w->largest[r] = top;
    }
}

static void run_block(const trd__attention_plan *p, const trd__cpu_call *call, const scratch *w,
                      const trd__query_block *block, trd__float_rows k, trd__float_rows v)
{
    int64_t size = p->d.size;
    float *lse = call->outputs[1];
    trd__attention_read_rows(p, block, call->inputs[0], w->q);
    for (int64_t r = 0; r < block->rows; r++) {
        w->largest[r] = -INFINITY;
        w->sum[r] = 0.0f;
    }
    for (int64_t first = block->begin; first < block->end; first += p->chunk) {
        int64_t count = smaller(p->chunk, block->end - first);
        trd__sgemm(p->math, false, true, block->rows, count, size, (float)p->d.scale, w->q, size,
                   k.data + first * k.stride, k.stride, 0.0f, w->scores, count);
        softmax_chunk(p, w, block, first, count);
        trd__sgemm(p->math, false, false, block->rows, size, count, 1.0f, w->scores, count,
                   v.data + first * v.stride, v.stride, first > block->begin ? 1.0f : 0.0f, w->out, size);
    }
    for (int64_t r = 0; r < block->rows; r++) {
        float *row = w->out + r * size;
        bool sees_keys = block->keys[r].begin < block->keys[r].end;
        if (sees_keys)
            p->math->scale(row, 1.0f / w->sum[r], size);
        else
            memset(row, 0, (size_t)size * sizeof *row);
        if (lse) lse[block->lse_at + r] = sees_keys ? w->largest[r] + logf(w->sum[r]) : 0.0f;
        if (call->outputs[0])
            trd__row_write(p->math, p->dtype, row, call->outputs[0], block->at + r * block->stride, size);
    }
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
        for (int64_t item = 0; item < p->items; item++) {
            if (!trd__attention_owns(p, item, part)) continue;
            int64_t h = p->heads_as_rows ? group : group * d->group_heads + item / p->blocks;
            trd__query_block block = trd__attention_block(p, call, batch, h, item % p->blocks, w.keys);
            run_block(p, call, &w, &block, k, v);
        }
    }
}

const trd__cpu_kernel trd__attention_blocked = {
    .name = "blocked", .refuse = trd__attention_refuse, .plan = plan, .run = run};
