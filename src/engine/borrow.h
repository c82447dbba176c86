/* What generation shares with an engine: model, backend and the parameters' set, without a copy. */
#ifndef TRD_ENGINE_BORROW_H
#define TRD_ENGINE_BORROW_H

#include <treadle/engine.h>

#include "backend/backend.h"

/* All of it stays the engine's and lives as long as the engine does. */
typedef struct trd__borrowed {
    const trd_model *model;
    trd__backend *backend;
    trd__set *params; /* one entry a stack of the model; only ever read by a borrower */
    trd_dtype weight_dtype;
} trd__borrowed;

/* Fails with the engine's sticky or deferred error. Runs that the borrower queues follow those of the engine
 * in order. */
trd_status trd__engine_borrow(trd_engine *engine, trd__borrowed *borrowed);

#endif
