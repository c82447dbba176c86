/* The one way a graph is rewritten: a map from old values to new ones, then a rebuild of the node list.
 *
 * Replacements may chain (a -> b, b -> c). The rebuild keeps the order of the list: each node comes where it
 * was, what it depends on and was added later comes just before it, and what replaces a node comes where that
 * node was. So the order is a function of the graph's history alone, and backward work stays where autodiff
 * put it. Nothing recurses; everything is linear in nodes and operands. */
#ifndef TRD_GRAPH_REWRITE_H
#define TRD_GRAPH_REWRITE_H

#include "graph/program.h"

typedef struct trd__rewrite {
    trd_builder *builder;
    trd_value **map; /* by node id: the replacements of its results, NULL: none */
    int count;       /* ids the map covers */
} trd__rewrite;

trd_status trd__rewrite_begin(trd_builder *b, trd__rewrite *rewrite);
/* Every use of from, a result of a node that was there at begin, becomes a use of to. A node whose results
 * are all replaced leaves the list. */
trd_status trd__rewrite_replace(trd__rewrite *rewrite, trd_value from, trd_value to);
trd_value trd__rewrite_resolve(const trd__rewrite *rewrite, trd_value v);
/* Whether v depends on node target, seen through the map. Linear in what lies behind v. */
trd_status trd__rewrite_depends(const trd__rewrite *rewrite, trd_value v, const trd_node *target,
                                bool *depends);
/* Applies the map to all operands, and to the outputs and leaves of program (which may be NULL), and rebuilds
 * the list. Ends the rewrite whether it succeeds or not. */
trd_status trd__rewrite_apply(trd__rewrite *rewrite, trd__program *program);
void trd__rewrite_end(trd__rewrite *rewrite); /* without applying; safe after apply */

#endif
