/* What AdamW, adam_pax and muon's share of AdamW have in common: two moments, the ranges of their keys, and
 * the step made of corrected moments. */
#ifndef TRD_NN_OPTIM_ADAM_H
#define TRD_NN_OPTIM_ADAM_H

#include "nn/optimizer.h"

enum { TRD__ADAM_MU, TRD__ADAM_NU, TRD__ADAM_STATES };

int trd__adam_states(const trd_optimizer_options *o, const trd__parameter *p, trd__optimizer_state *states);
trd_status trd__adam_check(const trd_optimizer_options *o);
double trd__adam_decay(const trd_optimizer_options *o, const trd__parameter *p);
/* mu / (sqrt(nu + eps_root) + eps) */
trd_value trd__adam_step(trd_builder *b, const trd_optimizer_options *o, trd_value mu, trd_value nu);

#endif
