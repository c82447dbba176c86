/* The parts of a range: see deal.h. */
#include "backend/cpu/deal.h"

trd__deal trd__deal_of(int64_t total, int64_t grain, int workers, int small)
{
    trd__deal deal = {.total = total, .grain = grain, .own = total, .workers = workers};
    if (workers == 1 || small == 0) return deal;
    int64_t units = (total + grain - 1) / grain;
    int64_t own = (units - units / TRD__DEAL_SHARE) / workers * workers;
    if (own * 8 < units * 7) return deal; /* too much would be left for the small parts */
    deal.own = own * grain < total ? own * grain : total;
    deal.small = small;
    return deal;
}

void trd__deal_part(const trd__deal *deal, int part, int64_t *begin, int64_t *end)
{
    if (part < deal->workers) {
        trd__partition(part, deal->workers, deal->own, deal->grain, begin, end);
        return;
    }
    trd__partition(part - deal->workers, deal->small, deal->total - deal->own, deal->grain, begin, end);
    *begin += deal->own;
    *end += deal->own;
}
