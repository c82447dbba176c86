/* Filling a set of parameters, one tensor at a time, for the engine and for generation. */
#ifndef TRD_ENGINE_PARAMS_H
#define TRD_ENGINE_PARAMS_H

#include "backend/backend.h"
#include "engine/origin.h"
#include "nn/model.h"

/* Makes parameter i of the model in out. */
typedef trd_status (*trd__params_make)(void *context, int i, trd_dtype dtype, void *out);
/* Fills the set, whose entry i is the model's stack i in any dtype. */
trd_status trd__params_fill_with(trd__backend *backend, trd__set *set, const trd_model *model,
                                 trd__params_make make, void *context);

/* The same from files, once every name and shape
 * has been checked: TRD_NOT_FOUND lists what is missing or not the model's, TRD_SHAPE names the tensor. The
 * caller adds which files they are. */
trd_status trd__params_fill(trd__backend *backend, trd__set *set, const trd_model *model,
                            const trd__origin *origin);

#endif
