/* An engine whose numbers are all known: the toy of support/engine.h under the loss sum(p * x) / weight,
 * where x is an extra array of each parameter's name. So the gradient is x itself. */
#ifndef TRD_TESTS_SUPPORT_TOY_H
#define TRD_TESTS_SUPPORT_TOY_H

#include "support/engine.h"

enum { TOY_SIZE = 4 }; /* of every leaf */

/* What bounds the denominator; share: tokens that one unit of weight counts for, 0: one. */
typedef struct toy_bounds {
    double eps, min_denom;
    double share;
} toy_bounds;

trd_loss_output toy_loss(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user);
/* bounds (NULL: none) must outlive the engine. */
trd_engine *toy_engine(const trd_engine_options *options, const test_leaf *leaves, int count,
                       toy_bounds *bounds);
trd_engine *toy_of_one_leaf(const trd_engine_options *options, toy_bounds *bounds); /* "w" */
/* One micro-batch whose gradient is x (TOY_SIZE for each leaf) and whose weight is that of `weighted` tokens.
 */
trd_status toy_feed(trd_engine *engine, const float *x, int weighted);
trd_status toy_fuse(trd_engine *engine, const float *x, int weighted); /* and the update, by train_step */

#endif
