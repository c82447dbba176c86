/* Sampling. Invariants: the same logits, options, stream and place give the same token on every machine that
 * rounds exp alike; ties go to the lower id; at least one token is always left to choose from. */
#include "generate/sample.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "base/status.h"

typedef struct candidate {
    float logit;
    int32_t id;
    double weight; /* e^((logit - largest) / temperature): the probability but for one factor */
} candidate;

_Static_assert(sizeof(candidate) == TRD__CANDIDATE_BYTES, "the scratch that generator.h books");

trd_status trd__sampling_check(const trd_sampling *s)
{
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return trd__fail(TRD_INVALID_ARGUMENT, "sampling: temperature expected 0 (greedy) or more, found %g",
                         s->temperature);
    if (s->top_k < 0)
        return trd__fail(TRD_INVALID_ARGUMENT, "sampling: top_k expected 0 (off) or more, found %lld",
                         (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "sampling: top_p expected more than 0 and at most 1 (off), found %g", s->top_p);
    return TRD_OK;
}

static trd_status find_largest(const float *logits, int64_t vocab, int32_t *token)
{
    int64_t best = 0;
    bool numbers = true;
    for (int64_t i = 0; i < vocab; i++) {
        if (logits[i] > logits[best]) best = i;
        numbers = numbers && !isnan(logits[i]);
    }
    if (!numbers || isinf(logits[best]))
        return trd__fail(TRD_INTERNAL, "sampling: expected finite logits, found %s; are the weights damaged?",
                         numbers ? "an infinity" : "NaN");
    *token = (int32_t)best;
    return TRD_OK;
}

/* More likely first. */
static int compare(const void *x, const void *y)
{
    const candidate *a = x, *b = y;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static void sift_down(candidate *heap, int64_t count, int64_t at)
{
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && compare(&heap[child + 1], &heap[child]) > 0) child++;
        if (compare(&heap[at], &heap[child]) >= 0) return;
        candidate swapped = heap[at];
        heap[at] = heap[child];
        heap[child] = swapped;
    }
}

/* The k most likely of logits, all of them in order of id or fewer in none: a heap with the least likely of
 * them on top. */
static int64_t take_top_k(const float *logits, int64_t vocab, int64_t k, candidate *heap)
{
    int64_t count = k < vocab ? k : vocab;
    for (int64_t i = 0; i < count; i++) heap[i] = (candidate){.logit = logits[i], .id = (int32_t)i};
    if (count == vocab) return count;
    for (int64_t i = count / 2 - 1; i >= 0; i--) sift_down(heap, count, i);
    for (int64_t i = count; i < vocab; i++) {
        if (!(logits[i] > heap[0].logit)) continue; /* of equal ones the lower id stays */
        heap[0] = (candidate){.logit = logits[i], .id = (int32_t)i};
        sift_down(heap, count, 0);
    }
    return count;
}

static double weigh(candidate *candidates, int64_t count, double largest, double temperature)
{
    double total = 0;
    for (int64_t i = 0; i < count; i++) {
        candidates[i].weight = exp(((double)candidates[i].logit - largest) / temperature);
        total += candidates[i].weight;
    }
    return total;
}

/* Keeps the shortest front, most likely first, that reaches top_p; *total becomes its weight. All tokens
 * whose share is below (1 - top_p) / count sum to less than 1 - top_p, so none of them is needed and only the
 * others are sorted. */
static int64_t take_top_p(candidate *candidates, int64_t count, double top_p, double *total)
{
    double least = (1 - top_p) / (double)count * *total, goal = top_p * *total, sum = 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (candidates[i].weight >= least) candidates[kept++] = candidates[i];
    qsort(candidates, (size_t)kept, sizeof *candidates, compare);
    for (int64_t i = 0; i < kept; i++) {
        sum += candidates[i].weight;
        if (sum < goal) continue;
        kept = i + 1;
        break;
    }
    *total = sum;
    return kept;
}

trd_status trd__sample(const trd_sampling *s, const float *logits, int64_t vocab, uint64_t stream,
                       uint64_t at, void *scratch, int32_t *token)
{
    candidate *candidates = scratch;
    TRD_TRY(find_largest(logits, vocab, token));
    if (s->temperature == 0 || s->top_k == 1) return TRD_OK;
    int64_t count = take_top_k(logits, vocab, s->top_k ? s->top_k : vocab, candidates);
    /* One order whatever top_k left, so that a draw does not depend on the heap. */
    if (s->top_k && s->top_k < vocab) qsort(candidates, (size_t)count, sizeof *candidates, compare);
    double total = weigh(candidates, count, (double)logits[*token], s->temperature);
    if (s->top_p < 1) count = take_top_p(candidates, count, s->top_p, &total);
    double left = trd__rng_uniform(s->seed, stream, at) * total;
    int64_t i = 0;
    for (; i + 1 < count; i++) {
        left -= candidates[i].weight;
        if (left < 0) break;
    }
    *token = candidates[i].id;
    return TRD_OK;
}
