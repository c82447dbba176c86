/* What the files of repeat share. */
#ifndef TRD_OPS_REPEAT_PARTS_H
#define TRD_OPS_REPEAT_PARTS_H

#include "graph/program.h"

/* The hooks of the descriptor. */
void trd__repeat_gradient(trd_builder *b, const trd_node *n, trd__differentiate *differentiate,
                          const trd_value *dy, const bool *needs, trd_value *results, trd_value *dx);
bool trd__repeat_accumulate(trd_builder *b, const trd_node *n, int result, trd_value accumulator,
                            trd_value *results);
/* Replaces body by one in which nothing is computed from shared operands alone: that is done in b, before the
 * loop, and read as further shared operands. shared has room for TRD__MAX_INPUTS. On failure b's error is
 * set; body stays the caller's either way. */
void trd__repeat_move_invariant(trd_builder *b, trd__program **body, trd_value *shared, int *shared_count);

#endif
