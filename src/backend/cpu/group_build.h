/* A group while it is made: ops in single-assignment form, whose operands and results are entries (registers
 * are assigned last), so that ops can be joined before anything is decided about memory. */
#ifndef TRD_BACKEND_CPU_GROUP_BUILD_H
#define TRD_BACKEND_CPU_GROUP_BUILD_H

#include "backend/cpu/fuser.h"

enum { TRD__GROUP_VALUES = 512 };

/* A value inside the group: what it came from, and where it is needed. */
typedef struct trd__group_entry {
    int root; /* root value of the node it is the result of; -1: a load */
    int load; /* -1: made by an op */
    int first_op, last_op;
    int reg;
    bool persistent, stored;
} trd__group_entry;

typedef struct trd__group_build {
    trd__fusion *f;
    trd__lowering *l;
    int unit;
    int64_t elements;
    trd__group_entry entries[TRD__GROUP_VALUES];
    int entry_count;
    trd__group_load loads[TRD__GROUP_VALUES];
    trd_value load_sources[TRD__GROUP_VALUES]; /* with the load: what it reads */
    const trd_node *load_broadcasts[TRD__GROUP_VALUES];
    int load_count;
    trd__group_op ops[TRD__GROUP_VALUES]; /* operands and results are entries until registers are assigned */
    int op_count;
    int inputs[TRD__GROUP_VALUES], input_count; /* value numbers */
    trd__group_store stores[TRD__KERNEL_RESULTS];
    trd__group_reduction reductions[TRD__KERNEL_RESULTS];
    int outputs[TRD__KERNEL_RESULTS];
    int store_count, reduction_count, output_count;
    bool overflow;
} trd__group_build;

/* group_simplify.c: fewer passes over a tile for the same bits. */
void trd__group_simplify(trd__group_build *g);

#endif
