/* Blocked gradient of the log-probabilities: the logits of one block of rows are formed once, kept, and
 * turned in place into their own gradient. The vocabulary is dealt in parts: of its logits, its rows of the
 * weight's gradient, and its share of the hidden rows' gradient, which is summed in the parts' order.
 *
 * Phases of block b: 2 b forms logits and statistics (and sums the hidden gradient of block b - 1), 2 b + 1
 * forms the gradients. One last phase sums the last block and clears the rows that are off. */
#include <math.h>

#include "backend/cpu/token_logprobs_blocks.h"

enum { ROW_GRAIN = 8 };

/* Scratch of a call as seen by one worker. */
typedef struct views {
    trd__row_stat *totals; /* own: (block), over the whole vocabulary */
    float *hidden, *row;   /* own: (block, C), (C) */
    int32_t *list;
    unsigned char *gemm_scratch;
    float *logits;        /* shared: (block, V), in tiles */
    float *partial;       /* shared: per part (block, C) */
    float *target;        /* shared: (block) */
    trd__row_stat *stats; /* shared: per part (block) */
    int64_t count;        /* rows that are on */
    int parts, part;      /* of the vocabulary; the one in hand */
    int64_t begin, end;   /* of that */
} views;

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    trd__logprobs_plan *p = trd__logprobs_plan_make(n, plan);
    if (!p) return TRD_NO_MEMORY;
    const trd__logprobs_dims *d = &p->d;
    p->d_weight = (trd__gemm){.a_dtype = TRD_F32,
                              .b_dtype = TRD_F32,
                              .c_dtype = n->results[2].dtype,
                              .transpose_a = true,
                              .m = p->tile,
                              .n = d->channels,
                              .k = p->block_rows,
                              .lda = p->tile,
                              .ldb = d->channels,
                              .ldc = d->channels,
                              .alpha = 1.0f};
    p->d_hidden = (trd__gemm){.a_dtype = TRD_F32,
                              .b_dtype = d->weight_dtype,
                              .c_dtype = TRD_F32,
                              .m = p->block_rows,
                              .n = d->channels,
                              .k = p->tile,
                              .lda = p->tile,
                              .ldb = d->channels,
                              .ldc = d->channels,
                              .alpha = 1.0f};
    size_t second = trd__gemm_scratch_bytes(&p->d_weight), third = trd__gemm_scratch_bytes(&p->d_hidden);
    if (second > p->gemm_bytes) p->gemm_bytes = second;
    if (third > p->gemm_bytes) p->gemm_bytes = third;
    size_t parts = (size_t)trd__deal_parts(&p->deal), block = (size_t)p->block_rows;
    size_t channels = (size_t)d->channels;
    plan->worker_bytes = block * sizeof(trd__row_stat) + p->gemm_bytes +
                         (block * channels + channels) * sizeof(float) + (size_t)d->rows * sizeof(int32_t);
    plan->shared_bytes = parts * block * (sizeof(trd__row_stat) + channels * sizeof(float)) +
                         block * (size_t)(d->vocabulary + 1) * sizeof(float);
    plan->phases = (int)(2 * p->blocks + 1);
    if (n->inputs[5].node) plan->in_place[2] = 5 + 1;
    return TRD_OK;
}

static views make_views(const trd__logprobs_plan *p, const trd__cpu_call *call)
{
    views v;
    int64_t block = p->block_rows, channels = p->d.channels;
    v.totals = call->worker_scratch;
    v.gemm_scratch = (unsigned char *)(v.totals + block);
    v.hidden = (float *)(void *)(v.gemm_scratch + p->gemm_bytes);
    v.row = v.hidden + block * channels;
    v.list = (int32_t *)(void *)(v.row + channels);
    v.parts = trd__deal_parts(&p->deal);
    v.stats = call->shared_scratch;
    v.partial = (float *)(void *)(v.stats + v.parts * block);
    v.target = v.partial + v.parts * block * channels;
    v.logits = v.target + block;
    v.count = trd__logprobs_list(p, call, v.list);
    return v;
}

static int64_t tile_columns(const trd__logprobs_plan *p, const views *v, int64_t first)
{
    return v->end - first < p->tile ? v->end - first : p->tile;
}

/* Where the tile from `first` on lies: tiles are stored one after the other, each (block rows, columns). */
static float *tile_at(const trd__logprobs_plan *p, const views *v, int64_t first)
{
    return v->logits + first * p->block_rows;
}

/* The part in hand. */
static void form_logits(const trd__logprobs_plan *p, const trd__cpu_call *call, const views *v, int64_t block)
{
    int64_t rows = trd__logprobs_block_count(v->count, block);
    const int32_t *list = v->list + block * TRD__LOGPROBS_ROWS;
    trd__row_stat *stats = v->stats + v->part * p->block_rows;
    trd__logprobs_reset(stats, rows);
    for (int64_t first = v->begin; first < v->end; first += p->tile) {
        int64_t columns = tile_columns(p, v, first);
        float *logits = tile_at(p, v, first);
        trd__logprobs_tile(p, call, v->hidden, rows, first, columns, logits, v->gemm_scratch);
        trd__logprobs_fold(p, call, list, rows, first, columns, logits, stats, v->target);
    }
}

/* Turns a tile of logits into (onehot d_logprob - softmax (d_logprob - d_log_sum)) / temperature. */
static void turn_tile(const trd__logprobs_plan *p, const trd__cpu_call *call, const views *v, int64_t block,
                      int64_t rows, int64_t first)
{
    const int32_t *list = v->list + block * TRD__LOGPROBS_ROWS, *targets = call->inputs[2];
    const float *d_logprobs = call->inputs[4], *d_log_sums = call->inputs[6];
    int64_t columns = tile_columns(p, v, first);
    for (int64_t r = 0; r < rows; r++) {
        float *row = tile_at(p, v, first) + r * columns;
        double of_target = (double)d_logprobs[list[r]];
        double of_all = of_target - (d_log_sums ? (double)d_log_sums[list[r]] : 0.0);
        double factor = of_all / p->d.temperature / v->totals[r].sum;
        p->math->logit_gradient(row, v->totals[r].largest, (float)factor, columns);
        int64_t at = targets[list[r]] - first;
        if (at >= 0 && at < columns) row[at] += (float)(of_target / p->d.temperature);
    }
}

/* d_weight[first ...] = or += tile^T hidden. */
static void add_weight_gradient(const trd__logprobs_plan *p, const trd__cpu_call *call, const views *v,
                                int64_t block, int64_t rows, int64_t first)
{
    if (!call->outputs[2]) return;
    trd__gemm g = p->d_weight;
    g.m = g.lda = tile_columns(p, v, first);
    g.k = rows;
    size_t offset = (size_t)(first * p->d.channels) * trd_dtype_bytes(g.c_dtype);
    unsigned char *out = (unsigned char *)call->outputs[2] + offset;
    const unsigned char *accumulator = block > 0 ? call->outputs[2] : call->inputs[5];
    if (accumulator) accumulator += offset;
    trd__gemm_run(&g, p->math, (trd__gemm_tile){0, g.m, 0, g.n}, tile_at(p, v, first), v->hidden, accumulator,
                  out, v->gemm_scratch);
}

/* partial = or += tile W[first ...]. */
static void add_hidden_gradient(const trd__logprobs_plan *p, const trd__cpu_call *call, const views *v,
                                int64_t rows, int64_t first)
{
    if (!call->outputs[1]) return;
    trd__gemm g = p->d_hidden;
    g.k = g.lda = tile_columns(p, v, first);
    g.m = rows;
    float *partial = v->partial + v->part * p->block_rows * p->d.channels;
    size_t row_bytes = (size_t)p->d.channels * trd_dtype_bytes(g.b_dtype);
    const unsigned char *weight = (const unsigned char *)call->inputs[1] + (size_t)first * row_bytes;
    trd__gemm_run(&g, p->math, (trd__gemm_tile){0, rows, 0, g.n}, tile_at(p, v, first), weight,
                  first > v->begin ? partial : NULL, partial, v->gemm_scratch);
}

/* The statistics of a block's rows over the whole vocabulary, and the results they give. */
static void total_rows(const trd__logprobs_plan *p, const trd__cpu_call *call, const views *v, int64_t block)
{
    int64_t rows = trd__logprobs_block_count(v->count, block);
    const int32_t *list = v->list + block * TRD__LOGPROBS_ROWS;
    float *logprobs = call->outputs[0], *log_sums = call->outputs[3];
    for (int64_t r = 0; r < rows; r++) {
        v->totals[r] = trd__logprobs_total(v->stats + r, p->block_rows, v->parts);
        if (call->worker != 0) continue;
        if (logprobs) logprobs[list[r]] = trd__logprobs_value(v->totals + r, v->target[r]);
        if (log_sums) log_sums[list[r]] = trd__logprobs_log_sum(v->totals + r);
    }
}

/* The part in hand. */
static void form_gradients(const trd__logprobs_plan *p, const trd__cpu_call *call, const views *v,
                           int64_t block)
{
    int64_t rows = trd__logprobs_block_count(v->count, block);
    for (int64_t first = v->begin; first < v->end; first += p->tile) {
        turn_tile(p, call, v, block, rows, first);
        add_weight_gradient(p, call, v, block, rows, first);
        if (rows > 0) add_hidden_gradient(p, call, v, rows, first);
    }
    if (v->begin == v->end)
        memset(v->partial + v->part * p->block_rows * p->d.channels, 0,
               (size_t)(p->block_rows * p->d.channels) * sizeof(float));
}

/* The hidden gradient of a block: the parts' shares, summed in order and rounded once. */
static void sum_hidden(const trd__logprobs_plan *p, const trd__cpu_call *call, const views *v, int64_t block)
{
    int64_t channels = p->d.channels, begin, end;
    const int32_t *list = v->list + block * TRD__LOGPROBS_ROWS;
    trd__partition(call->worker, call->workers, trd__logprobs_block_count(v->count, block), ROW_GRAIN, &begin,
                   &end);
    for (int64_t r = begin; r < end && call->outputs[1]; r++) {
        int64_t at = list[r] * channels;
        float *sum = trd__row_target(p->d.hidden_dtype, call->outputs[1], at, v->row);
        memcpy(sum, v->partial + r * channels, (size_t)channels * sizeof *sum);
        for (int part = 1; part < v->parts; part++)
            p->math->add(sum, v->partial + (part * p->block_rows + r) * channels, sum, channels);
        trd__row_write(p->math, p->d.hidden_dtype, sum, call->outputs[1], at, channels);
    }
}

static void clear_rows_off(const trd__logprobs_plan *p, const trd__cpu_call *call)
{
    size_t row_bytes = (size_t)p->d.channels * trd_dtype_bytes(p->d.hidden_dtype);
    int64_t begin, end;
    trd__partition(call->worker, call->workers, p->d.rows, ROW_GRAIN, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        if (trd__logprobs_row_on(call, row)) continue;
        if (call->outputs[0]) ((float *)call->outputs[0])[row] = 0.0f;
        if (call->outputs[3]) ((float *)call->outputs[3])[row] = 0.0f;
        if (call->outputs[1])
            memset((unsigned char *)call->outputs[1] + (size_t)row * row_bytes, 0, row_bytes);
    }
}

static void run(const trd__cpu_call *call, int phase)
{
    const trd__logprobs_plan *p = call->state;
    views v = make_views(p, call);
    int64_t block = phase / 2, rows = trd__logprobs_block_count(v.count, block);
    bool gradients = phase % 2;
    if (!gradients && block > 0) sum_hidden(p, call, &v, block - 1);
    if (block == p->blocks) {
        clear_rows_off(p, call);
        return;
    }
    /* Without rows block 0 still defines d_weight: a product over nothing. */
    if (rows == 0 && !(gradients && block == 0)) return;
    if (gradients)
        total_rows(p, call, &v, block);
    else
        trd__logprobs_gather(p, call, v.list + block * TRD__LOGPROBS_ROWS, rows, v.hidden);
    for (v.part = call->worker; v.part < v.parts; v.part = trd__deal_next(&p->deal, call)) {
        trd__deal_part(&p->deal, v.part, &v.begin, &v.end);
        (gradients ? form_gradients : form_logits)(p, call, &v, block);
    }
}

const trd__cpu_kernel trd__token_logprobs_grad_blocks = {
    .name = "blocks", .refuse = trd__logprobs_refuse, .plan = plan, .run = run};
