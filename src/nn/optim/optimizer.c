/* The list of optimizers, what several of them are made of, and which parameters decay. */
#include "nn/optimizer.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

#define TRD_OPTIMIZER(file) extern const trd__optimizer_type trd__optimizer_##file;
#include "nn/optim/optimizers.def"
#undef TRD_OPTIMIZER

static const trd__optimizer_type *const optimizers[] = {
#define TRD_OPTIMIZER(file) &trd__optimizer_##file,
#include "nn/optim/optimizers.def"
#undef TRD_OPTIMIZER
};

trd_status trd__optimizer_find(const char *name, const trd__optimizer_type **type)
{
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++)
        if (strcmp(optimizers[i]->name, name) == 0) {
            *type = optimizers[i];
            return TRD_OK;
        }
#define TRD_OPTIMIZER(file) " " #file
    return trd__fail(TRD_INVALID_ARGUMENT, "opt_type: \"%s\" is unknown; known:"
#include "nn/optim/optimizers.def"
                     ,
                     name);
#undef TRD_OPTIMIZER
}

trd__optimizer_state trd__optimizer_state_like(const trd__parameter *p, const char *name, trd_dtype dtype)
{
    trd__optimizer_state state = {.name = name, .dtype = dtype, .shape = p->shape};
    for (int axis = 0; axis < p->shape.rank; axis++) state.axes[axis] = p->axes[axis];
    return state;
}

trd_value trd__optimizer_f32(trd_builder *b, double value)
{
    return trd_scalar(b, TRD_F32, value);
}

trd_value trd__optimizer_moment(trd_builder *b, trd_value moment, double beta, trd_value x)
{
    return trd_add(b, trd_mul(b, moment, trd__optimizer_f32(b, beta)),
                   trd_mul(b, x, trd__optimizer_f32(b, 1 - beta)));
}

trd_value trd__optimizer_correction(trd_builder *b, double beta, trd_value count, double ahead)
{
    trd_value t = trd_cast(b, count, TRD_F64), one = trd_scalar(b, TRD_F64, 1);
    if (ahead != 0) t = trd_add(b, t, trd_scalar(b, TRD_F64, ahead));
    trd_value power = trd_pow(b, trd_scalar(b, TRD_F64, beta), t);
    return trd_cast(b, trd_div(b, one, trd_sub(b, one, power)), TRD_F32);
}

void trd__optimizer_step(trd_builder *b, trd_value rate, trd_value step, trd__parameter_update *u)
{
    trd_value p = trd_cast(b, u->parameter, TRD_F32);
    if (u->decay != 0) step = trd_add(b, step, trd_mul(b, p, trd__optimizer_f32(b, u->decay)));
    p = trd_sub(b, p, trd_mul(b, step, rate));
    u->new_parameter = trd_cast(b, p, trd_value_dtype(u->parameter));
}

trd_status trd__optimizer_check(const char *key, double value, double least, double below)
{
    if (value >= least && value < below) return TRD_OK;
    if (isinf(below))
        return trd__fail(TRD_INVALID_ARGUMENT, "%s: expected a number of at least %g, found %g", key, least,
                         value);
    return trd__fail(TRD_INVALID_ARGUMENT, "%s: expected at least %g and less than %g, found %g", key, least,
                     below, value);
}

trd_status trd__optimizer_decays(const trd__optimizer_type *type, const trd_optimizer_options *options,
                                 const trd_model *model, double *decays)
{
    int count = model->parameter_count;
    bool *spared = trd__calloc(2 * (size_t)count + 1, sizeof *spared), *matched = spared + count;
    if (!spared) return TRD_NO_MEMORY;
    trd_status status = TRD_OK;
    for (int m = 0; !status && m < options->mask_count; m++) {
        status = trd__model_match(model, "adamw_mask", options->mask[m], matched);
        for (int i = 0; !status && i < count; i++) spared[i] = spared[i] || matched[i];
    }
    if (!status) status = trd__model_by_stack(model, "adamw_mask", spared, matched);
    for (int i = 0; !status && i < model->stack_count; i++)
        decays[i] = type->decay && !matched[i] ? type->decay(options, &model->stacks[i].one) : 0;
    trd__free(spared);
    return status;
}
