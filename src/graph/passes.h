/* Generic passes over a program. They know ops only by their descriptors; each rewrites program->builder's
 * graph into a new node list (old nodes stay in the arena) and updates the outputs. Values a caller holds
 * across a pass may be stale: read program->outputs and ask for inputs again. A program on which a pass
 * failed may only be freed. */
#ifndef TRD_GRAPH_PASSES_H
#define TRD_GRAPH_PASSES_H

#include <stdio.h>

#include "graph/program.h"

trd_status trd__verify(const trd__program *program); /* order, types by re-running infer, output bindings */
trd_status trd__dce(trd__program *program);          /* drops nodes no output depends on */
trd_status trd__cse(trd__program *program);          /* shares equal nodes (op, attr, inputs) */
/* Replaces nodes for which keep(op, user) is false and that have an expand. */
trd_status trd__expand(trd__program *program, bool (*keep)(const trd_node *n, void *user), void *user);
/* accumulate(acc, result of n) becomes n with the accumulator inside, where n's op can (accumulates_into) and
 * the result has no other use. */
trd_status trd__fuse_accumulate(trd__program *program);
/* Recomputes forward values (nodes that were there when autodiff began) in the backward part. none: cheap
 * nodes may be recomputed; minimal: keeps products and layer boundaries; full: keeps layer boundaries only.
 * Bits do not change. Run cse before it, fuse_accumulate and dce after it. */
trd_status trd__remat(trd__program *program, trd__remat_rule rule);
trd__remat_rule trd__remat_everywhere(trd__remat_policy policy);
/* What a rule may tell apart in a differentiated program, its bodies included: the intensities of forward
 * products, ascending (where there are more than capacity, the smallest; the count is returned), and how many
 * layers end in it. */
int trd__remat_intensities(const trd__program *program, double *intensities, int capacity, int *layers);
/* The same for what will be repeated: forward values that later nodes then still read are kept for each
 * iteration. A body of the graph is left alone by both: it was split when it was differentiated. */
trd_status trd__remat_body(trd__program *program, trd__remat_rule rule);
/* Moves the nodes behind the first `kept` as early as they can run: a gradient that only its update reads
 * then dies where it is formed. */
trd_status trd__hoist(trd__program *program, int kept);
double trd__program_flops(const trd__program *program);
/* What remat's copies cost: model FLOPs of products, one an element of what else is no mere change of shape.
 */
double trd__recomputed_flops(const trd__program *program);
uint64_t trd__program_fingerprint(const trd__program *program); /* of structure, attributes, bindings */
/* Readable text, a node a line; written to stream by the caller's choice (dumps and tests). */
void trd__program_print(const trd__program *program, FILE *stream);

#endif
