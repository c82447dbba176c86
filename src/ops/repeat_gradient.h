/* The gradient of repeat, and accumulators inside it; see repeat_gradient.c. */
#ifndef TRD_OPS_REPEAT_GRADIENT_H
#define TRD_OPS_REPEAT_GRADIENT_H

#include "graph/node.h"

void trd__repeat_gradient(trd_builder *b, const trd_node *n, trd__differentiate *differentiate,
                          const trd_value *dy, const bool *needs, trd_value *results, trd_value *dx);
bool trd__repeat_accumulate(trd_builder *b, const trd_node *n, int result, trd_value accumulator,
                            trd_value *results);

#endif
