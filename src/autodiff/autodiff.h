/* Reverse-mode differentiation over descriptors and builders. Contributions to a requested gradient are
 * chained into its accumulator in a fixed order: acc -> first contribution -> second, never a sum first. */
#ifndef TRD_AUTODIFF_AUTODIFF_H
#define TRD_AUTODIFF_AUTODIFF_H

#include "graph/node.h"

/* Differentiates the scalar loss. replaced: values whose node was merged with its gradient; callers that hold
 * forward values map them through trd__autodiff_current afterwards. */
trd_status trd__autodiff(trd_builder *b, trd_value loss, trd__gradient *gradients, int count);
/* The same from several values of any shape, each with the cotangent to begin with. */
trd_status trd__autodiff_from(trd_builder *b, const trd__seed *seeds, int seed_count,
                              trd__gradient *gradients, int count);

#endif
