/* Fewer passes over a tile, the same bits: up to three ops in one loop, a rounding done by the op before it,
 * a choice by a flag of a call made once a call instead of for each element. Invariant: a value is made
 * before it is read, and all that is stored or added up keeps its bits. An op with a single reader moves to
 * where that reader stands. A choice moves the other way, to the op that makes its first value e: that op
 * makes the choice's result instead, for all readers of e too. Where the flag is not 0 that is e; where it is
 * 0 they get `other`, which is allowed because nothing that is stored or added up then asks for e. */
#include <string.h>

#include "backend/cpu/group_build.h"

static int reads_by(const trd__group_op *op, int e)
{
    int reads = (op->keep == e) + (op->other == e);
    for (int i = 0; i < op->operands; i++) reads += op->in[i] == e;
    return reads;
}

static bool is_read(const trd__group_build *g, int e)
{
    for (int k = 0; k < g->op_count; k++)
        if (reads_by(&g->ops[k], e)) return true;
    return false;
}

static void remove_op(trd__group_build *g, int k)
{
    memmove(&g->ops[k], &g->ops[k + 1], (size_t)(g->op_count - k - 1) * sizeof *g->ops);
    g->op_count--;
    for (int s = 0; s < g->store_count; s++)
        if (g->stores[s].op > k) g->stores[s].op--;
}

static void replace_reads(trd__group_op *op, int e, int by)
{
    for (int i = 0; i < TRD__TILE_OPERANDS; i++)
        if (op->in[i] == e) op->in[i] = by;
    if (op->keep == e) op->keep = by;
    if (op->other == e) op->other = by;
    if (op->reduction >= 0) op->out = op->in[0];
}

/* The op that makes e for op k alone, -1: there is none, or it is not that simple. */
static int maker_for(const trd__group_build *g, int k, int e)
{
    if (g->entries[e].load >= 0 || g->entries[e].stored) return -1;
    int maker = -1;
    for (int j = 0; j < g->op_count; j++) {
        if (j != k && reads_by(&g->ops[j], e)) return -1;
        if (j < k && g->ops[j].reduction < 0 && g->ops[j].out == e) maker = j;
    }
    return maker >= 0 && g->ops[maker].keep < 0 ? maker : -1;
}

/* The loop that runs inner and then outer, whose operand `place` it makes; NULL: there is none. */
static trd__tile_function find_pair(const trd__tiles *tiles, trd__tile_function outer,
                                    trd__tile_function inner, int place)
{
    for (const trd__tile_pair *pair = tiles->pairs; pair->outer; pair++)
        if (pair->outer == outer && pair->inner == inner && pair->place == place) return pair->run;
    return NULL;
}

/* Op k and the op that makes its operand `place` as one, where there is a loop for both. */
static bool pair_with(trd__group_build *g, int k, int place)
{
    trd__group_op *op = &g->ops[k], both = *op;
    if (op->reduction >= 0 || place >= op->operands || reads_by(op, op->in[place]) != 1) return false;
    int j = maker_for(g, k, op->in[place]);
    if (j < 0 || g->ops[j].round != TRD_F32) return false;
    const trd__group_op *inner = &g->ops[j];
    both.run = find_pair(g->f->tiles, op->run, inner->run, place);
    if (!both.run) return false;
    both.operands = op->operands - 1 + inner->operands;
    for (int i = 0; i < TRD__TILE_OPERANDS; i++) {
        int after = i - inner->operands + 1; /* the operand of op behind those of inner */
        both.in[i] = i < place                     ? op->in[i]
                     : i < place + inner->operands ? inner->in[i - place]
                     : i < both.operands           ? op->in[after]
                                                   : both.in[0];
    }
    *op = both;
    remove_op(g, j);
    return true;
}

/* A copy that only rounds: the op before it can. */
static bool round_early(trd__group_build *g, int k)
{
    trd__group_op *op = &g->ops[k];
    if (op->run || op->reduction >= 0 || op->keep >= 0) return false;
    int j = maker_for(g, k, op->in[0]);
    if (j < 0 || g->ops[j].round != TRD_F32) return false;
    trd__group_op both = g->ops[j];
    both.out = op->out;
    both.round = op->round;
    both.store = op->store;
    *op = both;
    remove_op(g, j);
    return true;
}

/* A cast to float32 changes nothing in a register. */
static bool forward(trd__group_build *g, int k)
{
    const trd__group_op op = g->ops[k];
    if (op.run || op.reduction >= 0 || op.keep >= 0 || op.round != TRD_F32 || op.store >= 0) return false;
    for (int j = k + 1; j < g->op_count; j++) replace_reads(&g->ops[j], op.out, op.in[0]);
    remove_op(g, k);
    return true;
}

static bool is_select(const trd__group_build *g, const trd__group_op *op)
{
    return op->reduction < 0 && op->run == trd__tile_find(g->f->tiles, &trd__op_select);
}

/* Whether e is of consequence, but for op k, a select, where flag is 0: ops that then choose another operand
 * do not ask what it is. Op k may be passed over only because its in[2], which it then asks for, is made
 * before e, as choose_once sees to, and so cannot depend on it. */
static bool matters_without(const trd__group_build *g, int e, int k, int flag)
{
    bool asked[TRD__GROUP_VALUES] = {false};
    for (int j = g->op_count - 1; j >= 0; j--) {
        const trd__group_op *op = &g->ops[j];
        if (j == k || !(op->reduction >= 0 || asked[op->out] || g->entries[op->out].stored)) continue;
        if (op->keep == flag) {
            asked[op->other] = true;
            continue;
        }
        bool chosen = is_select(g, op) && op->in[0] == flag;
        for (int i = 0; i < op->operands; i++)
            if (!chosen || i != 1) asked[op->in[i]] = true;
        if (op->keep >= 0) asked[op->other] = true;
    }
    return asked[e];
}

/* The op before op k that makes e, which is not stored as it is, -1: there is none. */
static int maker_before(const trd__group_build *g, int k, int e)
{
    if (g->entries[e].load >= 0 || g->entries[e].stored) return -1;
    for (int j = 0; j < k; j++)
        if (g->ops[j].reduction < 0 && g->ops[j].out == e) return g->ops[j].keep < 0 ? j : -1;
    return -1;
}

/* A select by a flag that is one for all elements: the op that makes its first choice is run or not, and its
 * other readers, who come later, read the choice. */
static bool choose_once(trd__group_build *g, int k)
{
    const trd__group_op op = g->ops[k];
    if (!is_select(g, &op) || !g->entries[op.in[0]].persistent || op.in[1] == op.in[2]) return false;
    int j = maker_before(g, k, op.in[1]);
    if (j < 0 || matters_without(g, op.in[1], k, op.in[0])) return false;
    for (int i = j; i < k; i++)
        if (g->ops[i].reduction < 0 && g->ops[i].out == op.in[2]) return false; /* not yet made by then */
    g->ops[j].out = op.out;
    g->ops[j].store = op.store;
    g->ops[j].keep = op.in[0];
    g->ops[j].other = op.in[2];
    for (int i = j + 1; i < g->op_count; i++) replace_reads(&g->ops[i], op.in[1], op.out);
    if (op.store >= 0) g->stores[op.store].op = j;
    remove_op(g, k);
    return true;
}

/* A result that is only stored is rounded by the store; a cast that is only stored is nothing but the store.
 */
static void simplify_stores(trd__group_build *g)
{
    for (int s = 0; s < g->store_count; s++) {
        trd__group_store *store = &g->stores[s];
        trd__group_op op = g->ops[store->op];
        if (is_read(g, op.out)) continue;
        g->ops[store->op].round = TRD_F32;
        if (op.run || op.keep >= 0 || g->entries[op.in[0]].load >= 0) continue;
        remove_op(g, store->op);
        store->reg = op.in[0];
        store->op = -1;
        g->entries[op.out].stored = false;
        g->entries[op.in[0]].stored = true;
    }
}

void trd__group_simplify(trd__group_build *g)
{
    for (int k = 0; k < g->op_count; k++) {
        if (forward(g, k))
            k--;
        else if (choose_once(g, k))
            k--;
        else if (round_early(g, k) || pair_with(g, k, 0) || pair_with(g, k, 1) || pair_with(g, k, 2))
            k -= 2; /* the op has moved to the place before, and may be joined again */
    }
    simplify_stores(g);
}
