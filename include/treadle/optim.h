/* Optimizers and learning-rate schedules. An optimizer is graph: plain ops per parameter that the backend
 * fuses into one pass over memory. Config keys in comments are MaxText's. */
#ifndef TREADLE_OPTIM_H
#define TREADLE_OPTIM_H

#include <treadle/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The updates of the products' weights are orthogonalized by Newton-Schulz iterations; embeddings, head and
 * vectors are AdamW's. */
typedef struct trd_muon_options {
    double beta;           /* muon_beta: decay of the momentum */
    double weight_decay;   /* muon_weight_decay: of those weights */
    double consistent_rms; /* muon_consistent_rms: root mean square of an update; 0: scaled by the width */
} trd_muon_options;

/* Row and column means of the squared gradients stand for a matrix's second moment. */
typedef struct trd_adafactor_options {
    double decay_rate;          /* adafactor_decay_rate: the second moment decays by 1 - t^-decay_rate */
    double clipping_threshold;  /* adafactor_clipping_threshold: of an update's root mean square; 0: off */
    double eps;                 /* adafactor_eps: added to squared gradients */
    int min_dim_size_to_factor; /* adafactor_min_dim_size_to_factor: smaller matrices keep a full moment */
    bool scale_by_parameter; /* adafactor_multiply_by_parameter_scale: steps are relative to the parameter */
    double weight_decay;     /* adafactor_weight_decay: multiplied by the learning rate, as the others */
} trd_adafactor_options;

/* An optimizer by name and its numbers; those it does not know are ignored. */
typedef struct trd_optimizer_options {
    const char *type;        /* opt_type: "adamw", "adam_pax", "adafactor", "muon", "sgd" */
    double b1;               /* adam_b1: decay of the first moment */
    double b2;               /* adam_b2: decay of the second */
    double eps;              /* adam_eps: added to the second moment's root */
    double eps_root;         /* adam_eps_root: added inside the root */
    double weight_decay;     /* adam_weight_decay: of adamw, adam_pax, and what muon leaves to AdamW */
    const char *const *mask; /* adamw_mask: regular expressions over hub names; a match gets no decay */
    int mask_count;          /* of mask */
    trd_dtype mu_dtype;      /* mu_dtype: dtype of the first moment; the second is float32 */
    trd_muon_options muon;   /* of "muon" */
    trd_adafactor_options adafactor; /* of "adafactor" */
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
