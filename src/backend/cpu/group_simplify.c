/* Fewer passes over a tile, the same bits: two ops in one loop, a rounding done by the op before it, a choice
 * that is the same for all elements made once for a tile instead of for each. Invariant: each rewrite moves
 * an op to where its only reader stands and removes that reader's pass, or the op's own. */
#include <string.h>

#include "backend/cpu/group_build.h"

static int reads_by(const trd__group_op *op, int e)
{
    return (op->in[0] == e) + (op->in[1] == e) + (op->in[2] == e) + (op->keep == e) + (op->other == e);
}

/* Unused operands repeat the first, so only the count 0 is exact. */
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
    trd__group_op *op = &g->ops[k];
    if (op->reduction >= 0 || op->in[0] == op->in[1] || op->in[place] == op->other) return false;
    int j = maker_for(g, k, op->in[place]);
    if (j < 0 || g->ops[j].round != TRD_F32) return false;
    trd__tile_function run = find_pair(g->f->tiles, op->run, g->ops[j].run, place);
    if (!run) return false;
    op->run = run;
    op->in[2] = op->in[1 - place];
    op->in[0] = g->ops[j].in[0];
    op->in[1] = g->ops[j].in[1];
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
    for (int j = k + 1; j < g->op_count; j++) {
        int *operands[] = {&g->ops[j].in[0], &g->ops[j].in[1], &g->ops[j].in[2], &g->ops[j].keep,
                           &g->ops[j].other};
        for (int i = 0; i < 5; i++)
            if (*operands[i] == op.out) *operands[i] = op.in[0];
        if (g->ops[j].reduction >= 0) g->ops[j].out = g->ops[j].in[0];
    }
    remove_op(g, k);
    return true;
}

/* A select by a flag that is one for all elements: the op that makes its first choice is run or not. */
static bool choose_once(trd__group_build *g, int k)
{
    trd__group_op *op = &g->ops[k];
    if (op->reduction >= 0 || op->run != trd__tile_find(g->f->tiles, &trd__op_select)) return false;
    if (!g->entries[op->in[0]].persistent || op->in[1] == op->in[2]) return false;
    int j = maker_for(g, k, op->in[1]);
    if (j < 0) return false;
    trd__group_op both = g->ops[j];
    both.out = op->out;
    both.store = op->store;
    both.keep = op->in[0];
    both.other = op->in[2];
    *op = both;
    remove_op(g, j);
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
        else if (round_early(g, k) || choose_once(g, k) || pair_with(g, k, 0) || pair_with(g, k, 1))
            k -= 2; /* the op has moved to the place before, and may be joined again */
    }
    simplify_stores(g);
}
