/* Losses: functions that build graph from a model and a batch and return weighted metrics. They are traced
 * when the engine compiles; nothing of them runs per step. */
#ifndef TREADLE_LOSS_H
#define TREADLE_LOSS_H

#include <treadle/model.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TRD_MAX_AUX = 32 }; /* most aux metrics of one loss */

/* A sum with the denominator it is divided by only once all of it has been summed. */
typedef struct trd_weighted_metric {
    trd_value unreduced_sum; /* scalar, f32 or f64 */
    trd_value denominator;   /* scalar, f32 or f64 */
    double eps;              /* added to the denominator when not 0 */
    double min_denom;        /* lower bound of it when not 0 */
} trd_weighted_metric;

/* scale: d = denominator (+ eps) (max min_denom); 0 when d is 0, else 1 / d. Never NaN from an empty batch.
 */
TRD_API double trd_compute_scale(double denominator, double eps, double min_denom);
/* The same as graph, in f64. */
TRD_API trd_value trd_weighted_scale(trd_builder *b, trd_value denominator, double eps, double min_denom);

/* A metric recorded beside the loss. */
typedef struct trd_aux_metric {
    const char *name;          /* UTF-8, nested names joined with '/', none that every step has ("loss", ...);
                                  must outlive the call that traces the loss */
    trd_weighted_metric value; /* aggregated like the loss */
} trd_aux_metric;

/* What a loss returns. */
typedef struct trd_loss_output {
    trd_weighted_metric primary_loss;        /* its unreduced sum is differentiated */
    trd_aux_metric aux_metrics[TRD_MAX_AUX]; /* recorded only */
    int aux_count;                           /* of aux_metrics */
} trd_loss_output;

/* A loss: builds graph from the model and the payload. A mistake in it fails the builder, and with it the
 * call that compiles; so does a result without a weighted metric. */
typedef trd_loss_output (*trd_loss_function)(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                             void *user);

/* A weighted metric without eps and min_denom. */
TRD_API trd_weighted_metric trd_weighted(trd_value unreduced_sum, trd_value denominator);
TRD_API trd_weighted_metric trd_loss_mean(trd_builder *b, trd_value x); /* scalar with denominator 1 */
/* A loss output without aux metrics. */
TRD_API trd_loss_output trd_loss(trd_weighted_metric primary_loss);
/* Adds an aux metric; more than TRD_MAX_AUX fails the builder. */
TRD_API void trd_loss_add_metric(trd_builder *b, trd_loss_output *output, const char *name,
                                 trd_weighted_metric value);

/* Options of trd_loss_sft. */
typedef struct trd_sft_options {
    double z_loss_multiplier; /* of the squared log-sum-exp of the logits; 0: off, and nothing is computed */
} trd_sft_options;
/* Supervised fine-tuning: negative log-likelihood of the weighted tokens; user: const trd_sft_options * or
 * NULL. */
TRD_API trd_loss_output trd_loss_sft(trd_builder *b, const trd_model *model, const trd_inputs *in,
                                     void *user);

#ifdef __cplusplus
}
#endif
#endif
