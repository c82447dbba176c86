/* Joining steps that do the same to arrays that lie behind one another, as the leaves of a state's sets do:
 * an update of hundreds of small parameters becomes one pass over memory. Elementwise groups alone can be
 * joined. Invariant: the joined step reads and writes the bytes that both did, and every value keeps its
 * bits. */
#include <string.h>

#include "backend/cpu/group.h"
#include "backend/cpu/lower.h"
#include "base/alloc.h"

static bool same_load(const trd__group_load *a, const trd__group_load *b)
{
    return a->kind == b->kind && a->input == b->input && a->dtype == b->dtype && a->reg == b->reg &&
           memcmp(&a->value, &b->value, sizeof a->value) == 0;
}

static bool same_op(const trd__group_op *a, const trd__group_op *b)
{
    return a->run == b->run && a->out == b->out && memcmp(a->in, b->in, sizeof a->in) == 0 &&
           a->round == b->round && a->keep == b->keep && a->other == b->other &&
           a->first_load == b->first_load && a->load_count == b->load_count && a->store == b->store;
}

static bool same_store(const trd__group_store *a, const trd__group_store *b)
{
    return a->output == b->output && a->reg == b->reg && a->op == b->op && a->dtype == b->dtype;
}

/* Whether two groups do the same to each of their elements. */
static bool same_group(const trd__group *a, const trd__group *b)
{
    if (a->reduction_count || b->reduction_count || a->register_count != b->register_count) return false;
    if (a->load_count != b->load_count || a->op_count != b->op_count || a->store_count != b->store_count)
        return false;
    for (int i = 0; i < a->load_count; i++)
        if (a->loads[i].kind == TRD__LOAD_STRIDED || !same_load(&a->loads[i], &b->loads[i])) return false;
    for (int k = 0; k < a->op_count; k++)
        if (!same_op(&a->ops[k], &b->ops[k])) return false;
    for (int s = 0; s < a->store_count; s++)
        if (!same_store(&a->stores[s], &b->stores[s])) return false;
    return true;
}

static bool is_behind(const trd__place *a, const trd__place *b)
{
    return a->region == b->region && a->offset + a->bytes == b->offset;
}

/* Both operands as one: what is read element by element grows. */
static trd__place joined(const trd__place *a, const trd__place *b)
{
    trd__place both = *a;
    if (is_behind(a, b)) both.bytes += b->bytes;
    return both;
}

static bool overlap(const trd__place *a, const trd__place *b)
{
    return a->region == b->region && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Elements are written in no order, so what is written may be read only as the same element. */
static bool is_in_order(const trd__cpu_step *a, const trd__cpu_step *b)
{
    for (int r = 0; r < a->output_count; r++) {
        trd__place out = joined(&a->outputs[r], &b->outputs[r]);
        for (int i = 0; i < a->input_count; i++) {
            trd__place in = joined(&a->inputs[i], &b->inputs[i]);
            bool same = in.region == out.region && in.offset == out.offset && in.bytes == out.bytes;
            if (!same && overlap(&in, &out)) return false;
        }
        for (int k = 0; k < r; k++) {
            trd__place other = joined(&a->outputs[k], &b->outputs[k]);
            if (overlap(&other, &out)) return false;
        }
    }
    return true;
}

static bool can_join(const trd__cpu_step *a, const trd__cpu_step *b)
{
    if (a->kernel != &trd__kernel_group || b->kernel != &trd__kernel_group || a->loop || b->loop)
        return false;
    const trd__group *group = a->state;
    if (a->input_count != b->input_count || a->output_count != b->output_count) return false;
    if (!same_group(group, b->state)) return false;
    for (int i = 0; i < group->load_count; i++) {
        const trd__group_load *load = &group->loads[i];
        if (load->input < 0) continue;
        const trd__place *in = &a->inputs[load->input], *next = &b->inputs[load->input];
        bool same = in->region == next->region && in->offset == next->offset;
        if (load->kind == TRD__LOAD_SCALAR ? !same : !is_behind(in, next)) return false;
    }
    for (int r = 0; r < a->output_count; r++)
        if (!is_behind(&a->outputs[r], &b->outputs[r])) return false;
    return is_in_order(a, b);
}

trd_status trd__adjoin_step(const trd__lowering *l)
{
    trd__executable *e = l->executable;
    if (e->step_count < 2) return TRD_OK;
    trd__cpu_step *step = &e->steps[e->step_count - 2];
    const trd__cpu_step *next = step + 1;
    if (!can_join(step, next)) return TRD_OK;
    const trd__group *first = step->state, *second = next->state;
    trd__group *both = trd__arena_alloc(e->arena, 1, sizeof *both);
    if (!both) return TRD_NO_MEMORY;
    *both = *first;
    both->count += second->count;
    for (int i = 0; i < step->input_count; i++) {
        trd__place in = joined(&step->inputs[i], &next->inputs[i]);
        step->bytes_read += in.bytes - step->inputs[i].bytes;
        step->inputs[i] = in;
    }
    for (int r = 0; r < step->output_count; r++) step->outputs[r].bytes += next->outputs[r].bytes;
    step->bytes_written += next->bytes_written;
    step->flops += next->flops;
    step->state = both;
    if (l->info->workers > 1) step->workers = trd__group_workers(both);
    e->step_count--;
    return TRD_OK;
}
