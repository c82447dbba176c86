/* The programs of a run for whoever wants to read them: handed over as a backend would get them, without
 * being compiled. */
#ifndef TRD_ENGINE_VISIT_H
#define TRD_ENGINE_VISIT_H

#include <treadle/engine.h>

#include "graph/sharding.h"

/* Looks at a program and the mesh it is for (NULL: one device), which die when it returns. A failure ends the
 * visits and is returned. */
typedef trd_status (*trd__program_visitor)(const trd__program *program, const trd__placement *placement,
                                           void *user);

/* Builds first, accum, eval, train_step, merges and update, in this order, and allocates no weights. */
trd_status trd__visit_programs(const trd_engine_options *options, trd__program_visitor visit, void *user);

#endif
