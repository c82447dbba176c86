/* Reverse mode: one sweep from the seeds towards the front, each node asked once for the cotangents of its
 * operands. Invariants: only nodes between a requested value and a seed are asked; contributions meet in
 * the order the sweep forms them, so the graph is the same every time; nothing recurses. */
#include "autodiff/autodiff.h"

#include <string.h>

#include <treadle/ops.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "graph/rewrite.h"

typedef struct sweep {
    trd_builder *b;
    trd__gradient *gradients;
    int node_count;       /* of the forward graph */
    int *first;           /* by node id: number of its result 0 among all values */
    trd_value *cotangent; /* by value number; null: none yet */
    int *request;         /* by value number: index into gradients + 1 */
    bool *active;         /* by node id: a requested value feeds it, and gradients pass through */
    trd__rewrite rewrite; /* merged nodes */
    int merges;
    bool may_merge; /* cotangents that are given may depend on what they are the cotangents of */
} sweep;

static int value_number(const sweep *s, trd_value v)
{
    return s->first[v.node->id] + v.result;
}

/* Whether a cotangent of v is of any use: v is requested, or leads back to a requested value. */
static bool wanted(const sweep *s, trd_value v)
{
    if (trd_is_null(v) || !trd__dtype_is_float(trd__type_of(v)->dtype)) return false;
    return s->active[v.node->id] || s->request[value_number(s, v)];
}

static trd_status sweep_init(sweep *s)
{
    const trd_graph *graph = &s->b->graph;
    size_t nodes = (size_t)graph->node_count, values = 0;
    s->node_count = graph->node_count;
    s->first = trd__alloc(nodes + 1, sizeof *s->first);
    s->active = trd__calloc(nodes + 1, sizeof *s->active);
    if (!s->first || !s->active) return TRD_NO_MEMORY;
    for (int i = 0; i < graph->node_count; i++) {
        s->first[i] = (int)values;
        values += (size_t)graph->nodes[i]->result_count;
        graph->nodes[i]->forward = true;
    }
    s->cotangent = trd__calloc(values + 1, sizeof *s->cotangent);
    s->request = trd__calloc(values + 1, sizeof *s->request);
    if (!s->cotangent || !s->request) return TRD_NO_MEMORY;
    return trd__rewrite_begin(s->b, &s->rewrite);
}

static void sweep_free(sweep *s)
{
    trd__rewrite_end(&s->rewrite);
    trd__free(s->request);
    trd__free(s->cotangent);
    trd__free(s->active);
    trd__free(s->first);
}

static trd_status mark_requests(sweep *s, int count)
{
    for (int i = 0; i < count; i++) {
        trd__gradient *g = &s->gradients[i];
        if (trd_is_null(g->of))
            return trd__fail(TRD_INVALID_ARGUMENT, "autodiff: gradient %d expected a value, found null", i);
        int *request = &s->request[value_number(s, g->of)];
        if (*request)
            return trd__fail(TRD_INVALID_ARGUMENT, "autodiff: the gradient of \"%s\" is requested twice",
                             g->of.node->name ? g->of.node->name : g->of.node->op->name);
        *request = i + 1;
        g->result = g->accumulator;
    }
    for (int i = 0; i < s->node_count; i++) {
        const trd_node *n = s->b->graph.nodes[i];
        if (n->op->flags & TRD__OP_NOT_DIFFERENTIABLE) continue;
        for (int j = 0; j < n->input_count && !s->active[i]; j++) s->active[i] = wanted(s, n->inputs[j]);
    }
    return TRD_OK;
}

/* Puts "gradient of <node>" before the builder's first failure, which one of its builders just met. */
static trd_status fail_in_gradient(trd_builder *b, const trd_node *n)
{
    trd_builder_status(b);
    trd__fail_in(b->status, "gradient of %s%s%s", n->op->name, n->name ? " " : "", n->name ? n->name : "");
    char *message = trd__strdup(trd_error_message());
    if (message) {
        trd__free(b->message);
        b->message = message;
    }
    return b->status;
}

static trd_status check_cotangent(const trd_node *n, int input, trd_value dx)
{
    const trd__type *want = trd__type_of(n->inputs[input]), *have = trd__type_of(dx);
    if (want->dtype == have->dtype && trd__shape_equal(&want->shape, &have->shape)) return TRD_OK;
    char expected[TRD__SHAPE_TEXT], found[TRD__SHAPE_TEXT];
    return trd__fail(TRD_INTERNAL,
                     "%s: the gradient rule gives operand %d a cotangent of %s %s, expected %s %s",
                     n->op->name, input, trd__shape_text(&have->shape, found), trd_dtype_name(have->dtype),
                     trd__shape_text(&want->shape, expected), trd_dtype_name(want->dtype));
}

/* Adds dx to the cotangent of v: into the accumulator's chain where v is requested, and into a plain sum
 * where it leads further back. */
static void contribute(sweep *s, trd_value v, trd_value dx)
{
    int number = value_number(s, v);
    if (s->request[number]) {
        trd__gradient *g = &s->gradients[s->request[number] - 1];
        if (!trd_is_null(g->accumulator))
            g->result = trd_accumulate(s->b, g->result, dx);
        else
            g->result = trd_is_null(g->result) ? dx : trd_add(s->b, g->result, dx);
    }
    if (s->active[v.node->id]) {
        trd_value *sum = &s->cotangent[number];
        *sum = trd_is_null(*sum) ? dx : trd_add(s->b, *sum, dx);
    }
}

static trd_status remember_merge(trd_builder *b, trd_value from, trd_value to)
{
    if (b->merged_count == b->merged_capacity) {
        int capacity = b->merged_capacity ? 2 * b->merged_capacity : 8;
        trd__merged_value *merged = trd__arena_alloc(b->graph.arena, (size_t)capacity, sizeof *merged);
        if (!merged) return TRD_NO_MEMORY;
        if (b->merged_count) memcpy(merged, b->merged, (size_t)b->merged_count * sizeof *merged);
        b->merged = merged;
        b->merged_capacity = capacity;
    }
    b->merged[b->merged_count++] = (trd__merged_value){from, to};
    return TRD_OK;
}

/* results stand for n's own from now on, unless making them failed. */
static trd_status replace_results(sweep *s, const trd_node *n, const trd_value *results)
{
    if (s->b->status != TRD_OK) return fail_in_gradient(s->b, n);
    for (int r = 0; r < n->result_count; r++) {
        trd_value from = {n, r};
        TRD_TRY(trd__rewrite_replace(&s->rewrite, from, results[r]));
        TRD_TRY(remember_merge(s->b, from, results[r]));
    }
    s->merges++;
    return TRD_OK;
}

/* Tries to merge n with its gradient. A node whose cotangents depend on its own results cannot be. */
static trd_status try_merge(sweep *s, const trd_node *n, const trd_value *dy, const bool *needs,
                            trd_value *dx, bool *merged)
{
    *merged = false;
    for (int r = 0; r < n->result_count; r++) {
        bool depends = false;
        if (!trd_is_null(dy[r])) TRD_TRY(trd__rewrite_depends(&s->rewrite, dy[r], n, &depends));
        if (depends) return TRD_OK;
    }
    trd_value results[TRD__MAX_RESULTS] = {{NULL, 0}};
    if (!n->op->merge_gradient(s->b, n, dy, needs, results, dx)) return TRD_OK;
    *merged = true;
    return replace_results(s, n, results);
}

static trd_status split(sweep *s, const trd_node *n, const trd_value *dy, const bool *needs, trd_value *dx)
{
    trd_value results[TRD__MAX_RESULTS] = {{NULL, 0}};
    n->op->split_gradient(s->b, n, trd__autodiff_from, dy, needs, results, dx);
    for (int r = 0; r < n->result_count && s->b->status == TRD_OK; r++)
        s->b->graph.nodes[results[r].node->id]->forward = true;
    return replace_results(s, n, results);
}

static trd_status visit(sweep *s, const trd_node *n)
{
    trd_value dy[TRD__MAX_RESULTS] = {{NULL, 0}}, dx[TRD__MAX_INPUTS] = {{NULL, 0}};
    bool needs[TRD__MAX_INPUTS] = {false};
    bool reached = false, merged = false;
    for (int r = 0; r < n->result_count; r++) {
        dy[r] = s->cotangent[s->first[n->id] + r];
        reached |= !trd_is_null(dy[r]);
    }
    if (!reached) return TRD_OK;
    for (int i = 0; i < n->input_count; i++) needs[i] = wanted(s, n->inputs[i]);
    if (n->op->merge_gradient && s->may_merge) TRD_TRY(try_merge(s, n, dy, needs, dx, &merged));
    if (!merged && n->op->split_gradient) {
        TRD_TRY(split(s, n, dy, needs, dx));
    } else if (!merged) {
        if (!n->op->gradient)
            return trd__fail(TRD_UNSUPPORTED, "autodiff: %s has no gradient; put trd_stop_gradient before it",
                             n->op->name);
        n->op->gradient(s->b, n, dy, needs, dx);
        if (s->b->status != TRD_OK) return fail_in_gradient(s->b, n);
    }
    for (int i = 0; i < n->input_count; i++) {
        if (!needs[i] || trd_is_null(dx[i])) continue;
        TRD_TRY(check_cotangent(n, i, dx[i]));
        contribute(s, n->inputs[i], dx[i]);
    }
    return s->b->status == TRD_OK ? TRD_OK : fail_in_gradient(s->b, n);
}

static trd_status run(sweep *s, const trd__seed *seeds, int seed_count, int count)
{
    int last = -1;
    TRD_TRY(sweep_init(s));
    TRD_TRY(mark_requests(s, count));
    for (int i = 0; i < seed_count; i++) {
        if (!wanted(s, seeds[i].of)) continue;
        trd_value of = seeds[i].of, one = seeds[i].cotangent;
        if (trd_is_null(one)) one = trd_constant_fill(s->b, trd_value_dtype(of), trd_value_shape(of), 1);
        contribute(s, of, one);
        if (of.node->id > last) last = of.node->id;
    }
    TRD_TRY(trd_builder_status(s->b));
    for (int i = last; i >= 0; i--)
        if (s->active[i]) TRD_TRY(visit(s, s->b->graph.nodes[i]));
    return s->merges ? trd__rewrite_apply(&s->rewrite, NULL) : TRD_OK;
}

trd_status trd__autodiff_from(trd_builder *b, const trd__seed *seeds, int seed_count,
                              trd__gradient *gradients, int count)
{
    TRD_TRY(trd_builder_status(b));
    sweep s = {.b = b, .gradients = gradients, .may_merge = true};
    for (int i = 0; i < seed_count; i++) s.may_merge &= trd_is_null(seeds[i].cotangent);
    trd_status status = run(&s, seeds, seed_count, count);
    if (status != TRD_OK) trd__builder_stick(b, status);
    sweep_free(&s);
    return status;
}

trd_status trd__autodiff(trd_builder *b, trd_value loss, trd__gradient *gradients, int count)
{
    TRD_TRY(trd_builder_status(b));
    if (trd_is_null(loss) || trd_value_shape(loss).rank != 0 || !trd__dtype_is_float(trd_value_dtype(loss))) {
        char shape[TRD__SHAPE_TEXT];
        trd_shape found = trd_value_shape(loss);
        trd_builder_fail(b, TRD_SHAPE, "autodiff: the loss expected a float scalar, found %s %s",
                         trd_is_null(loss) ? "null" : trd__shape_text(&found, shape),
                         trd_dtype_name(trd_value_dtype(loss)));
        return b->status;
    }
    /* Whoever asks for the gradients of a loss must say what they are added to. */
    for (int i = 0; i < count; i++)
        if (trd_is_null(gradients[i].accumulator)) {
            trd_builder_fail(b, TRD_INVALID_ARGUMENT,
                             "autodiff: gradient %d expected an accumulator, found null", i);
            return b->status;
        }
    const trd__seed seed = {.of = loss};
    return trd__autodiff_from(b, &seed, 1, gradients, count);
}
