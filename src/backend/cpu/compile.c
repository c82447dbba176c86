/* From a program to an executable: a private copy of the program, generic passes, fusion and kernel choice,
 * storage, steps. Invariant: the executable holds everything it runs with; the caller's program may go. */
#include <string.h>

#include "backend/cpu/lower.h"
#include "backend/entries.h"
#include "base/alloc.h"
#include "base/log.h"
#include "graph/passes.h"

static bool has_kernel(const trd_node *n, void *user)
{
    const trd__cpu_info *info = user;
    if (n->op == &trd__op_input || n->op == &trd__op_copy) return true;
    return trd__cpu_choose(n, info) != NULL;
}

static trd_status run_passes(trd__lowering *l)
{
    trd__cpu_info info = *l->info;
    TRD_TRY(trd__dce(l->program));
    TRD_TRY(trd__cse(l->program));
    TRD_TRY(trd__expand(l->program, has_kernel, &info));
    TRD_TRY(trd__cse(l->program));
    if (!info.reference_only) TRD_TRY(trd__fuse_accumulate(l->program));
    TRD_TRY(trd__dce(l->program));
    TRD_TRY(trd__normalize_outputs(l->program));
    TRD_TRY(trd__dce(l->program));
    return trd__verify(l->program);
}

trd__draft *trd__draft_add(trd__lowering *l, const trd_node *node, int inputs, int outputs)
{
    if (l->draft_count == l->draft_capacity) {
        int capacity = l->draft_capacity ? 2 * l->draft_capacity : 64;
        trd__draft *larger = trd__realloc(l->drafts, (size_t)capacity, sizeof *larger);
        if (!larger) return NULL;
        l->drafts = larger;
        l->draft_capacity = capacity;
    }
    trd__draft *d = &l->drafts[l->draft_count];
    memset(d, 0, sizeof *d);
    d->node = node;
    d->name = node->op->name;
    d->plan.info = l->info;
    d->plan.arena = l->arena;
    d->accumulator = -1;
    d->inputs = trd__arena_alloc(l->arena, (size_t)inputs + 1, sizeof *d->inputs);
    d->outputs = trd__arena_alloc(l->arena, (size_t)outputs + 1, sizeof *d->outputs);
    if (!d->inputs || !d->outputs) return NULL;
    d->input_count = inputs;
    d->output_count = outputs;
    l->draft_count++;
    return d;
}

static size_t round_up(size_t bytes)
{
    return (bytes + TRD__ALIGNMENT - 1) & ~(size_t)(TRD__ALIGNMENT - 1);
}

static trd_status fill_step(trd__lowering *l, const trd__draft *d, trd__cpu_step *step)
{
    *step = (trd__cpu_step){.kernel = d->kernel,
                            .node = d->node,
                            .state = d->plan.state,
                            .input_count = d->input_count,
                            .output_count = d->output_count,
                            .workers = d->plan.workers == 1 || l->info->workers == 1 ? 1 : 0,
                            .phases = d->plan.phases ? d->plan.phases : 1,
                            .worker_bytes = round_up(d->plan.worker_bytes),
                            .shared_bytes = round_up(d->plan.shared_bytes),
                            .bytes_read = d->bytes_read,
                            .bytes_written = d->bytes_written,
                            .name = d->name,
                            .flops = d->node->op->flops ? d->node->op->flops(d->node) : 0};
    step->inputs = trd__arena_alloc(l->arena, (size_t)d->input_count + 1, sizeof *step->inputs);
    step->outputs = trd__arena_alloc(l->arena, (size_t)d->output_count + 1, sizeof *step->outputs);
    if (!step->inputs || !step->outputs) return TRD_NO_MEMORY;
    static const trd__place none = {TRD__REGION_NONE, 0};
    for (int i = 0; i < d->input_count; i++)
        step->inputs[i] = d->inputs[i] < 0 ? none : l->values[d->inputs[i]].place;
    for (int i = 0; i < d->output_count; i++)
        step->outputs[i] = d->outputs[i] < 0 ? none : l->values[d->outputs[i]].place;
    /* A copied accumulator is found where the result will be. */
    int accumulator = d->accumulator;
    for (int r = 0; accumulator >= 0 && r < d->output_count; r++)
        if (d->outputs[r] >= 0 && d->inputs[accumulator] >= 0 && (d->reuse[r] >> accumulator & 1))
            step->inputs[accumulator] = step->outputs[r];
    return TRD_OK;
}

static trd_status fill_copy(trd__lowering *l, const trd__copy *copy, const trd_node *node,
                            trd__cpu_step *step)
{
    size_t *bytes = trd__arena_alloc(l->arena, 1, sizeof *bytes);
    step->inputs = trd__arena_alloc(l->arena, 2, sizeof *step->inputs);
    if (!bytes || !step->inputs) return TRD_NO_MEMORY;
    *bytes = copy->bytes;
    step->outputs = step->inputs + 1;
    step->inputs[0] = copy->from;
    step->outputs[0] = copy->to;
    step->kernel = &trd__kernel_copy;
    step->node = node;
    step->state = bytes;
    step->bytes_read = step->bytes_written = copy->bytes;
    step->name = trd__op_copy.name;
    step->input_count = step->output_count = step->phases = 1;
    step->workers = copy->bytes < (1u << 16) || l->info->workers == 1 ? 1 : 0;
    return TRD_OK;
}

static trd_status emit_steps(trd__lowering *l)
{
    trd__executable *e = l->executable;
    e->steps = trd__arena_alloc(l->arena, (size_t)(l->draft_count + l->copy_count) + 1, sizeof *e->steps);
    if (!e->steps) return TRD_NO_MEMORY;
    int copy = 0;
    for (int d = 0; d <= l->draft_count; d++) {
        for (; copy < l->copy_count && l->copies[copy].draft <= d; copy++) {
            const trd_node *node = d < l->draft_count ? l->drafts[d].node : l->graph->nodes[0];
            TRD_TRY(fill_copy(l, &l->copies[copy], node, &e->steps[e->step_count++]));
        }
        if (d == l->draft_count) break;
        TRD_TRY(fill_step(l, &l->drafts[d], &e->steps[e->step_count++]));
    }
    for (int s = 0; s < e->step_count; s++) {
        e->report.bytes_read += e->steps[s].bytes_read;
        e->report.bytes_written += e->steps[s].bytes_written;
        if (e->steps[s].worker_bytes > e->worker_scratch) e->worker_scratch = e->steps[s].worker_bytes;
        if (e->steps[s].shared_bytes > e->shared_scratch) e->shared_scratch = e->steps[s].shared_bytes;
    }
    e->report.scratch_bytes = (uint64_t)l->info->workers * e->worker_scratch + e->shared_scratch;
    e->report.node_count = l->graph->node_count;
    e->report.kernel_count = e->step_count;
    return TRD_OK;
}

static void bind_layouts(trd__executable *e)
{
    for (int s = 0; s < e->program->slot_count; s++)
        e->layouts[s] = trd__entries_key(e->program->slots[s].entries, e->program->slots[s].entry_count);
}

static trd_status lower(trd__lowering *l)
{
    trd__executable *e = l->executable;
    e->arena = l->arena = trd__arena_create();
    if (!e->arena) return TRD_NO_MEMORY;
    e->name = trd__arena_strdup(e->arena, l->program->name);
    if (!e->name) return TRD_NO_MEMORY;
    e->report.flops = trd__program_flops(l->program);
    TRD_TRY(run_passes(l));
    TRD_TRY(trd__number_values(l));
    TRD_TRY(trd__fuse(l));
    TRD_TRY(trd__place_values(l));
    TRD_TRY(emit_steps(l));
    bind_layouts(e);
    e->report.fingerprint = trd__cpu_fingerprint(e, l->info);
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
        status = lower(&l);
    }
    trd__free(l.copies);
    trd__free(l.drafts);
    trd__free(l.values);
    trd__free(l.first_value);
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
