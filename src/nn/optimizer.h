/* What an optimizer file provides: the states it keeps of a parameter and the graph of one update. The engine
 * lays its optimizer set out and builds the update program from it; optimizers.def lists them. */
#ifndef TRD_NN_OPTIMIZER_H
#define TRD_NN_OPTIMIZER_H

#include <treadle/optim.h>

#include "nn/model.h"

/* The most states of one parameter, and the most prepared scalars. */
enum { TRD__OPTIMIZER_STATES = 3, TRD__OPTIMIZER_SCALARS = 6 };

/* One state of one parameter. Different parameters of a model may have different ones. */
typedef struct trd__optimizer_state {
    const char *name; /* "mu": its entry is called "<parameter>.mu" */
    trd_dtype dtype;
    trd_shape shape;
    const char *axes[TRD_MAX_RANK]; /* logical names */
} trd__optimizer_state;

/* Scalars of one update, f32 graph values shared by all parameters. */
typedef struct trd__update_scalars {
    trd_value learning_rate;                    /* f32 */
    trd_value count;                            /* f32: updates applied including this one, from 1 */
    trd_value prepared[TRD__OPTIMIZER_SCALARS]; /* what prepare made of them (bias corrections) */
} trd__update_scalars;

/* The update of one parameter: what goes in and, from new_parameter on, what comes out. */
typedef struct trd__parameter_update {
    const trd__parameter *info;
    double decay; /* weight decay, 0 when masked */
    trd_value parameter;
    trd_value gradient; /* clipped; f32, the parameter's shape */
    trd_value states[TRD__OPTIMIZER_STATES];
    trd_value new_parameter;
    trd_value new_states[TRD__OPTIMIZER_STATES];
} trd__parameter_update;

typedef struct trd__optimizer_type {
    const char *name; /* opt_type */
    /* Describes the states of p and returns their number. NULL: there are none. */
    int (*states)(const trd_optimizer_options *options, const trd__parameter *p,
                  trd__optimizer_state *states);
    trd_status (*check)(const trd_optimizer_options *options); /* ranges; may be NULL */
    /* Weight decay of p before the mask. NULL: it knows none. */
    double (*decay)(const trd_optimizer_options *options, const trd__parameter *p);
    /* Whether the update of p makes each element from its own alone, so that the parameters of a stack may be
     * updated as one. NULL: it always does. */
    bool (*elementwise)(const trd_optimizer_options *options, const trd__parameter *p);
    void (*prepare)(trd_builder *b, const trd_optimizer_options *options,
                    trd__update_scalars *scalars); /* may be NULL */
    void (*update)(trd_builder *b, const trd_optimizer_options *options, const trd__update_scalars *scalars,
                   trd__parameter_update *u);
} trd__optimizer_type;

/* By name; an unknown one lists the known. */
trd_status trd__optimizer_find(const char *name, const trd__optimizer_type **type);
/* A state of the parameter's own shape. */
trd__optimizer_state trd__optimizer_state_like(const trd__parameter *p, const char *name, trd_dtype dtype);
/* Decay of each stack of the model in decays[stack_count] after the mask. A bad pattern is an error, and so
 * is a mask that tells stacked layers apart. */
trd_status trd__optimizer_decays(const trd__optimizer_type *type, const trd_optimizer_options *options,
                                 const trd_model *model, double *decays);

/* What several optimizers are made of. */
trd_value trd__optimizer_f32(trd_builder *b, double value);
/* beta * moment + (1 - beta) * x */
trd_value trd__optimizer_moment(trd_builder *b, trd_value moment, double beta, trd_value x);
/* 1 / (1 - beta^(count + ahead)), computed in f64 */
trd_value trd__optimizer_correction(trd_builder *b, double beta, trd_value count, double ahead);
/* new_parameter = parameter - rate * (step + decay * parameter), in f32 */
void trd__optimizer_step(trd_builder *b, trd_value rate, trd_value step, trd__parameter_update *u);
/* An error unless least <= value < below; NaN is in no range. */
trd_status trd__optimizer_check(const char *key, double value, double least, double below);

#endif
