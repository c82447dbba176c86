/* Attention over few tokens and its gradient, float32: a head and a segment at a time in row_math's
 * registers, without the blocks of attention_blocked.c, which cost such heads more than their products.
 *
 * Invariant: a segment's results depend on its own tokens alone; padding is not read, and its results are 0.
 */
#include "backend/cpu/attention.h"
#include "backend/cpu/row_math.h"

enum {
    SMALL = 1 << 18, /* multiply-adds below which a second worker does not pay */
    MOST_SIZE = 256  /* of a head: wider ones keep the library busy */
};

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
    plan->state = p;
    return TRD_OK;
}

/* A segment of a batch row, for one group of heads: its first elements in q-like and k-like operands. */
typedef struct few_segment {
    trd__few_tokens tokens;
    int64_t q_at, k_at, lse_at;
} few_segment;

/* The segment that begins at `first`, or a run of padding, of the unit's batch row and group. */
static few_segment segment_at(const few_plan *p, const int32_t *segments, int64_t unit, int64_t first)
{
    const trd__attention_dims *d = &p->d;
    int64_t batch = unit / d->groups, group = unit % d->groups, head = group * d->group_heads,
            end = first + 1;
    while (end < d->queries && segments[end] == segments[first]) end++;
    return (few_segment){.tokens = {.tokens = end - first,
                                    .size = d->size,
                                    .q_step = d->heads * d->size,
                                    .k_step = d->groups * d->size,
                                    .scale = (float)d->scale},
                         .q_at = ((batch * d->queries + first) * d->heads + head) * d->size,
                         .k_at = ((batch * d->keys + first) * d->groups + group) * d->size,
                         .lse_at = (batch * d->heads + head) * d->queries + first};
}

/* Padding: n elements of each token. */
static void clear_tokens(const few_segment *s, float *out, int64_t step, int64_t n)
{
    for (int64_t t = 0; out && t < s->tokens.tokens; t++) memset(out + t * step, 0, (size_t)n * sizeof *out);
}

static float *at(void *out, int64_t element)
{
    return out ? (float *)out + element : NULL;
}

static void attend_segment(const few_plan *p, const trd__cpu_call *call, const few_segment *s, bool padding)
{
    const trd__attention_dims *d = &p->d;
    const float *q = (const float *)call->inputs[0] + s->q_at, *k = (const float *)call->inputs[1] + s->k_at,
                *v = (const float *)call->inputs[2] + s->k_at;
    float *y = at(call->outputs[0], s->q_at), *lse = at(call->outputs[1], s->lse_at);
    if (padding) clear_tokens(s, y, s->tokens.q_step, d->group_heads * d->size);
    for (int64_t h = 0; h < d->group_heads; h++) {
        float *own_lse = lse ? lse + h * d->queries : NULL;
        if (padding)
            clear_tokens(s, own_lse, 1, 1);
        else
            p->math->attend(&s->tokens, q + h * d->size, k, v, y ? y + h * d->size : NULL, own_lse);
    }
}

static void segment_gradient(const few_plan *p, const trd__cpu_call *call, const few_segment *s, bool padding)
{
    const trd__attention_dims *d = &p->d;
    const float *q = (const float *)call->inputs[0] + s->q_at, *k = (const float *)call->inputs[1] + s->k_at,
                *v = (const float *)call->inputs[2] + s->k_at,
                *lse = (const float *)call->inputs[5] + s->lse_at,
                *dy = (const float *)call->inputs[6] + s->q_at;
    float *dq = at(call->outputs[0], s->q_at), *dk = at(call->outputs[1], s->k_at),
          *dv = at(call->outputs[2], s->k_at);
    if (padding) {
        clear_tokens(s, dq, s->tokens.q_step, d->group_heads * d->size);
        clear_tokens(s, dk, s->tokens.k_step, d->size);
        clear_tokens(s, dv, s->tokens.k_step, d->size);
        return;
    }
    for (int64_t h = 0; h < d->group_heads; h++)
        p->math->attend_gradient(&s->tokens, q + h * d->size, k, v, lse + h * d->queries, dy + h * d->size,
                                 h > 0, dq ? dq + h * d->size : NULL, dk, dv);
}

/* Every segment of this worker's batch rows and groups. */
static void each_segment(const trd__cpu_call *call, void (*work)(const few_plan *p, const trd__cpu_call *call,
                                                                 const few_segment *s, bool padding))
{
    const few_plan *p = call->state;
    const trd__attention_dims *d = &p->d;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, d->batch * d->groups, 1, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) {
        const int32_t *segments = (const int32_t *)call->inputs[3] + unit / d->groups * d->queries;
        for (int64_t first = 0; first < d->queries;) {
            few_segment s = segment_at(p, segments, unit, first);
            work(p, call, &s, segments[first] == 0);
            first += s.tokens.tokens;
        }
    }
}

static void run_forward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    each_segment(call, attend_segment);
}

static void run_backward(const trd__cpu_call *call, int phase)
{
    (void)phase;
    each_segment(call, segment_gradient);
}

const trd__cpu_kernel trd__attention_few = {
    .name = "few", .refuse = refuse, .plan = plan, .run = run_forward};
const trd__cpu_kernel trd__attention_grad_few = {
    .name = "few", .refuse = refuse, .plan = plan, .run = run_backward};
