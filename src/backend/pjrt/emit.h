/* What the lowering of each op writes with: values that know their type, lines of text, and the tables of
 * rows. Every line is `%name = ... : type loc("node/op")`; a node's first line carries the node's name and
 * number, later ones a running number behind a point, so that no two values share a name.
 *
 * A failure (out of memory) is kept in the emitter and makes everything after it a no-op. */
#ifndef TRD_BACKEND_PJRT_EMIT_H
#define TRD_BACKEND_PJRT_EMIT_H

#include <stdarg.h>

#include "backend/pjrt/lower.h"
#include "base/arena.h"
#include "ops/attrs.h"

/* A value of the module. */
typedef struct trd__hlo {
    const char *name, *type; /* "%x_3", "tensor<2x3xf32>" */
    trd_dtype dtype;
    trd_shape shape;
} trd__hlo;

typedef struct trd__emitter {
    trd__arena *arena;               /* names and types */
    const trd__placement *placement; /* NULL: one device */
    const trd__placement *named;     /* where named values are put; NULL: where the partitioner likes */
    int64_t replicas;                /* of the program */
    int collectives;                 /* so far */
    char *text;                      /* ends with a zero byte */
    size_t bytes, capacity;
    trd_status status;
    trd__precision precision; /* of the program's products */
    const trd_node *node;     /* being lowered */
    const char *name;         /* of its first line, with the node's number */
    int lines;                /* it has so far */
    trd__hlo **values;        /* by node and result */
    trd__hlo **kept;          /* the same behind a barrier, for what is computed again; no name: not yet */
    const char *scope;        /* behind the numbers of a body's nodes: "$12", of node 12; "" outside */
    int indent;               /* of a line */
} trd__emitter;

/* One op: lower fills results, one for each result of n. */
typedef struct trd__pjrt_op trd__pjrt_op;
struct trd__pjrt_op {
    const trd_op *op;
    void (*lower)(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results);
    const char *hlo; /* what the op is called there, where lower asks for it */
    bool wide;       /* narrow floats are computed in float32 */
};

/* The row of an op; NULL: it has none. */
const trd__pjrt_op *trd__pjrt_find(const trd_op *op);

/* elementwise.c: the lowering of most elementwise ops. */
void trd__pjrt_elementwise(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results);

/* -- text.c -- */

void trd__emit_text(trd__emitter *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
void trd__emit_text_list(trd__emitter *e, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
/* A value's text pieces. All live as long as the emitter's arena. */
const char *trd__hlo_type(trd__emitter *e, trd_dtype dtype, const trd_shape *shape);
const char *trd__hlo_literal(trd__emitter *e, trd_dtype dtype, double value);   /* "1.5e+00", "0x7F800000" */
const char *trd__hlo_list(trd__emitter *e, const int64_t *numbers, int count);  /* "0, 2" */
const char *trd__hlo_name(trd__emitter *e, const char *base, int number);       /* "%base_12" */
const char *trd__hlo_word(trd__emitter *e, const char *name);                   /* name as an identifier */
const char *trd__hlo_names(trd__emitter *e, const trd__hlo *values, int count); /* "%a_1, %b_2" */
const char *trd__hlo_text(trd__emitter *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The signature of the line: "(operand types) -> type". */
const char *trd__hlo_signature(trd__emitter *e, const trd__hlo *operands, int count, const char *type);

/* -- lower.c -- */

/* Lines for the nodes of a graph, in order; makes tables of its values, in which leaves are filled in by the
 * caller between the two. */
trd_status trd__emit_tables(trd__emitter *e, const trd_graph *graph);
trd_status trd__emit_nodes(trd__emitter *e, const trd_graph *graph);

/* -- emit.c -- */

/* What follows are n's lines. */
void trd__emit_begin(trd__emitter *e, const trd_node *n);

/* v as n reads it. What is computed again reads what was kept for it behind a barrier: else XLA would see the
 * same computation twice and keep its first result. */
trd__hlo trd__hlo_read(trd__emitter *e, const trd_node *n, trd_value v);
trd__hlo trd__hlo_operand(trd__emitter *e, const trd_node *n, int i); /* operand i of n */

/* A line of any form: format and what follows give all between "=" and the signature. */
trd__hlo trd__emit(trd__emitter *e, trd_dtype dtype, const trd_shape *shape, const trd__hlo *operands,
                   int count, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* `stablehlo.WORD operands` whose result has the first operand's type. */
trd__hlo trd__emit_elementwise(trd__emitter *e, const char *word, const trd__hlo *operands, int count);

/* Compositions; each gives x itself where nothing would change. */
trd__hlo trd__hlo_convert(trd__emitter *e, trd__hlo x, trd_dtype dtype);
trd__hlo trd__hlo_reshape(trd__emitter *e, trd__hlo x, const trd_shape *shape);
/* Axis i of x becomes axis axes[i] of shape; lengths are equal or 1. */
trd__hlo trd__hlo_broadcast(trd__emitter *e, trd__hlo x, const trd_shape *shape, const int64_t *axes);
trd__hlo trd__hlo_fill(trd__emitter *e, trd_dtype dtype, const trd_shape *shape, double value);
trd__hlo trd__hlo_iota(trd__emitter *e, trd_dtype dtype, const trd_shape *shape, int axis);
/* word: "add", "maximum". The reduced axes go. */
trd__hlo trd__hlo_reduce(trd__emitter *e, const char *word, trd__hlo x, unsigned axes_mask, double start);

/* -- shard.c: each writes nothing where there is no mesh -- */

void trd__emit_mesh(trd__emitter *e);
/* "<@mesh, [{"data"}, {?}]>"; bit d of open: the partitioner may split dimension d further. */
const char *trd__hlo_sharding(trd__emitter *e, const trd__sharding *sharding, int rank, unsigned open);
/* The attribute of an argument or result that holds the entry; NULL without a mesh. */
const char *trd__hlo_entry_sharding(trd__emitter *e, const trd__entry *entry);
/* x where the rules put a value of these logical axes: in explicit mode, and if one of them has a name. */
trd__hlo trd__hlo_constrain(trd__emitter *e, trd__hlo x, const char *const *axes);

/* -- replicas.c: each writes nothing for a program without replicas -- */

trd_status trd__emit_replicas_check(const trd__program *program, const trd__placement *placement);
/* All nodes come between the two. begin renames the leaves, end the results, one for each output. */
void trd__emit_replicas_begin(trd__emitter *e, const trd__program *program, const trd__pjrt_module *module);
void trd__emit_replicas_end(trd__emitter *e, const trd__program *program, const trd__pjrt_module *module,
                            trd__hlo *results);
void trd__pjrt_replica_sum(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results);

#endif
