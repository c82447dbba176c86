/* See visit.h. */
#include "engine/visit.h"

#include "engine/internal.h"

trd_status trd__visit_programs(const trd_engine_options *options, trd__program_visitor visit, void *user)
{
    const trd_batch batch = {.rows = options->rows, .length = options->length};
    trd_engine *engine;
    trd__family *family;
    TRD_TRY(trd__engine_create_bare(options, &engine));
    engine->visit = visit;
    engine->visit_user = user;
    trd_status status = trd__family_find(engine, &batch, &family);
    if (status == TRD_OK) status = trd__family_compile(engine, family);
    trd__engine_destroy_bare(engine);
    return status;
}
