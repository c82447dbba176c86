/* From a program to an executable: a private copy of the program, generic passes, fusion and kernel choice,
 * storage, steps. Invariant: the executable holds everything it runs with; the caller's program may go. */
#include "backend/cpu/lower.h"
#include "backend/entries.h"
#include "base/alloc.h"
#include "base/log.h"
#include "graph/passes.h"
#include "ops/repeat.h"

/* One loop runs at a time: a repeat in a repeat has to lie in an unrolled one. */
static bool is_innermost(const trd_node *n)
{
    const trd_graph *body = &n->bodies[0]->builder->graph;
    for (int i = 0; i < body->node_count; i++)
        if (body->nodes[i]->body_count) return false;
    return true;
}

static bool has_kernel(const trd_node *n, void *user)
{
    const trd__cpu_info *info = user;
    if (n->op == &trd__op_input || n->op == &trd__op_copy) return true;
    if (n->op == &trd__op_repeat) return is_innermost(n);
    return trd__cpu_choose(n, info) != NULL;
}

/* They go through bodies too. */
static trd_status run_passes(trd__lowering *l)
{
    trd__cpu_info info = *l->info;
    TRD_TRY(trd__dce(l->program));
    TRD_TRY(trd__cse(l->program));
    TRD_TRY(trd__expand(l->program, has_kernel, &info));
    TRD_TRY(trd__cse(l->program));
    if (!info.reference_only) TRD_TRY(trd__fuse_accumulate(l->program));
    return trd__dce(l->program);
}

/* What the program would take on one thread, of which each node is a share: seconds by the rates of a slow
 * processor. A repeat is its body's nodes, as often as they run. */
typedef struct work {
    double seconds, nodes;
} work;

static double seconds_of_bytes(uint64_t bytes)
{
    return (double)bytes / 8e9;
}

static void add_work(const trd_graph *graph, double times, work *sum)
{
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        for (int b = 0; b < n->body_count; b++) {
            double turns = n->op == &trd__op_repeat ? (double)trd__repeat_attr_of(n)->count : 1.0;
            add_work(&n->bodies[b]->builder->graph, times * turns, sum);
        }
        if (n->body_count) continue;
        double seconds = n->op->flops ? n->op->flops(n) / 3e10 : 0.0;
        for (int r = 0; r < n->result_count; r++)
            seconds += seconds_of_bytes(trd__tensor_bytes(&n->results[r].shape, n->results[r].dtype));
        sum->seconds += times * seconds;
        sum->nodes += times;
    }
}

/* Whether waiting for each other, and for each other's caches, would cost more than further threads save: the
 * nodes of a small model take a microsecond or two. Short programs are over before that counts. */
static bool is_fine_grained(const trd__program *program)
{
    enum { FEW_NODES = 256 };
    static const double grain = 8e-6;
    work sum = {0};
    add_work(&program->builder->graph, 1.0, &sum);
    return sum.nodes >= FEW_NODES && sum.seconds < grain * sum.nodes;
}

trd_status trd__draft_program(trd__lowering *l)
{
    int kept = l->graph->node_count;
    TRD_TRY(trd__normalize_outputs(l->program));
    TRD_TRY(trd__hoist(l->program, kept)); /* a carry that is copied early may be updated in place later */
    TRD_TRY(trd__dce(l->program));
    TRD_TRY(trd__verify(l->program));
    TRD_TRY(trd__number_values(l));
    return trd__fuse(l);
}

void trd__lowering_end(trd__lowering *l)
{
    for (int d = 0; d < l->draft_count; d++)
        if (l->drafts[d].body) trd__lowering_end(l->drafts[d].body);
    trd__free(l->copies);
    trd__free(l->drafts);
    trd__free(l->values);
    trd__free(l->first_value);
}

static void bind_layouts(trd__executable *e)
{
    for (int s = 0; s < e->program->slot_count; s++)
        e->layouts[s] = trd__entries_key(e->program->slots[s].entries, e->program->slots[s].entry_count);
}

/* info: the lowering's. */
static trd_status lower(trd__lowering *l, trd__cpu_info *info)
{
    trd__executable *e = l->executable;
    e->arena = l->arena = trd__arena_create();
    if (!e->arena) return TRD_NO_MEMORY;
    e->name = trd__arena_strdup(e->arena, l->program->name);
    if (!e->name) return TRD_NO_MEMORY;
    e->report.flops = trd__program_flops(l->program);
    TRD_TRY(run_passes(l));
    const trd__cpu_info asked = *info;
    if (is_fine_grained(l->program)) info->workers = 1;
    TRD_TRY(trd__draft_program(l));
    TRD_TRY(trd__place_values(l));
    TRD_TRY(trd__emit_steps(l));
    bind_layouts(e);
    e->report.fingerprint = trd__cpu_fingerprint(e, &asked);
    return TRD_OK;
}

trd_status trd__cpu_compile(const trd__cpu_info *info, const trd_log_sink *log, const trd__program *program,
                            const trd__compile_options *options, trd__executable **executable)
{
    *executable = NULL;
    trd__cpu_info chosen = *info;
    chosen.reference_only = options && options->reference_kernels;
    trd__executable *e = trd__calloc(1, sizeof *e);
    if (!e) return TRD_NO_MEMORY;
    trd__lowering l = {.info = &chosen, .log = options && options->verbose ? log : NULL, .executable = e};
    trd_status status = trd__program_copy(program, &e->program);
    if (!status) {
        l.program = e->program;
        l.graph = &e->program->builder->graph;
        status = lower(&l, &chosen);
    }
    trd__lowering_end(&l);
    if (status) {
        trd__cpu_executable_free(e);
        return trd__fail_in(status, "compile of \"%s\"", program->name);
    }
    trd__log(log, TRD_LOG_INFO, "compiled %s: %d nodes, %d kernels, arena %.1f MB (bound %.1f MB)", e->name,
             e->report.node_count, e->report.kernel_count, (double)e->report.arena_bytes / 1e6,
             (double)e->report.lower_bound_bytes / 1e6);
    *executable = e;
    return TRD_OK;
}

void trd__cpu_executable_free(trd__executable *executable)
{
    if (!executable) return;
    trd__program_free(executable->program);
    trd__arena_free(executable->arena);
    trd__free(executable);
}
