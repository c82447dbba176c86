/* Blocked attention, gradient (Dao et al. 2022): probabilities are formed again from the saved log-sum-exp.
 * The softmax's gradient is p (dp - delta), delta the mean of dp under p, which also is dy . output. In
 * float32 it is taken from the output, so that keys can be walked in chunks. An output rounded to bfloat16
 * would drown the small gradients of a saturated softmax; there all keys of a block make one chunk and delta
 * is the mean itself.
 *
 * Invariant: a unit of work owns float32 copies of one group's dk and dv, so nothing is summed by two workers
 * at once. Where there are too few groups to keep the workers equally busy, several units share a group by
 * taking turns at its query blocks, and phase 1 adds their copies in a fixed order. */
#include "backend/cpu/attention_blocked.h"

enum { ROW_GRAIN = 16 };

typedef struct scratch {
    float *q, *dy, *dq; /* (rows, D) */
    float *k, *v;       /* (S, D), with copies */
    float *scores, *dp; /* (rows, chunk) */
    float *delta;       /* per row */
    float *dk, *dv;     /* (S, D) */
    trd__key_range *keys;
    trd__transposed_keys transposed;
} scratch;

static scratch scratch_layout(const trd__attention_plan *p, void *base, size_t *used)
{
    int64_t size = p->d.size, rows = p->block_rows, all = p->d.keys * size;
    int64_t copies = p->copies ? all : 0, own = p->parts == 1 ? all : 0;
    *used = 0;
    return (scratch){.q = trd__scratch_take(base, used, rows * size),
                     .dy = trd__scratch_take(base, used, rows * size),
                     .dq = trd__scratch_take(base, used, rows * size),
                     .k = trd__scratch_take(base, used, copies),
                     .v = trd__scratch_take(base, used, copies),
                     .scores = trd__scratch_take(base, used, rows * p->chunk),
                     .dp = trd__scratch_take(base, used, rows * p->chunk),
                     .delta = trd__scratch_take(base, used, rows),
                     .dk = trd__scratch_take(base, used, own),
                     .dv = trd__scratch_take(base, used, own),
                     .transposed = {.unit = -1,
                                    .k = trd__scratch_take(base, used, trd__transposed_floats(p)),
                                    .v = trd__scratch_take(base, used, trd__transposed_floats(p))},
                     .keys = (trd__key_range *)(void *)trd__scratch_take(
                         base, used, p->block_queries * (int64_t)(sizeof(trd__key_range) / sizeof(float)))};
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    trd__attention_plan *p = trd__attention_plan_make(n, plan);
    if (!p) return TRD_NO_MEMORY;
    const trd__attention_dims *d = &p->d;
    if (p->dtype != TRD_F32) p->chunk = d->keys;
    scratch_layout(p, NULL, &plan->worker_bytes);
    if (p->parts > 1) {
        plan->phases = 2;
        plan->shared_bytes =
            (size_t)(d->batch * d->groups * p->parts * 2 * d->keys * d->size) * sizeof(float);
    }
    return TRD_OK;
}

/* Zeroes both rows outside the range that row r sees in the chunk, and turns the inside into p and ds. delta
 * NULL: the chunk holds all the row sees. */
static void gradient_chunk(const trd__attention_plan *p, const trd__cpu_call *call, const scratch *w,
                           const trd__query_block *block, const float *delta, int64_t first, int64_t count)
{
    const float *lse = call->inputs[5];
    for (int64_t r = 0; r < block->rows; r++) {
        int64_t q = r / p->d.group_heads;
        if (first + count == block->end) trd__attention_prefetch(p, block, call->outputs[0], r);
        trd__key_range seen = trd__attention_seen(block, q, first, count);
        float *row = w->scores + r * count, *dp = w->dp + r * count;
        int64_t begin = seen.begin, length = seen.end - begin;
        memset(row, 0, (size_t)begin * sizeof *row);
        memset(dp, 0, (size_t)begin * sizeof *dp);
        memset(row + seen.end, 0, (size_t)(count - seen.end) * sizeof *row);
        memset(dp + seen.end, 0, (size_t)(count - seen.end) * sizeof *dp);
        float sum = p->math->exp_in_place(row + begin, lse[trd__attention_lse_at(&p->d, block, r)], length);
        float mean = delta        ? delta[r]
                     : sum > 0.0f ? p->math->dot(row + begin, dp + begin, length) / sum
                                  : 0.0f;
        p->math->attention_gradient(row + begin, dp + begin, mean, length);
        /* A softmax over one key is constant: Adam would turn its rounding noise into movement. */
        if (length > 0 && block->keys[q].end - block->keys[q].begin == 1) dp[begin] = 0;
    }
}

/* delta = dy . output per row, float32. */
static void row_deltas(const trd__attention_plan *p, const trd__cpu_call *call, const scratch *w,
                       const trd__query_block *block)
{
    const float *output = call->inputs[4];
    for (int64_t r = 0; r < block->rows; r++)
        w->delta[r] =
            p->math->dot(w->dy + r * p->d.size, output + trd__attention_row_at(&p->d, block, r), p->d.size);
}

static void run_block(const trd__attention_plan *p, const trd__cpu_call *call, scratch *w,
                      const trd__query_block *block, int64_t unit, trd__float_rows k, trd__float_rows v)
{
    float scale = (float)p->d.scale;
    int64_t size = p->d.size, rows = block->rows;
    trd__attention_read_rows(p, block, call->inputs[0], w->q);
    trd__attention_read_rows(p, block, call->inputs[6], w->dy);
    bool exact_output = p->dtype == TRD_F32;
    if (exact_output) row_deltas(p, call, w, block);
    if (block->begin >= block->end) memset(w->dq, 0, (size_t)(rows * size) * sizeof *w->dq);
    bool strips = trd__attention_transpose(p, block, unit, k, v, &w->transposed);
    for (int64_t first = block->begin; first < block->end; first += p->chunk) {
        int64_t count = block->end - first < p->chunk ? block->end - first : p->chunk;
        trd__float_rows keys = trd__rows_from(k, first), values = trd__rows_from(v, first);
        float *dk = w->dk + first * size, *dv = w->dv + first * size;
        trd__attention_scores(p, block, count, scale, w->q, keys, strips ? w->transposed.k : NULL, w->scores);
        trd__attention_scores(p, block, count, 1.0f, w->dy, values, strips ? w->transposed.v : NULL, w->dp);
        gradient_chunk(p, call, w, block, exact_output ? w->delta : NULL, first, count);
        trd__attention_add_sums(p, block, count, 1.0f, w->scores, w->dy, strips, dv);
        trd__attention_add_sums(p, block, count, scale, w->dp, w->q, strips, dk);
        trd__attention_weigh(p, block, count, scale, w->dp, keys, strips, first > block->begin ? 1.0f : 0.0f,
                             w->dq);
    }
    if (call->outputs[0]) trd__attention_write_rows(p, block, w->dq, call->outputs[0]);
}

/* Row s of group `group` of a k-like result. */
static void write_key_row(const trd__attention_plan *p, const float *row, void *out, int64_t batch,
                          int64_t group, int64_t s)
{
    const trd__attention_dims *d = &p->d;
    int64_t at = ((batch * d->keys + s) * d->groups + group) * d->size;
    trd__row_write(p->math, p->dtype, row, out, at, d->size);
}

/* Shared copy of dk (which = 0) or dv (1) of a unit. */
static float *shared_copy(const trd__attention_plan *p, const trd__cpu_call *call, int64_t unit, int which)
{
    return (float *)call->shared_scratch + (2 * unit + which) * p->d.keys * p->d.size;
}

static void run_unit(const trd__attention_plan *p, const trd__cpu_call *call, scratch *w, int64_t unit)
{
    const trd__attention_dims *d = &p->d;
    int64_t part = unit % p->parts, group = unit / p->parts % d->groups, batch = unit / p->parts / d->groups;
    if (p->parts > 1) {
        w->dk = shared_copy(p, call, unit, 0);
        w->dv = shared_copy(p, call, unit, 1);
    }
    memset(w->dk, 0, (size_t)(d->keys * d->size) * sizeof *w->dk);
    memset(w->dv, 0, (size_t)(d->keys * d->size) * sizeof *w->dv);
    trd__float_rows k = trd__attention_read_keys(p, call->inputs[1], batch, group, d->keys, w->k);
    trd__float_rows v = trd__attention_read_keys(p, call->inputs[2], batch, group, d->keys, w->v);
    trd__query_block block = trd__attention_blocks(batch, group, w->keys);
    while (trd__attention_next(p, call, part, &block)) run_block(p, call, w, &block, unit / p->parts, k, v);
    for (int64_t s = 0; p->parts == 1 && s < d->keys; s++) {
        if (call->outputs[1]) write_key_row(p, w->dk + s * d->size, call->outputs[1], batch, group, s);
        if (call->outputs[2]) write_key_row(p, w->dv + s * d->size, call->outputs[2], batch, group, s);
    }
}

/* Phase 1: dk and dv of a group are the sums of its units' copies, in order. */
static void add_copies(const trd__attention_plan *p, const trd__cpu_call *call)
{
    const trd__attention_dims *d = &p->d;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, d->batch * d->groups * d->keys, ROW_GRAIN, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t s = row % d->keys, group = row / d->keys % d->groups, batch = row / d->keys / d->groups;
        int64_t unit = (batch * d->groups + group) * p->parts;
        for (int which = 0; which < 2; which++) {
            float *sum = shared_copy(p, call, unit, which) + s * d->size;
            for (int64_t part = 1; part < p->parts; part++)
                p->math->add(sum, shared_copy(p, call, unit + part, which) + s * d->size, sum, d->size);
            if (call->outputs[1 + which]) write_key_row(p, sum, call->outputs[1 + which], batch, group, s);
        }
    }
}

static void run(const trd__cpu_call *call, int phase)
{
    const trd__attention_plan *p = call->state;
    if (phase == 1) {
        add_copies(p, call);
        return;
    }
    size_t used;
    scratch w = scratch_layout(p, call->worker_scratch, &used);
    int64_t begin, end;
    trd__partition(call->worker, call->workers, p->d.batch * p->d.groups * p->parts, 1, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) run_unit(p, call, &w, unit);
}

const trd__cpu_kernel trd__attention_grad_blocked = {
    .name = "blocked", .refuse = trd__attention_refuse, .plan = plan, .run = run};
