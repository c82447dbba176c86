/* From a program to StableHLO text: what compile and the dump command ask of the lowering. Knows nothing of a
 * plugin, so that it is built and tested where there is none.
 *
 * The function @main takes an argument for each entry that is read, slots in order and entries in order
 * within a slot, and returns the program's outputs in the order of program->outputs. Where an output replaces
 * an entry that is also read, that argument carries tf.aliasing_output and is donated. A large entry that is
 * only written is such an argument too, for its memory. On a mesh arguments and results say where the rules
 * put them. */
#ifndef TRD_BACKEND_PJRT_LOWER_H
#define TRD_BACKEND_PJRT_LOWER_H

#include "graph/sharding.h"

/* Where an argument comes from or a result goes to. */
typedef struct trd__pjrt_binding {
    int slot, entry;
    int alias; /* an argument's: the result that takes its memory, -1: it is kept. A result's: the argument */
} trd__pjrt_binding;

typedef struct trd__pjrt_module {
    char *text; /* MLIR, ends with a zero byte */
    size_t bytes;
    trd__pjrt_binding *arguments, *results;
    int argument_count, result_count;
    int node_count; /* of the lowered graph */
} trd__pjrt_module;

/* Lowers a private copy of the program, for the devices of placement (NULL: one). An op without a lowering
 * and without an expansion is TRD_UNSUPPORTED and named. */
trd_status trd__pjrt_lower(const trd__program *program, const trd__placement *placement,
                           trd__pjrt_module *module);
void trd__pjrt_module_free(trd__pjrt_module *module); /* frees what it holds; safe on a zeroed one */

#endif
