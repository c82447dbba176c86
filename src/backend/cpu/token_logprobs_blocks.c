/* Blocked log-probabilities: the parts shared with the gradient, and the forward kernel, which keeps one tile
 * of logits per worker. Phase 0: every part of the vocabulary is folded into its own statistics of all rows.
 * Phase 1: log-probabilities from the statistics. */
#include "backend/cpu/token_logprobs_blocks.h"

#include <math.h>

enum { SMALL = 1 << 18, VOCABULARY_GRAIN = 64, SMALL_PARTS = 2 /* a worker */ };

const char *trd__logprobs_refuse(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    bool known = trd__is_f32_or_bf16(trd__type_of(n->inputs[0])->dtype) &&
                 trd__is_f32_or_bf16(trd__type_of(n->inputs[1])->dtype);
    if (n->result_count > 2) known = known && trd__is_f32_or_bf16(n->results[2].dtype);
    return known ? NULL : "only float32 and bfloat16";
}

/* Rows of a product for count rows. */
static int64_t padded(int64_t count)
{
    return (count + TRD__GEMM_STABLE_STEP - 1) / TRD__GEMM_STABLE_STEP * TRD__GEMM_STABLE_STEP;
}

trd__logprobs_plan *trd__logprobs_plan_make(const trd_node *n, trd__cpu_plan *plan)
{
    trd__logprobs_plan *p = trd__arena_alloc(plan->arena, 1, sizeof *p);
    if (!p) return NULL;
    trd__logprobs_dims d = p->d = trd__logprobs_dims_of(n);
    p->math = trd__row_math_for(plan->info->isa);
    p->block_rows = padded(d.rows < TRD__LOGPROBS_ROWS ? d.rows : TRD__LOGPROBS_ROWS);
    p->blocks = (d.rows + TRD__LOGPROBS_ROWS - 1) / TRD__LOGPROBS_ROWS;
    p->tile = d.vocabulary < TRD__LOGPROBS_TILE ? d.vocabulary : TRD__LOGPROBS_TILE;
    p->logits = (trd__gemm){.a_dtype = TRD_F32,
                            .b_dtype = d.weight_dtype,
                            .c_dtype = TRD_F32,
                            .transpose_b = true,
                            .m = p->block_rows,
                            .n = p->tile,
                            .k = d.channels,
                            .lda = d.channels,
                            .ldb = d.channels,
                            .ldc = p->tile,
                            .alpha = (float)(1.0 / d.temperature),
                            .stable_rows = true};
    p->gemm_bytes = trd__gemm_scratch_bytes(&p->logits);
    plan->workers = (double)d.rows * (double)d.vocabulary * (double)d.channels < SMALL ? 1 : 0;
    int workers = plan->workers == 1 ? 1 : plan->info->workers, small = SMALL_PARTS * workers;
    bool large = d.vocabulary >= TRD__DEAL_SHARE * small * VOCABULARY_GRAIN;
    p->deal = trd__deal_of(d.vocabulary, VOCABULARY_GRAIN, workers, large ? small : 0);
    plan->state = p;
    return p;
}

int64_t trd__logprobs_list(const trd__logprobs_plan *p, const trd__cpu_call *call, int32_t *list)
{
    int64_t count = 0;
    for (int64_t row = 0; row < p->d.rows; row++)
        if (trd__logprobs_row_on(call, row)) list[count++] = (int32_t)row;
    return count;
}

int64_t trd__logprobs_block_count(int64_t count, int64_t block)
{
    int64_t left = count - block * TRD__LOGPROBS_ROWS;
    return left < 0 ? 0 : left < TRD__LOGPROBS_ROWS ? left : TRD__LOGPROBS_ROWS;
}

void trd__logprobs_gather(const trd__logprobs_plan *p, const trd__cpu_call *call, const int32_t *list,
                          int64_t count, float *hidden)
{
    int64_t channels = p->d.channels;
    for (int64_t r = 0; r < padded(count); r++) {
        float *to = hidden + r * channels;
        if (r >= count)
            memset(to, 0, (size_t)channels * sizeof *to);
        else if (p->d.hidden_dtype == TRD_F32)
            memcpy(to, (const float *)call->inputs[0] + list[r] * channels, (size_t)channels * sizeof *to);
        else
            p->math->widen((const trd__bf16 *)call->inputs[0] + list[r] * channels, to, channels);
    }
}

void trd__logprobs_tile(const trd__logprobs_plan *p, const trd__cpu_call *call, const float *hidden,
                        int64_t count, int64_t first, int64_t columns, float *logits, void *scratch)
{
    trd__gemm g = p->logits;
    g.m = padded(count);
    g.n = g.ldc = columns;
    size_t row_bytes = (size_t)p->d.channels * trd_dtype_bytes(p->d.weight_dtype);
    const unsigned char *weight = (const unsigned char *)call->inputs[1] + (size_t)first * row_bytes;
    trd__gemm_run(&g, p->math, (trd__gemm_tile){0, g.m, 0, columns}, hidden, weight, NULL, logits, scratch);
}

void trd__logprobs_reset(trd__row_stat *stats, int64_t count)
{
    for (int64_t r = 0; r < count; r++) stats[r] = (trd__row_stat){.sum = 0.0, .largest = -INFINITY};
}

void trd__logprobs_fold(const trd__logprobs_plan *p, const trd__cpu_call *call, const int32_t *list,
                        int64_t count, int64_t first, int64_t columns, const float *logits,
                        trd__row_stat *stats, float *target)
{
    const int32_t *targets = call->inputs[2];
    for (int64_t r = 0; r < count; r++) {
        const float *row = logits + r * columns;
        float top = p->math->largest(row, columns);
        if (top > stats[r].largest) {
            stats[r].sum *= exp((double)stats[r].largest - (double)top);
            stats[r].largest = top;
        }
        stats[r].sum += (double)p->math->exp_sum(row, stats[r].largest, columns);
        int64_t at = targets[list[r]] - first;
        if (at >= 0 && at < columns) target[r] = row[at];
    }
}

trd__row_stat trd__logprobs_total(const trd__row_stat *stats, int64_t stride, int parts)
{
    trd__row_stat total = {.largest = stats[0].largest};
    for (int part = 1; part < parts; part++)
        if (stats[part * stride].largest > total.largest) total.largest = stats[part * stride].largest;
    for (int part = 0; part < parts; part++)
        if (stats[part * stride].sum != 0.0)
            total.sum +=
                stats[part * stride].sum * exp((double)stats[part * stride].largest - (double)total.largest);
    return total;
}

float trd__logprobs_log_sum(const trd__row_stat *total)
{
    return (float)((double)total->largest + log(total->sum));
}

float trd__logprobs_value(const trd__row_stat *total, float target)
{
    return (float)((double)target - (double)total->largest - log(total->sum));
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    trd__logprobs_plan *p = trd__logprobs_plan_make(n, plan);
    if (!p) return TRD_NO_MEMORY;
    size_t parts = (size_t)trd__deal_parts(&p->deal), rows = (size_t)p->d.rows;
    size_t floats = (size_t)(p->block_rows * (p->d.channels + p->tile));
    plan->worker_bytes = p->gemm_bytes + floats * sizeof(float) + rows * sizeof(int32_t);
    plan->shared_bytes = parts * rows * sizeof(trd__row_stat) + rows * sizeof(float);
    plan->phases = 2;
    return TRD_OK;
}

static void write_results(const trd__logprobs_plan *p, const trd__cpu_call *call, const int32_t *list,
                          int64_t count, const float *target, const trd__row_stat *stats)
{
    float *logprobs = call->outputs[0], *log_sums = call->outputs[1];
    for (int64_t row = 0; logprobs && row < p->d.rows; row++) logprobs[row] = 0.0f;
    for (int64_t row = 0; log_sums && row < p->d.rows; row++) log_sums[row] = 0.0f;
    for (int64_t i = 0; i < count; i++) {
        trd__row_stat total = trd__logprobs_total(stats + i, p->d.rows, trd__deal_parts(&p->deal));
        if (logprobs) logprobs[list[i]] = trd__logprobs_value(&total, target[i]);
        if (log_sums) log_sums[list[i]] = trd__logprobs_log_sum(&total);
    }
}

/* A part of the vocabulary into its statistics of all rows. */
static void fold_part(const trd__logprobs_plan *p, const trd__cpu_call *call, const int32_t *list,
                      int64_t count, int part, trd__row_stat *stats, float *target)
{
    float *logits = call->worker_scratch, *hidden = logits + p->block_rows * p->tile;
    unsigned char *gemm_scratch = (unsigned char *)(hidden + p->block_rows * p->d.channels);
    int64_t begin, end;
    trd__deal_part(&p->deal, part, &begin, &end);
    stats += part * p->d.rows;
    trd__logprobs_reset(stats, count);
    for (int64_t at = 0; at < count; at += TRD__LOGPROBS_ROWS) {
        int64_t rows = trd__logprobs_block_count(count, at / TRD__LOGPROBS_ROWS);
        if (begin < end) trd__logprobs_gather(p, call, list + at, rows, hidden);
        for (int64_t first = begin; first < end; first += p->tile) {
            int64_t columns = end - first < p->tile ? end - first : p->tile;
            trd__logprobs_tile(p, call, hidden, rows, first, columns, logits, gemm_scratch);
            trd__logprobs_fold(p, call, list + at, rows, first, columns, logits, stats + at, target + at);
        }
    }
}

static void run(const trd__cpu_call *call, int phase)
{
    const trd__logprobs_plan *p = call->state;
    size_t list_at = (size_t)(p->block_rows * (p->tile + p->d.channels)) * sizeof(float) + p->gemm_bytes;
    int32_t *list = (int32_t *)(void *)((unsigned char *)call->worker_scratch + list_at);
    trd__row_stat *stats = call->shared_scratch;
    int parts = trd__deal_parts(&p->deal);
    float *target = (float *)(stats + parts * p->d.rows);
    int64_t count = trd__logprobs_list(p, call, list);
    if (phase == 1) {
        if (call->worker == 0) write_results(p, call, list, count, target, stats);
        return;
    }
    for (int part = call->worker; part < parts; part = trd__deal_next(&p->deal, call))
        fold_part(p, call, list, count, part, stats, target);
}

const trd__cpu_kernel trd__token_logprobs_blocks = {
    .name = "blocks", .refuse = trd__logprobs_refuse, .plan = plan, .run = run};
