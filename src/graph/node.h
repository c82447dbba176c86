/* The typed IR: nodes, op descriptors and the graph that owns them. Names no op: what a pass needs to know of
 * one is a field or a hook of its descriptor.
 *
 * Invariants: a graph lists its nodes in a topological order; a node's inputs are values of earlier nodes;
 * types are set by the op's shape rule when the node is added and never change. */
#ifndef TRD_GRAPH_NODE_H
#define TRD_GRAPH_NODE_H

#include <treadle/graph.h>

#include "base/arena.h"
#include "base/status.h"

enum { TRD__MAX_INPUTS = 256, TRD__MAX_RESULTS = 128 };

typedef struct trd_graph trd_graph;
typedef struct trd_op trd_op;
struct trd__program; /* graph/program.h */

/* What the backward part computes again (graph/passes.h); of a body the builder's, when it is differentiated.
 */
typedef enum trd__remat_policy { TRD__REMAT_NONE, TRD__REMAT_MINIMAL, TRD__REMAT_FULL } trd__remat_policy;

/* A policy, or what lies between minimal and full: products that cost little for the memory they free. */
typedef struct trd__remat_level {
    trd__remat_policy policy;
    double intensity; /* of minimal: products of at most so many FLOPs a byte of result are no longer kept */
} trd__remat_level;

/* What the backward part computes again, layer by layer. */
typedef struct trd__remat_rule {
    trd__remat_level level, deeper;
    int deeper_layers; /* so many layers go by `deeper`: the first, whose values lie idle for longest */
} trd__remat_rule;

typedef struct trd__type {
    trd_dtype dtype;
    trd_shape shape;
    const char *axes[TRD_MAX_RANK]; /* logical axis names, NULL: none */
} trd__type;

struct trd_node {
    const trd_op *op;
    const void
        *attr; /* the op's typed attribute struct (attr_size bytes, plain data: compared with memcmp) */
    trd_value *inputs;
    int input_count;
    trd__type *results;
    int result_count;
    int id; /* position in graph->nodes */
    bool layer_boundary;
    bool forward;     /* was there when autodiff began: remat may recompute it in the backward part */
    bool recomputed;  /* remat's copy of a forward node, kept apart from the original by cse */
    const char *name; /* NULL: unnamed */
    /* What an op of control flow runs, a program each. The builder owns them; passes over the graph go
     * through them too, and a node with bodies is never shared with another one nor computed again. */
    struct trd__program **bodies;
    int body_count;
};

typedef enum trd__cost {
    TRD__COST_FREE,   /* leaves and pure changes of shape */
    TRD__COST_CHEAP,  /* one pass over memory: norms, rope, activations */
    TRD__COST_PRODUCT /* matrix products, attention: recomputed only under remat "full" */
} trd__cost;

enum {
    TRD__OP_LEAF = 1,        /* no inputs; never recomputed, never shared by cse unless equal attributes */
    TRD__OP_ELEMENTWISE = 2, /* result i depends on element i of inputs of the same shape only */
    TRD__OP_COMMUTATIVE = 4,
    TRD__OP_NO_CSE = 8,
    TRD__OP_NOT_DIFFERENTIABLE = 16, /* gradients stop here by definition (comparisons, masks) */
    TRD__OP_ALIASES = 32,  /* a result may take the buffer of input `alias_input` (accumulators, caches) */
    TRD__OP_ADDS_INTO = 64 /* result 0 = input 0 + input 1, nothing else: what accumulates_into may absorb */
};

/* Where reverse mode begins: a value and its cotangent, null for ones. */
typedef struct trd__seed {
    trd_value of, cotangent;
} trd__seed;
/* What it is asked for. */
typedef struct trd__gradient {
    trd_value of;          /* value to differentiate by (usually a leaf) */
    trd_value accumulator; /* what contributions are added to, in their order: an input entry, or a constant 0
                              ("first"). Null: contributions are summed */
    trd_value result; /* out: the accumulator after all contributions (accumulator itself, or null, when there
                         are none) */
} trd__gradient;
typedef trd_status trd__differentiate(trd_builder *b, const trd__seed *seeds, int seed_count,
                                      trd__gradient *gradients, int count);

enum { TRD__RESULTS_VARY = -1 };

/* One op. In a graph only through its descriptor; `ops.def` lists them all. */
struct trd_op {
    const char *name;
    int min_inputs, max_inputs;
    unsigned optional_inputs; /* bit i: input i may be null */
    int results;              /* TRD__RESULTS_VARY: as many as result_count says */
    size_t attr_size;
    unsigned flags;
    trd__cost cost;
    int alias_input;

    int (*result_count)(const void *attr);
    /* Checks inputs and attributes and sets the result types (axes are copied where they carry over). */
    trd_status (*infer)(const trd_node *n, trd__type *results);
    /* Adds to the builder what computes dx[i], the cotangent of input i, from dy[j], that of result j (null
     * where nothing depends on it). needs[i] says which inputs want one; leave dx[i] null for "no gradient".
     */
    void (*gradient)(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs,
                     trd_value *dx);
    /* The same in plain ops: results[j] replaces result j. NULL for a plain op. */
    void (*expand)(trd_builder *b, const trd_node *n, trd_value *results);
    /* Model FLOPs of the node; NULL: 0. */
    double (*flops)(const trd_node *n);
    /* trd__recomputed_flops of what is in a node's bodies, for all their runs; NULL: 0. */
    double (*recomputed_flops)(const trd_node *n);
    /* Optional: one node that gives the op's own results and its gradients at once, used by autodiff when no
     * dy is a descendant of n. results[j] replaces result j of n everywhere. Returns false to decline. */
    bool (*merge_gradient)(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs,
                           trd_value *results, trd_value *dx);
    /* Optional, in place of gradient, of an op that must keep more than its results: adds a node that stands
     * for n (results[j] replaces result j everywhere and depends on no dy), and from it what computes dx,
     * with the reverse mode itself at hand for what n's bodies hold. */
    void (*split_gradient)(trd_builder *b, const trd_node *n, trd__differentiate *differentiate,
                           const trd_value *dy, const bool *needs, trd_value *results, trd_value *dx);
    /* Optional: the node n again with its result `result` added into `accumulator` inside the op (in place on
     * a backend that can). Returns the new node's values in results (results[result] is the new accumulator),
     * or false to decline. */
    bool (*accumulates_into)(trd_builder *b, const trd_node *n, int result, trd_value accumulator,
                             trd_value *results);
    /* Optional: writes the attributes as text for dumps ("theta=1e6"). */
    void (*print)(const trd_node *n, char *text, size_t bytes);
};

struct trd_graph {
    trd__arena *arena;
    trd_node **nodes;
    int node_count, node_capacity;
};

/* A value whose node autodiff merged with its gradient or split, and what stands for it now. */
typedef struct trd__merged_value {
    trd_value from, to;
} trd__merged_value;

/* The builder behind the public type. */
struct trd_builder {
    trd_graph graph;
    trd__merged_value *merged; /* in the arena */
    int merged_count, merged_capacity;
    trd__remat_rule remat;        /* of bodies, read when they are differentiated; whoever builds sets it */
    struct trd__program **bodies; /* of its nodes, freed with it */
    int body_count, body_capacity;
    trd_status status;
    char *message; /* the first failure's */
};

/* Appends a node: copies attr and inputs, runs the shape rule. On failure sets the sticky error, names the op
 * and returns NULL. Null inputs are allowed only where the op lists them in optional_inputs. */
const trd_node *trd__node_add(trd_builder *b, const trd_op *op, const void *attr, const trd_value *inputs,
                              int input_count);
/* The same with bodies, which the builder takes over whether it succeeds or not. */
const trd_node *trd__node_add_bodies(trd_builder *b, const trd_op *op, const void *attr,
                                     const trd_value *inputs, int input_count,
                                     struct trd__program *const *bodies, int body_count);
/* The same for single-result ops. */
trd_value trd__add_node(trd_builder *b, const trd_op *op, const void *attr, const trd_value *inputs,
                        int input_count);

/* Appends a copy of n, which has no bodies. It shares n's attributes and types and has operands of its own,
 * the same as n's until the caller changes them. NULL: out of memory, sticky. */
trd_node *trd__node_copy(trd_builder *b, const trd_node *n);

static inline trd_value trd__result(const trd_node *n, int result)
{
    return n ? (trd_value){n, result} : (trd_value){NULL, 0};
}
static inline const trd__type *trd__type_of(trd_value v)
{
    return &v.node->results[v.result];
}

/* Whether v is a value of b's graph. */
static inline bool trd__owns(const trd_builder *b, trd_value v)
{
    return v.node->id < b->graph.node_count && b->graph.nodes[v.node->id] == v.node;
}

/* The value that stands for v after autodiff merged or split nodes (v itself when untouched). */
trd_value trd__autodiff_current(const trd_builder *b, trd_value v);

/* Keeps the thread's current message as the builder's first failure, unless there already is one. */
void trd__builder_stick(trd_builder *b, trd_status status);

/* Shape-rule helpers. trd__fail_shape sets "op: operand "x" expected ..., found ..." and returns TRD_SHAPE.
 */
trd_status trd__fail_shape(const trd_node *n, const char *operand, const char *expected,
                           const trd__type *found);

#endif
