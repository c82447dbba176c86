/* From nodes to drafts of steps: kernel choice and planning of the nodes that are no part of a fused group.
 */
#include <string.h>

#include "backend/cpu/lower.h"
#include "base/alloc.h"
#include "base/log.h"

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
    d->inputs = trd__arena_alloc(l->arena, (size_t)inputs + 1, sizeof *d->inputs);
    d->outputs = trd__arena_alloc(l->arena, (size_t)outputs + 1, sizeof *d->outputs);
    d->reuse = trd__arena_alloc(l->arena, (size_t)inputs * (size_t)outputs + 1, sizeof *d->reuse);
    d->updates = trd__arena_alloc(l->arena, (size_t)outputs + 1, sizeof *d->updates);
    if (!d->inputs || !d->outputs || !d->reuse || !d->updates) return NULL;
    for (int r = 0; r < outputs; r++) d->updates[r] = -1;
    d->input_count = inputs;
    d->output_count = outputs;
    l->draft_count++;
    return d;
}

/* Says which kernel runs n and why those before it in the list do not. */
static void log_choice(const trd__lowering *l, const trd_node *n, const trd__cpu_kernel *chosen)
{
    const trd__cpu_op *row = trd__cpu_find(n->op);
    if (!l->log || !row) return;
    for (const trd__cpu_kernel *const *k = row->variants; *k && *k != chosen; k++) {
        const char *reason = (*k)->refuse ? (*k)->refuse(n, l->info) : NULL;
        trd__log(l->log, TRD_LOG_INFO, "%s %s: no %s kernel: %s", n->op->name, n->name ? n->name : "",
                 (*k)->name, reason ? reason : "plain kernels asked for");
    }
    trd__log(l->log, TRD_LOG_INFO, "%s %s: %s", n->op->name, n->name ? n->name : "", chosen->name);
}

trd_status trd__draft_node(trd__lowering *l, const trd_node *n)
{
    if (n->op == &trd__op_repeat) return trd__draft_repeat(l, n);
    trd__draft *d = trd__draft_add(l, n, n->input_count, n->result_count);
    if (!d) return TRD_NO_MEMORY;
    d->kernel = n->op == &trd__op_copy ? &trd__kernel_copy : trd__cpu_choose(n, l->info);
    if (!d->kernel)
        return trd__fail(TRD_UNSUPPORTED, "op %s%s%s: the CPU has no kernel for it and it does not expand",
                         n->op->name, n->name ? " " : "", n->name ? n->name : "");
    log_choice(l, n, d->kernel);
    if (d->kernel->plan)
        TRD_TRY(d->kernel->plan(n, &d->plan));
    else
        d->plan.workers = 1;
    for (int i = 0; i < n->input_count; i++) {
        bool reads = n->inputs[i].node && !trd__starts_from_zero(l, n, i);
        d->inputs[i] = reads ? trd__value_number(l, n->inputs[i]) : -1;
    }
    for (int r = 0; r < n->result_count; r++) {
        int v = l->first_value[n->id] + r;
        d->outputs[r] = l->values[v].uses > 0 ? v : -1;
        if (d->outputs[r] < 0) continue;
        int operand = d->plan.in_place[r] - 1;
        if (operand < 0) continue;
        bool updates = (n->op->flags & TRD__OP_ALIASES) && operand == n->op->alias_input;
        if (updates) d->updates[r] = operand;
        d->reuse[r * d->input_count + operand] = updates || !l->info->reference_only;
    }
    trd__count_traffic(l, d);
    return TRD_OK;
}
