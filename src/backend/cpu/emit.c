/* From drafts with storage to the executable's steps. A repeat's body follows in its draft's place: its steps
 * stand once, between the first and the last of their loop. */
#include "backend/cpu/lower.h"
#include "base/alloc.h"

/* Entry regions are those of one program only: outside it a place is said in the executable's. */
static trd__place bound(const trd__lowering *l, trd__place place)
{
    if (place.region < TRD__REGION_ENTRY) return place;
    trd__place entry = l->entries[place.region - TRD__REGION_ENTRY];
    entry.offset += place.offset;
    return entry;
}

trd__place trd__place_bound(const trd__lowering *l, int value)
{
    if (value < 0) return (trd__place){.region = TRD__REGION_NONE};
    trd__place place = bound(l, l->values[value].place);
    place.bytes = l->values[value].bytes;
    return place;
}

static trd_status fill_step(const trd__lowering *l, const trd__draft *d, trd__cpu_step *step)
{
    *step = (trd__cpu_step){.kernel = d->kernel,
                            .node = d->node,
                            .loop = l->loop,
                            .state = d->plan.state,
                            .input_count = d->input_count,
                            .output_count = d->output_count,
                            .workers = d->plan.workers == 1 || l->info->workers == 1 ? 1 : 0,
                            .phases = d->plan.phases ? d->plan.phases : 1,
                            .worker_bytes = trd__align_up(d->plan.worker_bytes),
                            .shared_bytes = trd__align_up(d->plan.shared_bytes),
                            .bytes_read = d->bytes_read,
                            .bytes_written = d->bytes_written,
                            .name = d->name,
                            .flops = d->node->op->flops ? d->node->op->flops(d->node) : 0};
    step->inputs = trd__arena_alloc(l->arena, (size_t)d->input_count + 1, sizeof *step->inputs);
    step->outputs = trd__arena_alloc(l->arena, (size_t)d->output_count + 1, sizeof *step->outputs);
    if (!step->inputs || !step->outputs) return TRD_NO_MEMORY;
    for (int i = 0; i < d->input_count; i++) step->inputs[i] = trd__place_bound(l, d->inputs[i]);
    for (int r = 0; r < d->output_count; r++) {
        step->outputs[r] = trd__place_bound(l, d->outputs[r]);
        /* A copied accumulator is found where the result will be. */
        int i = d->updates[r];
        if (i >= 0 && d->inputs[i] >= 0 && d->outputs[r] >= 0) step->inputs[i] = step->outputs[r];
    }
    return TRD_OK;
}

static trd_status fill_copy(const trd__lowering *l, const trd__copy *copy, const trd_node *node,
                            trd__cpu_step *step)
{
    size_t *bytes = trd__arena_alloc(l->arena, 1, sizeof *bytes);
    step->inputs = trd__arena_alloc(l->arena, 2, sizeof *step->inputs);
    if (!bytes || !step->inputs) return TRD_NO_MEMORY;
    *bytes = copy->bytes;
    step->outputs = step->inputs + 1;
    step->inputs[0] = bound(l, copy->from);
    step->outputs[0] = bound(l, copy->to);
    step->inputs[0].bytes = step->outputs[0].bytes = copy->bytes;
    step->kernel = &trd__kernel_copy;
    step->node = node;
    step->loop = l->loop;
    step->state = bytes;
    step->bytes_read = step->bytes_written = copy->bytes;
    step->name = trd__op_copy.name;
    step->input_count = step->output_count = step->phases = 1;
    step->workers = copy->bytes < (1u << 16) || l->info->workers == 1 ? 1 : 0;
    return TRD_OK;
}

static int most_steps(const trd__lowering *l)
{
    int steps = l->draft_count + l->copy_count;
    for (int d = 0; d < l->draft_count; d++)
        if (l->drafts[d].body) steps += most_steps(l->drafts[d].body);
    return steps;
}

static trd_status emit(trd__lowering *l);

static trd_status emit_body(const trd__lowering *l, const trd__draft *d)
{
    trd__cpu_loop *loop = d->body->loop;
    trd__bind_body(l, d);
    loop->first = l->executable->step_count;
    TRD_TRY(emit(d->body));
    loop->last = l->executable->step_count - 1;
    return TRD_OK;
}

static trd_status emit(trd__lowering *l)
{
    trd__executable *e = l->executable;
    int copy = 0;
    trd__fill_constants(l);
    for (int d = 0; d <= l->draft_count; d++) {
        for (; copy < l->copy_count && l->copies[copy].draft <= d; copy++) {
            const trd_node *node = d < l->draft_count ? l->drafts[d].node : l->graph->nodes[0];
            TRD_TRY(fill_copy(l, &l->copies[copy], node, &e->steps[e->step_count++]));
        }
        if (d == l->draft_count) break;
        if (l->drafts[d].body) {
            TRD_TRY(emit_body(l, &l->drafts[d]));
            continue;
        }
        TRD_TRY(fill_step(l, &l->drafts[d], &e->steps[e->step_count++]));
        TRD_TRY(trd__adjoin_step(l));
    }
    e->report.node_count += l->graph->node_count;
    return TRD_OK;
}

static void add_up(trd__executable *e, int workers)
{
    for (int s = 0; s < e->step_count; s++) {
        const trd__cpu_step *step = &e->steps[s];
        uint64_t calls = step->loop ? (uint64_t)step->loop->count : 1;
        e->report.bytes_read += calls * step->bytes_read;
        e->report.bytes_written += calls * step->bytes_written;
        e->report.kernel_count += (int)calls;
        if (step->worker_bytes > e->worker_scratch) e->worker_scratch = step->worker_bytes;
        if (step->shared_bytes > e->shared_scratch) e->shared_scratch = step->shared_bytes;
    }
    e->report.scratch_bytes = (uint64_t)workers * e->worker_scratch + e->shared_scratch;
}

trd_status trd__emit_steps(trd__lowering *l)
{
    trd__executable *e = l->executable;
    e->steps = trd__arena_alloc(l->arena, (size_t)most_steps(l) + 1, sizeof *e->steps);
    e->constants = trd__arena_alloc(l->arena, e->constant_bytes + 1, 1);
    if (!e->steps || !e->constants) return TRD_NO_MEMORY;
    TRD_TRY(emit(l));
    add_up(e, l->info->workers);
    return TRD_OK;
}
