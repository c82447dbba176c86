/* Building graph: values, the builder with its sticky error, names and logical axes.
 *
 * A graph is pure SSA with static shapes. Builder functions (ops.h) append nodes and return values; the first
 * failure is kept in the builder (tensor, expected, found), later calls return a null value and do nothing,
 * so model code runs straight down and is checked once at the end with trd_builder_status. Values belong to
 * their builder and die with it. One thread at a time per builder. */
#ifndef TREADLE_GRAPH_H
#define TREADLE_GRAPH_H

#include <treadle/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opaque: a graph under construction. */
typedef struct trd_builder trd_builder;
/* Opaque: an op with its inputs and attributes. */
typedef struct trd_node trd_node;

/* Result number `result` of a node. A zeroed value is null. */
typedef struct trd_value {
    const trd_node *node; /* NULL: null */
    int result;           /* 0 for ops with one */
} trd_value;

/* Whether v is null: what a failed builder returns, or an input that was left out. */
static inline bool trd_is_null(trd_value v)
{
    return v.node == NULL;
}
/* Whether both are the same result of the same node. */
static inline bool trd_same(trd_value a, trd_value b)
{
    return a.node == b.node && a.result == b.result;
}

/* An empty graph. Losses and forward functions are handed the engine's own builder and need none. */
TRD_API trd_status trd_builder_create(trd_builder **builder);
TRD_API void trd_builder_free(trd_builder *builder); /* NULL is fine; frees every node */

/* TRD_OK, or the first failure, whose message is set again as the thread's message. */
TRD_API trd_status trd_builder_status(const trd_builder *builder);
/* Makes the builder fail from outside (a model that finds its options wrong). Returns a null value. */
TRD_API trd_value trd_builder_fail(trd_builder *builder, trd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

TRD_API trd_shape trd_value_shape(trd_value v); /* rank 0 for null */
TRD_API trd_dtype trd_value_dtype(trd_value v); /* f32 for null */

/* Names the node for messages, dumps and traces ("layers.3.q"); returns v. */
TRD_API trd_value trd_name(trd_builder *builder, trd_value v, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Annotates the value's axes with logical names, one per axis ("activation_batch", "embed"; NULL = none),
 * which the sharding rules map to mesh axes; returns v. */
TRD_API trd_value trd_axes(trd_builder *builder, trd_value v, const char *const *axes);

/* Marks v as the boundary of a layer: remat_policy "full" keeps boundaries and recomputes what lies between.
 */
TRD_API trd_value trd_layer_boundary(trd_builder *builder, trd_value v);

#ifdef __cplusplus
}
#endif
#endif
