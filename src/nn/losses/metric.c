/* Weighted metrics: a sum and the denominator that divides it once. */
#include <treadle/loss.h>

#include "graph/node.h"

double trd_compute_scale(double denominator, double eps, double min_denom)
{
    double d = denominator + eps;
    if (min_denom != 0 && d < min_denom) d = min_denom;
    return d == 0 ? 0 : 1 / d;
}

trd_value trd_weighted_scale(trd_builder *b, trd_value denominator, double eps, double min_denom)
{
    trd_value d = trd_value_dtype(denominator) == TRD_F64 ? denominator : trd_cast(b, denominator, TRD_F64);
    trd_value zero = trd_scalar(b, TRD_F64, 0), one = trd_scalar(b, TRD_F64, 1);
    if (eps != 0) d = trd_add(b, d, trd_scalar(b, TRD_F64, eps));
    if (min_denom != 0) d = trd_max(b, d, trd_scalar(b, TRD_F64, min_denom));
    trd_value empty = trd_equal(b, d, zero);
    return trd_select(b, empty, zero, trd_div(b, one, trd_select(b, empty, one, d)));
}

trd_weighted_metric trd_weighted(trd_value unreduced_sum, trd_value denominator)
{
    return (trd_weighted_metric){.unreduced_sum = unreduced_sum, .denominator = denominator};
}

trd_weighted_metric trd_loss_mean(trd_builder *b, trd_value x)
{
    return trd_weighted(x, trd_scalar(b, TRD_F32, 1));
}

trd_loss_output trd_loss(trd_weighted_metric primary_loss)
{
    return (trd_loss_output){.primary_loss = primary_loss};
}

void trd_loss_add_metric(trd_builder *b, trd_loss_output *output, const char *name, trd_weighted_metric value)
{
    if (output->aux_count == TRD_MAX_AUX) {
        trd_builder_fail(b, TRD_INVALID_ARGUMENT, "loss: more than %d aux metrics (at \"%s\")", TRD_MAX_AUX,
                         name);
        return;
    }
    output->aux_metrics[output->aux_count++] = (trd_aux_metric){name, value};
}
