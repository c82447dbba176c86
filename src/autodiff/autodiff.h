/* Reverse-mode differentiation over descriptors and builders. Contributions to a requested gradient are
 * chained into its accumulator in a fixed order: acc -> first contribution -> second, never a sum first. */
#ifndef TRD_AUTODIFF_AUTODIFF_H
#define TRD_AUTODIFF_AUTODIFF_H

#include "graph/node.h"

typedef struct trd__gradient {
    trd_value of;          /* value to differentiate by (usually a parameter leaf) */
    trd_value accumulator; /* what contributions are added to: an input entry, or a constant 0 ("first") */
    trd_value
        result; /* out: the accumulator after all contributions (accumulator itself when there are none) */
} trd__gradient;

/* Differentiates the scalar loss. replaced: values whose node was merged with its gradient; callers that hold
 * forward values map them through trd__autodiff_current afterwards. */
trd_status trd__autodiff(trd_builder *b, trd_value loss, trd__gradient *gradients, int count);
/* The value that stands for v after merges (v itself when untouched). */
trd_value trd__autodiff_current(const trd_builder *b, trd_value v);

#endif
