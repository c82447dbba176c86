/* What an optimizer file provides: the state it keeps per parameter and the graph of one update. The engine
 * builds the update program from it; optimizers.def lists them. */
#ifndef TRD_NN_OPTIMIZER_H
#define TRD_NN_OPTIMIZER_H

#include <treadle/optim.h>

#include "nn/model.h"

enum { TRD__OPTIMIZER_STATES = 4 };

/* Scalars of one update, f32 graph values shared by all parameters. */
typedef struct trd__update_scalars {
    trd_value learning_rate;                   /* f32 */
    trd_value count;                           /* f32: updates applied including this one, from 1 */
    trd_value prepared[TRD__OPTIMIZER_STATES]; /* what prepare made of them (bias corrections) */
} trd__update_scalars;

typedef struct trd__optimizer_type {
    const char *name; /* opt_type */
    int state_count;
    const char *state_names[TRD__OPTIMIZER_STATES]; /* "mu", "nu": entry names are "<parameter>.<state>" */
    /* dtype of state number i, of the parameter's shape */
    trd_dtype (*state_dtype)(const trd_optimizer_options *options, int i);
    trd_status (*check)(const trd_optimizer_options *options); /* ranges; may be NULL */
    void (*prepare)(trd_builder *b, const trd_optimizer_options *options,
                    trd__update_scalars *scalars); /* may be NULL */
    /* New parameter and states from the old ones and the clipped gradient (f32, parameter's shape). decay:
     * this parameter's weight decay, 0 when masked. */
    void (*update)(trd_builder *b, const trd_optimizer_options *options, const trd__update_scalars *scalars,
                   double decay, trd_value parameter, trd_value gradient, const trd_value *states,
                   trd_value *new_parameter, trd_value *new_states);
} trd__optimizer_type;

/* By name; an unknown one lists the known. */
trd_status trd__optimizer_find(const char *name, const trd__optimizer_type **type);
/* Decay of each parameter of the model in decays[parameter_count] after the mask; a bad pattern is an error.
 */
trd_status trd__optimizer_decays(const trd_optimizer_options *options, const trd_model *model,
                                 double *decays);

#endif
