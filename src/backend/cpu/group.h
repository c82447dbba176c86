/* A fused group: elementwise ops over one index space of `count` elements, run tile by tile in L1. Operands
 * are loaded into registers (tiles of float32), ops go from register to register, results are stored,
 * reductions keep partial sums a worker. The fuser builds it; it is read-only when it runs. */
#ifndef TRD_BACKEND_CPU_GROUP_H
#define TRD_BACKEND_CPU_GROUP_H

#include "backend/cpu/tiles.h"

enum { TRD__GROUP_REGISTERS = 128 };

typedef enum trd__load_kind {
    TRD__LOAD_FULL,     /* element i of the index space is element i of the operand */
    TRD__LOAD_SCALAR,   /* one element for all: filled once a call */
    TRD__LOAD_CONSTANT, /* the same, from `value` */
    TRD__LOAD_STRIDED   /* broadcast: dims and strides over the index space, outermost first */
} trd__load_kind;

typedef struct trd__group_load {
    trd__load_kind kind;
    int input; /* number of the call's operand; -1 for constants */
    trd_dtype dtype;
    int reg, last_op; /* the op that uses it last */
    float value;
    int rank;
    int64_t dim[TRD_MAX_RANK], stride[TRD_MAX_RANK];
} trd__group_load;

typedef struct trd__group_op {
    trd__tile_function run;          /* NULL: copies its operand */
    int out, in[TRD__TILE_OPERANDS]; /* those that are not used repeat the first */
    int operands;
    trd_dtype round;            /* F32: nothing to round */
    int keep, other;            /* where register keep is 0 the result is register other; -1: run always */
    int first_load, load_count; /* done right before */
    int store;                  /* number of the store that may be written directly, -1: none */
    int reduction;              /* number of the reduction this op is instead, -1: none */
    bool streamed;              /* a sum of squares of an operand that no other op reads: right from memory */
} trd__group_op;

typedef struct trd__group_store {
    int output, reg, op; /* written by op, if it can be; -1: at the tile's end */
    trd_dtype dtype;
} trd__group_store;

typedef struct trd__group_reduction {
    int output;
    bool squares;
    trd_dtype dtype;
} trd__group_reduction;

typedef struct trd__group {
    const trd__tiles *tiles;
    int64_t count;
    int register_count;
    trd__group_load *loads;
    int load_count;
    trd__group_op *ops;
    int op_count;
    trd__group_store *stores;
    int store_count;
    trd__group_reduction *reductions;
    int reduction_count;
} trd__group;

extern const trd__cpu_kernel trd__kernel_group;

size_t trd__group_scratch(const trd__group *group); /* a worker's, in bytes */
int trd__group_workers(const trd__group *group);    /* 1: not worth sharing; 0: all */

#endif
