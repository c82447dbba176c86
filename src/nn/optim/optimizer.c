/* The list of optimizers, and which parameters decay. */
#include "nn/optimizer.h"

#include <string.h>

#include "base/regex.h"

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

/* No decay where pattern is found in a parameter's name. */
static trd_status apply_mask(const char *pattern, const trd_model *model, double *decays)
{
    pcre2_code *regex;
    pcre2_match_data *match = NULL;
    TRD_TRY(trd__regex_compile(pattern, 0, TRD_INVALID_ARGUMENT, "adamw_mask", &regex));
    trd_status status = trd__regex_match_data(regex, &match);
    for (int i = 0; !status && i < model->parameter_count; i++) {
        bool found;
        status = trd__regex_find(regex, match, model->parameters[i].name, &found);
        if (!status && found) decays[i] = 0;
    }
    pcre2_match_data_free(match);
    pcre2_code_free(regex);
    return status;
}

trd_status trd__optimizer_decays(const trd_optimizer_options *options, const trd_model *model, double *decays)
{
    for (int i = 0; i < model->parameter_count; i++) decays[i] = options->weight_decay;
    for (int i = 0; i < options->mask_count; i++) TRD_TRY(apply_mask(options->mask[i], model, decays));
    return TRD_OK;
}
