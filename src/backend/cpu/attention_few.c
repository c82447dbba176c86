/* Attention over few tokens and its gradient, float32: a head at a time in row_math's registers, without the
 * blocks of attention_blocked.c, which cost such heads more than their products.
 *
 * Padding before the first and behind the last token that sees any is left out and its results are 0; padding
 * between packed rows reads as 0 in the gradient, where its rows are summed with others. */
#include "backend/cpu/attention.h"
#include "backend/cpu/row_math.h"

enum { SMALL = 1 << 18, MOST_SIZE = 256 }; /* multiply-adds below which a second worker does not pay */

typedef struct few_plan {
    const trd__row_math *math;
    trd__attention_dims d;
} few_plan;

static const char *refuse(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    trd__attention_dims d = trd__attention_dims_of(n);
    if (trd__type_of(n->inputs[0])->dtype != TRD_F32) return "only float32";
    if (d.cached || d.keys != d.queries) return "only tokens that see each other";
    return d.queries <= TRD__FEW_TOKENS && d.size <= MOST_SIZE ? NULL : "too many tokens, or heads too wide";
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    few_plan *p = trd__arena_alloc(plan->arena, 1, sizeof *p);
    if (!p) return TRD_NO_MEMORY;
    trd__attention_dims d = trd__attention_dims_of(n);
    *p = (few_plan){.math = trd__row_math_for(plan->info->isa), .d = d};
    double products = (double)d.batch * (double)d.heads * (double)d.queries * (double)d.keys;
    plan->workers = products * (double)d.size < SMALL ? 1 : 0;
    plan->worker_bytes = (size_t)(2 * d.queries * d.size) * sizeof(float); /* q and dy without padding */
    plan->state = p;
    return TRD_OK;
}

/* One group of heads of one batch row, and its elements: from the first token that sees any. */
typedef struct unit {
    trd__few_tokens tokens;
    int64_t first, end, head; /* the first of the group's heads */
    int64_t q_at, k_at, lse_at;
    bool padding; /* between first and end */
} unit;

static unit unit_of(const few_plan *p, const trd__cpu_call *call, int64_t number)
{
    const trd__attention_dims *d = &p->d;
    int64_t batch = number / d->groups, group = number % d->groups, head = group * d->group_heads;
    const int32_t *segments = (const int32_t *)call->inputs[3] + batch * d->queries;
    unit u = {.end = d->queries, .head = head};
    while (u.first < u.end && segments[u.first] == 0) u.first++;
    while (u.end > u.first && segments[u.end - 1] == 0) u.end--;
    trd__few_tokens *t = &u.tokens;
    t->tokens = u.end - u.first;
    t->size = d->size;
    t->q_step = t->y_step = d->heads * d->size;
    t->k_step = d->groups * d->size;
    t->scale = (float)d->scale;
    const int32_t *own = segments + u.first;
    for (int i = 0; i < t->tokens; i++) {
        if (own[i] == 0) u.padding = true;
        t->begin[i] = own[i] == 0 ? i + 1 : i > 0 && own[i] == own[i - 1] ? t->begin[i - 1] : i;
    }
    u.q_at = ((batch * d->queries + u.first) * d->heads + head) * d->size;
    u.k_at = ((batch * d->keys + u.first) * d->groups + group) * d->size;
    u.lse_at = (batch * d->heads + head) * d->queries + u.first;
    return u;
}

/* Rows of n elements of the tokens that are left out; out is the first other one's. */
static void clear_rows(const few_plan *p, const unit *u, float *out, int64_t step, int64_t n)
{
    if (!out) return;
    for (int64_t t = -u->first; t < p->d.queries - u->first; t++)
        if (t < 0 || t >= u->tokens.tokens) memset(out + t * step, 0, (size_t)n * sizeof *out);
}

static float *at(void *out, int64_t element)
{
    return out ? (float *)out + element : NULL;
}

static void run_forward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const few_plan *p = call->state;
    const trd__attention_dims *d = &p->d;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, d->batch * d->groups, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        unit u = unit_of(p, call, i);
        const float *q = (const float *)call->inputs[0] + u.q_at,
                    *k = (const float *)call->inputs[1] + u.k_at,
                    *v = (const float *)call->inputs[2] + u.k_at;
        float *y = at(call->outputs[0], u.q_at), *lse = at(call->outputs[1], u.lse_at);
        clear_rows(p, &u, y, u.tokens.y_step, d->group_heads * d->size);
        for (int64_t h = 0; h < d->group_heads; h++) {
            float *own_lse = lse ? lse + h * d->queries : NULL;
            clear_rows(p, &u, own_lse, 1, 1);
            p->math->attend(&u.tokens, q + h * d->size, k, v, y ? y + h * d->size : NULL, own_lse);
        }
    }
}

/* Rows of a head with 0 for padding, in scratch; the rows themselves where there is none. */
static const float *without_padding(const unit *u, const float *rows, int64_t step, float *scratch)
{
    if (!u->padding) return rows;
    const trd__few_tokens *t = &u->tokens;
    for (int i = 0; i < t->tokens; i++) {
        size_t bytes = (size_t)t->size * sizeof *scratch;
        if (t->begin[i] > i)
            memset(scratch + i * t->size, 0, bytes);
        else
            memcpy(scratch + i * t->size, rows + i * step, bytes);
    }
    return scratch;
}

static void run_backward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const few_plan *p = call->state;
    const trd__attention_dims *d = &p->d;
    float *scratch = call->worker_scratch;
    int64_t begin, end, step = d->heads * d->size;
    trd__partition(call->worker, call->workers, d->batch * d->groups, 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        unit u = unit_of(p, call, i);
        const float *k = (const float *)call->inputs[1] + u.k_at,
                    *v = (const float *)call->inputs[2] + u.k_at;
        float *dq = at(call->outputs[0], u.q_at), *dk = at(call->outputs[1], u.k_at),
              *dv = at(call->outputs[2], u.k_at);
        clear_rows(p, &u, dq, step, d->group_heads * d->size);
        clear_rows(p, &u, dk, u.tokens.k_step, d->size);
        clear_rows(p, &u, dv, u.tokens.k_step, d->size);
        if (u.padding) u.tokens.q_step = d->size;
        for (int64_t h = 0; h < d->group_heads; h++) {
            int64_t own = u.q_at + h * d->size;
            const float *q = without_padding(&u, (const float *)call->inputs[0] + own, step, scratch);
            const float *dy = without_padding(&u, (const float *)call->inputs[6] + own, step,
                                              scratch + d->queries * d->size);
            p->math->attend_gradient(&u.tokens, q, k, v,
                                     (const float *)call->inputs[5] + u.lse_at + h * d->queries, dy, h > 0,
                                     dq ? dq + h * d->size : NULL, dk, dv);
        }
    }
}

const trd__cpu_kernel trd__attention_few = {
    .name = "few", .refuse = refuse, .plan = plan, .run = run_forward};
const trd__cpu_kernel trd__attention_grad_few = {
    .name = "few", .refuse = refuse, .plan = plan, .run = run_backward};
