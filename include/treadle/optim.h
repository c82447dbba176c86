/* Optimizers and learning-rate schedules. An optimizer is graph: plain ops per parameter that the backend
 * fuses into one pass over memory. Config keys in comments are MaxText's. */
#ifndef TREADLE_OPTIM_H
#define TREADLE_OPTIM_H

#include <treadle/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An optimizer by name and its numbers; those it does not know are ignored. */
typedef struct trd_optimizer_options {
    const char *type;        /* opt_type: "adamw", "sgd" */
    double b1;               /* adam_b1: decay of the first moment */
    double b2;               /* adam_b2: decay of the second */
    double eps;              /* adam_eps: added to the second moment's root */
    double weight_decay;     /* adam_weight_decay */
    const char *const *mask; /* adamw_mask: regular expressions over hub names; a match gets no decay */
    int mask_count;          /* of mask */
    trd_dtype mu_dtype;      /* mu_dtype: dtype of the first moment; the second is float32 */
} trd_optimizer_options;

/* The learning rate's course after its warm-up. */
typedef enum trd_schedule_type {
    TRD_SCHEDULE_CONSTANT, /* holds */
    TRD_SCHEDULE_COSINE,   /* falls along a half cosine */
    TRD_SCHEDULE_WSD       /* holds, then decays at the end (warm-up, stable, decay) */
} trd_schedule_type;
/* How wsd decays. */
typedef enum trd_decay_style {
    TRD_DECAY_LINEAR, /* a straight line */
    TRD_DECAY_COSINE  /* a half cosine */
} trd_decay_style;

/* Learning rate as a function of the step (from 0). Warm-up rises linearly from 0 over warmup_steps_fraction
 * of schedule_steps; cosine then falls to learning_rate * final_fraction; wsd holds, then decays over the
 * last decay_steps_fraction in decay_style. Past schedule_steps the final value holds. */
typedef struct trd_schedule_options {
    trd_schedule_type type;       /* lr_schedule_type */
    double learning_rate;         /* the peak */
    double warmup_steps_fraction; /* share of schedule_steps */
    double final_fraction;        /* learning_rate_final_fraction */
    double decay_steps_fraction;  /* wsd_decay_steps_fraction */
    trd_decay_style decay_style;  /* wsd_decay_style */
    int64_t schedule_steps;       /* learning_rate_schedule_steps; the run's steps when the key is -1 */
} trd_schedule_options;

/* The learning rate of a step, from 0. */
TRD_API double trd_schedule_value(const trd_schedule_options *options, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
