/* A number for what an executable is: the lowered graph, the kernels chosen, where every value lives, the
 * instruction set and the number of workers. No pointer goes in, so it is the same in every process; two
 * executables with one fingerprint do the same work in the same order. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/group.h"
#include "base/checksum.h"
#include "graph/passes.h"

static uint64_t add_number(uint64_t hash, uint64_t value)
{
    return trd__checksum_more(hash, &value, sizeof value);
}

static uint64_t add_places(uint64_t hash, const trd__place *places, int count)
{
    hash = add_number(hash, (uint64_t)count);
    for (int i = 0; i < count; i++) {
        hash = add_number(hash, (uint64_t)places[i].region);
        hash = add_number(hash, places[i].offset);
        hash = add_number(hash, places[i].stride);
    }
    return hash;
}

/* What fusion made of its nodes: they are in the graph, how they were joined is not. */
static uint64_t add_group(uint64_t hash, const trd__group *group)
{
    hash = add_number(hash, (uint64_t)group->count);
    hash = add_number(hash, (uint64_t)group->op_count);
    hash = add_number(hash, (uint64_t)group->load_count);
    hash = add_number(hash, (uint64_t)group->store_count);
    hash = add_number(hash, (uint64_t)group->reduction_count);
    return add_number(hash, (uint64_t)group->register_count);
}

static uint64_t add_step(uint64_t hash, const trd__cpu_step *step)
{
    hash = trd__checksum_more(hash, step->kernel->name, strlen(step->kernel->name) + 1);
    hash = add_number(hash, (uint64_t)step->node->id);
    hash = add_number(hash, (uint64_t)step->workers);
    hash = add_number(hash, (uint64_t)step->phases);
    hash = add_number(hash, step->worker_bytes);
    hash = add_number(hash, step->shared_bytes);
    hash = add_number(hash, step->loop ? (uint64_t)step->loop->first : UINT64_MAX);
    hash = add_places(hash, step->inputs, step->input_count);
    hash = add_places(hash, step->outputs, step->output_count);
    return step->kernel == &trd__kernel_group ? add_group(hash, step->state) : hash;
}

uint64_t trd__cpu_fingerprint(const trd__executable *executable, const trd__cpu_info *info)
{
    uint64_t hash = trd__program_fingerprint(executable->program);
    hash = add_number(hash, (uint64_t)info->isa);
    hash = add_number(hash, (uint64_t)info->workers);
    for (int s = 0; s < executable->step_count; s++) hash = add_step(hash, &executable->steps[s]);
    return hash;
}
