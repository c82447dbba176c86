/* repeat: a body that is run count times, a program of its own in the node (bodies[0]).
 *
 * The body has five slots, always all of them, in the order of trd__repeat_slot; an entry has the type of one
 * iteration. Iteration i (of count - 1 .. 0 where reverse) reads and writes row i of what is stacked.
 *   carry    UPDATE  what it reads the iteration before wrote, at first the operand; the last content is the
 *                    result. Every entry is written.
 *   shared   READ    the operand
 *   stacked  READ    row i of the operand
 *   sums     UPDATE  row i of an accumulator, updated in place: operand and result may be one buffer. Every
 *                    entry is written; rows are independent of each other.
 *   made     WRITE   row i of the result, every entry
 * Invariant: no value crosses from the graph into the body but through these entries. An accumulator that is
 * a constant 0 never becomes a sum: it becomes a made result that is defined instead of added to. */
#ifndef TRD_OPS_REPEAT_H
#define TRD_OPS_REPEAT_H

#include "graph/program.h"
#include "ops/attrs.h"

typedef enum trd__repeat_slot {
    TRD__REPEAT_CARRY,
    TRD__REPEAT_SHARED,
    TRD__REPEAT_STACKED,
    TRD__REPEAT_SUMS,
    TRD__REPEAT_MADE,
    TRD__REPEAT_SLOTS
} trd__repeat_slot;

/* Of a node of the op repeat. */
const trd__repeat_attr *trd__repeat_attr_of(const trd_node *n);
const trd__program *trd__repeat_body(const trd_node *n);
/* How many entries the slot has. */
int trd__repeat_entries(const trd__repeat_attr *attr, trd__repeat_slot slot);
/* Number of the operand that an entry reads, -1 for made; and of the result that it writes, -1 for shared and
 * stacked. */
int trd__repeat_operand(const trd__repeat_attr *attr, trd__repeat_slot slot, int entry);
int trd__repeat_result(const trd__repeat_attr *attr, trd__repeat_slot slot, int entry);

/* Adds the slot to a body; all five are added in order. And the entry of a value: v's own type, or that of a
 * row of v. Strings live as long as b's arena or v. */
int trd__repeat_body_slot(trd__program *body, trd__repeat_slot slot, const trd__entry *entries, int count);
trd__entry trd__repeat_entry(trd_builder *b, trd__repeat_slot slot, int entry, trd_value v, bool rows);

/* Adds a repeat of a finished body, which it takes over whether it succeeds or not. attr's numbers of entries
 * are taken from the body. inputs: carries, shared, stacked, sums. NULL on failure. */
const trd_node *trd__repeat_add(trd_builder *b, int64_t count, bool reverse, const trd_value *inputs,
                                trd__program *body);

#endif
