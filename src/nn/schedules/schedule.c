/* Learning-rate schedules as formulas; a table row per type. */
#include <math.h>

#include <treadle/optim.h>

static const double pi = 3.14159265358979323846;

static double ease(trd_decay_style style, double progress)
{
    return style == TRD_DECAY_COSINE ? 0.5 * (1 + cos(pi * progress)) : 1 - progress;
}

/* Each takes progress through the time after warm-up, 0 to 1, and gives the share of the learning rate. */
static double constant(const trd_schedule_options *o, double progress)
{
    (void)o;
    (void)progress;
    return 1;
}

static double cosine(const trd_schedule_options *o, double progress)
{
    return o->final_fraction + (1 - o->final_fraction) * ease(TRD_DECAY_COSINE, progress);
}

static double warmup_stable_decay(const trd_schedule_options *o, double progress)
{
    double rest = 1 - o->warmup_steps_fraction;
    double decay = rest > 0 ? o->decay_steps_fraction / rest : 1; /* share of the time after warm-up */
    if (decay > 1) decay = 1;
    if (progress < 1 - decay || decay <= 0) return 1;
    return o->final_fraction +
           (1 - o->final_fraction) * ease(o->decay_style, (progress - (1 - decay)) / decay);
}

static double (*const shapes[])(const trd_schedule_options *, double) = {
    [TRD_SCHEDULE_CONSTANT] = constant,
    [TRD_SCHEDULE_COSINE] = cosine,
    [TRD_SCHEDULE_WSD] = warmup_stable_decay,
};

double trd_schedule_value(const trd_schedule_options *o, int64_t step)
{
    double total = (double)o->schedule_steps, at = (double)step;
    double warmup = floor(total * o->warmup_steps_fraction);
    if (at < warmup) return o->learning_rate * at / warmup;
    double progress = total > warmup ? (at - warmup) / (total - warmup) : 1;
    if (progress > 1) progress = 1;
    return o->learning_rate * shapes[o->type](o, progress);
}
