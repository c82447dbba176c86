/* Lending the parameters out. Invariant: the parameters' set is made once and updated in place, so a
 * borrower's handle stays good for as long as the engine. */
#include "engine/borrow.h"

#include "engine/internal.h"

trd_status trd__engine_borrow(trd_engine *engine, trd__borrowed *borrowed)
{
    TRD_TRY(trd__engine_check(engine));
    *borrowed = (trd__borrowed){.model = engine->model,
                                .backend = engine->backend,
                                .params = engine->state[TRD__ROLE_PARAMS],
                                .weight_dtype = engine->options.weight_dtype};
    return TRD_OK;
}
