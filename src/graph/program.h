/* A program: a graph whose inputs and outputs are bound to the entries of state sets.
 *
 * A *set* is a group of named tensors under one handle (parameters, optimizer state, accumulators, inputs,
 * results). A program has a few slots, each bound to one set at execution. `trd__input` leaves read an entry
 * of a slot; outputs write one. A slot that is read and written is updated in place (donated). */
#ifndef TRD_GRAPH_PROGRAM_H
#define TRD_GRAPH_PROGRAM_H

#include "base/shape.h"
#include "graph/node.h"

enum { TRD__MAX_SLOTS = 8 };

typedef enum trd__access {
    TRD__READ = 1,
    TRD__WRITE = 2, /* contents undefined before; every entry that is no output stays undefined */
    TRD__UPDATE = 3 /* read and written: donated; entries that are no output keep their value */
} trd__access;

/* What the replicas of a program with several of them have of an entry; of a plain program nothing. */
typedef enum trd__replica {
    TRD__REPLICA_SHARED = 0, /* all of it, the same in each; an output must have the same value in each */
    TRD__REPLICA_ROWS,       /* rows of its own: the first dimension is shared out in order */
    TRD__REPLICA_OWN         /* a copy of its own: the entry is (replicas, ...), each has its (...) */
} trd__replica;

/* The axis name of the first dimension of an OWN entry: always along the mesh's data axis. */
#define TRD__AXIS_REPLICA "replica"
/* And that of a tensor which holds the same of every layer. */
#define TRD__AXIS_LAYERS "layers"

/* One tensor of a set layout. */
typedef struct trd__entry {
    const char *name;
    trd_dtype dtype;
    trd_shape shape;
    const char *axes[TRD_MAX_RANK]; /* logical axis names, NULL: none */
    bool over_data;                 /* on a mesh also split over the data axis (graph/sharding.h) */
    trd__replica replica;           /* read only by programs that have replicas */
    bool sparse; /* only part of it is expected to be written, so it need not fit in memory as a whole */
} trd__entry;

static inline size_t trd__entry_bytes(const trd__entry *entry)
{
    return trd__tensor_bytes(&entry->shape, entry->dtype);
}

typedef struct trd__slot {
    const char *name; /* "params", "optimizer", "gradients", "inputs", "results" */
    trd__access access;
    const trd__entry *entries;
    int entry_count;
    trd_value *leaves; /* by entry: the leaf that reads it, null before it is asked for */
    bool *written;     /* by entry: an output writes it */
} trd__slot;

/* Bits that products of float32 keep on devices that choose; as in treadle/engine.h. */
typedef enum trd__precision {
    TRD__PRECISION_DEFAULT = 0,
    TRD__PRECISION_HIGH,
    TRD__PRECISION_HIGHEST
} trd__precision;

typedef struct trd__output {
    trd_value value;
    int slot;
    int entry;
} trd__output;

/* A program of several *replicas* is one graph that each place along the mesh's data axis runs on its rows.
 * Its leaves and outputs have local types; only `replica_sum` lets replicas see each other. */
typedef struct trd__program {
    const char *name; /* "first", "accum", "update", "eval", "train_step", ... */
    int64_t replicas; /* set before the first leaf; 0 or 1: none */
    trd__precision precision;
    trd_builder *builder;
    trd__slot slots[TRD__MAX_SLOTS];
    int slot_count;
    trd__output *outputs; /* arena of the builder */
    int output_count, output_capacity;
} trd__program;

typedef struct trd__input_attr {
    int slot;
    int entry;
    trd_dtype dtype; /* the entry's */
    trd_shape shape; /* trd__program_shape's */
} trd__input_attr;

/* Leaf op of the graph itself, listed in ops.def like any other. */
extern const trd_op trd__op_input;

trd_status trd__program_create(const char *name, trd__program **program);
void trd__program_free(trd__program *program); /* frees builder and graph; NULL is fine */
/* The same program with a graph of its own, for whoever rewrites it; annotations are kept. */
trd_status trd__program_copy(const trd__program *program, trd__program **copy);
/* Appends the program's nodes to b. Entry e of slot s is read from leaves[s][e], and what its output writes
 * goes to outputs[s][e], which stays as it was without one; rows of slots without entries may be NULL. map
 * (may be NULL) receives result 0 of each node's copy, by id. Annotations are kept. On failure the builder's
 * error is set. */
void trd__program_inline(trd_builder *b, const trd__program *program, const trd_value *const *leaves,
                         trd_value *const *outputs, trd_value *map);
/* Appends a copy of n, of whatever graph, with bodies of its own; inputs are values of b. NULL on failure. */
const trd_node *trd__node_clone(trd_builder *b, const trd_node *n, const trd_value *inputs);
/* Calls visit with every body of every node. */
trd_status trd__each_body(const trd__program *program, trd_status (*visit)(trd__program *body));
/* Adds a slot; entries are copied into the program. Returns its number, or -1 with the builder's error set.
 */
int trd__program_slot(trd__program *program, const char *name, trd__access access, const trd__entry *entries,
                      int entry_count);
/* The shape that the program's leaves and outputs of an entry have: the entry's, or its local one. */
trd_shape trd__program_shape(const trd__program *program, const trd__entry *entry);
/* The names of its dimensions, as many. */
const char *const *trd__program_axes(const trd__program *program, const trd__entry *entry);
/* The leaf that reads slot's entry (one node per entry: asked twice gives the same value). */
trd_value trd__program_input(trd__program *program, int slot, int entry);
/* Makes value the new content of slot's entry; dtype and trd__program_shape must match. Each entry at most
 * once. */
void trd__program_output(trd__program *program, int slot, int entry, trd_value value);

#endif
