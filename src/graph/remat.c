/* Rematerialization: which forward values the backward part keeps and which it computes again.
 *
 * A node is *early* up to the last forward node and *late* after it. Each forward node gets a decision, keep
 * or recompute; late users of a recomputed node use a copy, one per node, placed just before the first of
 * them. A copy is the same op on the same bits, so results do not change. Invariant: a recomputed node's
 * operands are leaves, recomputed, or kept anyway.
 *
 * none: a cheap node is recomputed when its operands are at hand in the backward part and it would lie idle
 * for longer than it is used there, if it is large enough to care. minimal: products and layer boundaries are
 * kept, cheap nodes recomputed. full: inside layers (before the last boundary) only boundaries are kept, and
 * what several layers share (tables, masks). Behind the last boundary, where the backward part begins at
 * once, every policy acts as none.
 *
 * A rule may have two such levels, one for the first layers and one for the others, and lets minimal give up
 * products up to an intensity (FLOPs a byte of result): the cheapest memory to free.
 *
 * A body that is repeated is one layer as a whole: what the early part hands over is kept for every
 * iteration, its outputs are not at hand. */
#include <math.h>

#include "base/alloc.h"
#include "base/shape.h"
#include "graph/passes.h"
#include "graph/rewrite.h"

enum {
    SHORT_IDLE = 8, /* nodes between the last early and the first late use below which a copy saves nothing */
    FEW = 1 << 15   /* bytes of results that cost less to keep than a kernel call costs */
};

typedef struct facts {
    int first_late, last_late;   /* users in the late part, -1: none */
    int last_early;              /* last early user, or the node itself */
    int first_layer, last_layer; /* of the node and its early users */
    bool output;                 /* an output holds it alive whatever is decided */
    bool available;              /* at hand in the late part */
    bool recompute;
    bool needed; /* a copy is used */
    trd_node *copy;
} facts;

typedef struct plan {
    trd_builder *b;
    trd__remat_rule rule;
    facts *facts;
    int early;  /* number of early nodes */
    int layers; /* end of the last layer: nodes below it are inside layers */
    bool body;  /* of a repeated body: all of it is one layer, and much lies between its two parts */
} plan;

static void find_parts(plan *p)
{
    const trd_graph *graph = &p->b->graph;
    for (int i = 0; i < graph->node_count; i++) {
        if (!graph->nodes[i]->forward) continue;
        p->early = i + 1;
        if (graph->nodes[i]->layer_boundary || p->body) p->layers = i + 1;
    }
}

static void note_use(plan *p, int user, int layer, const trd_node *n)
{
    facts *f = &p->facts[n->id];
    if (user >= p->early) {
        if (f->first_late < 0) f->first_late = user;
        f->last_late = user;
    } else {
        f->last_early = user;
        f->last_layer = layer;
    }
}

static void gather_facts(plan *p, const trd__program *program)
{
    const trd_graph *graph = &p->b->graph;
    int layer = 0;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        if (i < p->early)
            p->facts[i] = (facts){.first_late = -1,
                                  .last_late = -1,
                                  .last_early = i,
                                  .first_layer = layer,
                                  .last_layer = layer};
        for (int j = 0; j < n->input_count; j++)
            if (n->inputs[j].node && n->inputs[j].node->id < p->early)
                note_use(p, i, layer, n->inputs[j].node);
        if (n->layer_boundary && i < p->early) layer++;
    }
    for (int i = 0; i < program->output_count; i++) {
        int id = program->outputs[i].value.node->id;
        if (id < p->early && !p->body) p->facts[id].output = true;
    }
}

static bool operands_available(const plan *p, const trd_node *n)
{
    for (int j = 0; j < n->input_count; j++)
        if (n->inputs[j].node && !p->facts[n->inputs[j].node->id].available) return false;
    return true;
}

static double result_bytes(const trd_node *n)
{
    double bytes = 0;
    for (int r = 0; r < n->result_count; r++)
        bytes += (double)trd__tensor_bytes(&n->results[r].shape, n->results[r].dtype);
    return bytes;
}

/* Whether a copy frees memory: an unused value costs nothing to "recompute", a used one must lie idle. */
static bool worth_it(const facts *f, const trd_node *n)
{
    if (f->first_late < 0) return true;
    int idle = f->first_late - f->last_early, span = f->last_late - f->first_late;
    return idle > SHORT_IDLE + span && result_bytes(n) >= FEW;
}

static double intensity(const trd_node *n)
{
    double bytes = result_bytes(n);
    return n->op->flops && bytes > 0 ? n->op->flops(n) / bytes : INFINITY;
}

/* Behind the last boundary every rule acts as none. */
static const trd__remat_level *level_of(const plan *p, const trd_node *n)
{
    static const trd__remat_level none = {.policy = TRD__REMAT_NONE};
    if (n->id >= p->layers) return &none;
    return p->facts[n->id].first_layer < p->rule.deeper_layers ? &p->rule.deeper : &p->rule.level;
}

static bool decide(const plan *p, const trd_node *n)
{
    const facts *f = &p->facts[n->id];
    const trd__remat_level *level = level_of(p, n);
    bool cheap = n->op->cost != TRD__COST_PRODUCT, own = f->first_layer == f->last_layer;
    if (!n->forward || f->output || n->op->flags & TRD__OP_LEAF || n->layer_boundary || n->body_count)
        return false;
    if (level->policy == TRD__REMAT_FULL) return own;
    if (level->policy == TRD__REMAT_MINIMAL) return cheap || (own && intensity(n) <= level->intensity);
    return cheap && operands_available(p, n) && (p->body || worth_it(f, n));
}

static void decide_all(plan *p)
{
    for (int i = 0; i < p->early; i++) {
        const trd_node *n = p->b->graph.nodes[i];
        facts *f = &p->facts[i];
        bool kept_by_policy = level_of(p, n)->policy != TRD__REMAT_NONE;
        f->recompute = decide(p, n);
        f->available =
            f->recompute || f->output || f->first_late >= 0 || kept_by_policy || n->op->flags & TRD__OP_LEAF;
    }
}

static void mark_operands(plan *p, const trd_node *n)
{
    for (int j = 0; j < n->input_count; j++) {
        const trd_node *input = n->inputs[j].node;
        if (input && input->id < p->early && p->facts[input->id].recompute) p->facts[input->id].needed = true;
    }
}

static void use_copies(plan *p, trd_node *n)
{
    for (int j = 0; j < n->input_count; j++) {
        const trd_node *input = n->inputs[j].node;
        if (input && input->id < p->early && p->facts[input->id].copy)
            n->inputs[j].node = p->facts[input->id].copy;
    }
}

/* Marks from the late users towards the front, then copies in topological order. */
static trd_status make_copies(plan *p)
{
    trd_graph *graph = &p->b->graph;
    int count = graph->node_count;
    for (int i = count - 1; i >= 0; i--)
        if (i >= p->early || p->facts[i].needed) mark_operands(p, graph->nodes[i]);
    for (int i = 0; i < p->early; i++) {
        if (!p->facts[i].needed) continue;
        trd_node *copy = trd__node_copy(p->b, graph->nodes[i]);
        if (!copy) return TRD_NO_MEMORY;
        copy->forward = false;
        copy->recomputed = true;
        use_copies(p, copy);
        p->facts[i].copy = copy;
    }
    for (int i = p->early; i < count; i++) use_copies(p, graph->nodes[i]);
    return TRD_OK;
}

static trd_status rematerialize(trd__program *program, trd__remat_rule rule, bool body)
{
    TRD_TRY(trd__dce(program)); /* a dead user would count as a use */
    plan p = {.b = program->builder, .rule = rule, .body = body};
    find_parts(&p);
    p.facts = trd__calloc((size_t)p.early + 1, sizeof *p.facts);
    if (!p.facts) return TRD_NO_MEMORY;
    gather_facts(&p, program);
    decide_all(&p);
    trd__rewrite rewrite;
    trd_status status = trd__rewrite_begin(p.b, &rewrite);
    if (status == TRD_OK) status = make_copies(&p);
    if (status == TRD_OK)
        status = trd__rewrite_apply(&rewrite, program); /* puts the copies in their places */
    trd__rewrite_end(&rewrite);
    trd__free(p.facts);
    return status == TRD_OK ? trd__dce(program) : status;
}

trd_status trd__remat(trd__program *program, trd__remat_rule rule)
{
    return rematerialize(program, rule, false);
}

trd_status trd__remat_body(trd__program *program, trd__remat_rule rule)
{
    return rematerialize(program, rule, true);
}

trd__remat_rule trd__remat_everywhere(trd__remat_policy policy)
{
    return (trd__remat_rule){.level = {.policy = policy}};
}

typedef struct found {
    double *intensities;
    int count, capacity, layers;
} found;

/* Keeps them ascending; where there is no more room, the largest goes. */
static void note_intensity(found *f, double value)
{
    int at = 0;
    while (at < f->count && f->intensities[at] < value) at++;
    if (at < f->count && f->intensities[at] <= value) return; /* is there */
    if (at == f->capacity) return;
    if (f->count < f->capacity) f->count++;
    for (int i = f->count - 1; i > at; i--) f->intensities[i] = f->intensities[i - 1];
    f->intensities[at] = value;
}

static void find_intensities(const trd__program *program, bool body, found *f)
{
    const trd_graph *graph = &program->builder->graph;
    int last = -1;
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->forward && (body || graph->nodes[i]->layer_boundary)) last = i;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        for (int b = 0; b < n->body_count; b++) find_intensities(n->bodies[b], true, f);
        f->layers += !body && n->forward && n->layer_boundary;
        if (i < last && n->forward && n->op->cost == TRD__COST_PRODUCT && !n->body_count &&
            !n->layer_boundary)
            note_intensity(f, intensity(n));
    }
}

int trd__remat_intensities(const trd__program *program, double *intensities, int capacity, int *layers)
{
    found f = {.intensities = intensities, .capacity = capacity};
    find_intensities(program, false, &f);
    *layers = f.layers;
    return f.count;
}
