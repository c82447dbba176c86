/* The list of optimizers, and which parameters decay. */
#include "nn/optimizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

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
    int code;
    PCRE2_SIZE offset;
    pcre2_code *regex = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &code, &offset, NULL);
    if (!regex) {
        PCRE2_UCHAR reason[128];
        pcre2_get_error_message(code, reason, sizeof reason);
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "adamw_mask: the regular expression \"%s\" is wrong at character "
                         "%zu: %s",
                         pattern, (size_t)offset + 1, (const char *)reason);
    }
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    trd_status status = match ? TRD_OK : trd__fail(TRD_NO_MEMORY, "adamw_mask: out of memory");
    for (int i = 0; !status && i < model->parameter_count; i++) {
        const char *name = model->parameters[i].name;
        if (pcre2_match(regex, (PCRE2_SPTR)name, strlen(name), 0, 0, match, NULL) >= 0) decays[i] = 0;
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
