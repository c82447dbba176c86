/* Filling a set of parameters, one tensor at a time, for the engine and for generation. */
#ifndef TRD_ENGINE_PARAMS_H
#define TRD_ENGINE_PARAMS_H

#include "backend/backend.h"
#include "engine/origin.h"
#include "nn/model.h"

/* Makes parameter i in out, as its entry of the set says. */
typedef trd_status (*trd__params_make)(void *context, int i, void *out);
trd_status trd__params_fill_with(trd__backend *backend, trd__set *set, trd__params_make make, void *context);

/* Fills the set, whose entry i is the model's parameter i in any dtype, from files, once every name and shape
 * has been checked: TRD_NOT_FOUND lists what is missing or not the model's, TRD_SHAPE names the tensor. The
 * caller adds which files they are. */
trd_status trd__params_fill(trd__backend *backend, trd__set *set, const trd_model *model,
                            const trd__origin *origin);

#endif
