/* Attention of one head over the few tokens of a segment, compiled once per instruction set as part of
 * row_math_body.h: a row of scores is a few registers, and what is called between the products would take
 * longer than they do.
 *
 * Invariant: nothing outside the segment is read. Scores of later tokens are replaced, whatever they are;
 * their values are multiplied by a probability of 0. */
#include <stdbool.h>

#include "backend/cpu/row_math.h"

enum { FEW_TOKENS = TRD__FEW_TOKENS, FEW_VECTORS = TRD__FEW_TOKENS / LANES };

/* Of the keys that vector v of a row holds, those up to last. */
static inline vi seen_keys(int v, int32_t last)
{
    static const int32_t keys[FEW_TOKENS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi key;
    memcpy(&key, keys + v * LANES, sizeof key);
    return key <= last;
}

/* Scores to probabilities, 0 where nothing is seen. */
static inline void few_softmax(float *row, int32_t last, float *largest, float *sum)
{
    vf x[FEW_VECTORS], top = vset(-INFINITY), all = {0};
    for (int v = 0; v < FEW_VECTORS; v++) {
        x[v] = vselect(seen_keys(v, last), vload(row + v * LANES), vset(-INFINITY));
        top = vmax(top, x[v]);
    }
    *largest = vlargest(top);
    for (int v = 0; v < FEW_VECTORS; v++) {
        x[v] = softmax_exp(x[v] - *largest);
        all += x[v];
    }
    *sum = vsum(all);
    float inverse = 1.0f / *sum;
    for (int v = 0; v < FEW_VECTORS; v++) vstore(row + v * LANES, x[v] * inverse);
}

static void attend(const trd__few_tokens *a, const float *q, const float *k, const float *v, float *y,
                   float *lse)
{
    float scores[FEW_TOKENS * FEW_TOKENS], largest[FEW_TOKENS], sum[FEW_TOKENS];
    int64_t n = a->tokens;
    product(false, true, n, n, a->size, a->scale, q, a->q_step, k, a->k_step, 0.0f, scores, FEW_TOKENS);
    for (int t = 0; t < n; t++) few_softmax(scores + t * FEW_TOKENS, t, largest + t, sum + t);
    if (y) product(false, false, n, a->size, n, 1.0f, scores, FEW_TOKENS, v, a->k_step, 0.0f, y, a->q_step);
    for (int64_t t = 0; lse && t < n; t++) lse[t] = largest[t] + logf(sum[t]);
}

/* Scores and the gradients of probabilities to probabilities and the gradients of scores. */
static inline void few_gradient(float *row, float *gradient, int32_t last, float lse)
{
    vf p[FEW_VECTORS], d[FEW_VECTORS], all = {0}, under = {0};
    for (int v = 0; v < FEW_VECTORS; v++) {
        vi seen = seen_keys(v, last);
        p[v] = softmax_exp(vselect(seen, vload(row + v * LANES) - lse, vset(-INFINITY)));
        d[v] = vselect(seen, vload(gradient + v * LANES), vset(0.0f));
        all += p[v];
        under += p[v] * d[v];
    }
    float sum = vsum(all), mean = sum > 0.0f ? vsum(under) / sum : 0.0f;
    for (int v = 0; v < FEW_VECTORS; v++) {
        vstore(row + v * LANES, p[v]);
        /* A softmax over one key is constant: Adam would turn its rounding noise into movement. */
        vstore(gradient + v * LANES, last > 0 ? p[v] * (d[v] - mean) : vset(0.0f));
    }
}

static void attend_gradient(const trd__few_tokens *a, const float *q, const float *k, const float *v,
                            const float *lse, const float *dy, bool more, float *dq, float *dk, float *dv)
{
    float p[FEW_TOKENS * FEW_TOKENS], ds[FEW_TOKENS * FEW_TOKENS], beta = more ? 1.0f : 0.0f;
    int64_t n = a->tokens, width = a->size;
    product(false, true, n, n, width, a->scale, q, a->q_step, k, a->k_step, 0.0f, p, FEW_TOKENS);
    product(false, true, n, n, width, 1.0f, dy, a->q_step, v, a->k_step, 0.0f, ds, FEW_TOKENS);
    for (int t = 0; t < n; t++) few_gradient(p + t * FEW_TOKENS, ds + t * FEW_TOKENS, t, lse[t]);
    if (dq) product(false, false, n, width, n, a->scale, ds, FEW_TOKENS, k, a->k_step, 0.0f, dq, a->q_step);
    if (dk) product(true, false, n, width, n, a->scale, ds, FEW_TOKENS, q, a->q_step, beta, dk, a->k_step);
    if (dv) product(true, false, n, width, n, 1.0f, p, FEW_TOKENS, dy, a->q_step, beta, dv, a->k_step);
}
