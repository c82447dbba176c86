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

typedef struct trd_builder trd_builder;
typedef struct trd_node trd_node;

/* Result number `result` of a node. A zeroed value is null. */
typedef struct trd_value {
    const trd_node *node;
    int result;
} trd_value;

static inline bool trd_is_null(trd_value v)
{
    return v.node == NULL;
}
static inline bool trd_same(trd_value a, trd_value b)
{
    return a.node == b.node && a.result == b.result;
}

TRD_API trd_status trd_builder_create(trd_builder **builder);
TRD_API void trd_builder_free(trd_builder *builder); /* NULL is fine; frees every node */

/* TRD_OK, or the first failure, whose message is set again as the thread's message. */
TRD_API trd_status trd_builder_status(const trd_builder *builder);
/* Makes the builder fail from outside (a model that finds its options wrong). Returns a null value. */
TRD_API trd_value trd_builder_fail(trd_builder *builder, trd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Shape (rank 0 for null) and dtype (f32 for null) of a value. */
TRD_API trd_shape trd_value_shape(trd_value v);
TRD_API trd_dtype trd_value_dtype(trd_value v);

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
