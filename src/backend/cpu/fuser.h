/* The fuser's working state: what each node's operands look like from inside a group, and which nodes form a
 * step together (a unit). */
#ifndef TRD_BACKEND_CPU_FUSER_H
#define TRD_BACKEND_CPU_FUSER_H

#include "backend/cpu/group.h"
#include "backend/cpu/lower.h"

enum { TRD__UNIT_MEMBERS = 24, TRD__UNIT_READS = 32 };

/* How a fused node gets an operand. */
typedef enum trd__read_kind {
    TRD__READ_CONSTANT, /* a fill: value */
    TRD__READ_SCALAR,   /* one element of memory, broadcast */
    TRD__READ_STRIDED,  /* memory through the broadcast `node` */
    TRD__READ_FULL,     /* memory, element by element */
    TRD__READ_NODE      /* the result of the elementwise `node`: a register if it is in the group */
} trd__read_kind;

typedef struct trd__read {
    trd__read_kind kind;
    trd_value source; /* what memory is read */
    const trd_node *node;
    double value;
} trd__read;

/* The nodes of one step. Fused nodes may form a unit of several. */
typedef struct trd__unit {
    int min, max; /* ids of its first and last member */
    int members;
    bool fused, emitted;
    unsigned stamp;
} trd__unit;

typedef struct trd__fusion {
    trd__lowering *l;
    const trd__tiles *tiles;
    int *unit;          /* by node: its unit, -1: runs as no step of its own */
    bool *elementwise;  /* by node: may be part of a group */
    bool *reduction;    /* by node: sum over all elements, may end a group */
    bool *inlined;      /* by node: recomputed in every group that reads it */
    int *stored_uses;   /* by root value: reads from memory */
    int *register_uses; /* by root value: reads that a group could serve */
    int *reader;        /* by root value: the newest unit that loads it in full, -1 */
    int *span;          /* by node: no unit with members on both sides of it begins before node span[id] */
    trd__unit *units;
    int unit_count;
    unsigned stamp;
    int *stack;
    int stack_count, stack_capacity;
} trd__fusion;

trd__read trd__read_of(const trd__fusion *f, trd_value v);
int64_t trd__unit_elements(const trd_node *n); /* the index space of a fused node */
/* Makes the unit's draft. */
trd_status trd__build_group(trd__fusion *f, int unit);

#endif
