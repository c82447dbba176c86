/* How the workers of a call share a range of rows, columns or units when cores are not equally fast at every
 * moment: each has one part of its own, most of its share, and the rest lies in small parts that whoever is
 * done first takes. A range of few units for each worker is cut into equal parts alone.
 *
 * Invariant: the parts are a function of the range and the number of workers. Who computes one is a matter of
 * time, so what is summed over a part belongs to the part, not to the worker. */
#ifndef TRD_BACKEND_CPU_DEAL_H
#define TRD_BACKEND_CPU_DEAL_H

#include "backend/cpu/kernel.h"

typedef struct trd__deal {
    int64_t total, grain;
    int64_t own; /* of the total: what the workers' own parts cover */
    int workers, small;
} trd__deal;

/* Parts begin at multiples of grain. small: the number of small parts, 0 for equal parts alone. They are a
 * TRD__DEAL_SHARE-th of the range, and what the workers' parts leave when these are whole units. */
enum { TRD__DEAL_SHARE = 16 };
trd__deal trd__deal_of(int64_t total, int64_t grain, int workers, int small);

static inline int trd__deal_parts(const trd__deal *deal)
{
    return deal->workers + deal->small;
}

/* Part w < workers is worker w's own. A part may be empty. */
void trd__deal_part(const trd__deal *deal, int part, int64_t *begin, int64_t *end);

/* The part a worker goes on with; there is none when it is not below trd__deal_parts. */
static inline int trd__deal_next(const trd__deal *deal, const trd__cpu_call *call)
{
    int64_t taken = deal->small ? trd__cpu_take(call) : 0;
    return taken < deal->small ? deal->workers + (int)taken : trd__deal_parts(deal);
}

#endif
