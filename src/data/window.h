/* The samples of one epoch that the packer may choose from: at most `capacity` at a time, refilled in epoch
 * order. Invariant: within one length samples leave in the order they came, so taking the oldest of all or
 * the oldest of a length always takes the head of a list. */
#ifndef TRD_DATA_WINDOW_H
#define TRD_DATA_WINDOW_H

#include "data/packer.h"

typedef struct trd__window trd__window;

trd_status trd__window_create(const trd__packer_options *options, trd__window **window);
void trd__window_free(trd__window *window); /* NULL is fine */

/* Starts an epoch: orders its samples and fills the window. */
void trd__window_start(trd__window *window, uint64_t epoch);

bool trd__window_empty(const trd__window *window); /* the epoch has no sample left */

/* Take one sample out and refill. False: none there, or none of at most room tokens. */
bool trd__window_take_oldest(trd__window *window, uint64_t *sample);
bool trd__window_take_longest(trd__window *window, uint32_t room, uint64_t *sample);

#endif
