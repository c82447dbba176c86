/* From nodes to drafts of steps: kernel choice and planning of the nodes that are no part of a fused group.
 */
#include <string.h>

#include "backend/cpu/lower.h"
#include "base/alloc.h"
#include "base/log.h"

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
    if ((n->op->flags & TRD__OP_ALIASES) && n->op->alias_input < n->input_count)
        d->accumulator = n->op->alias_input;
    for (int i = 0; i < n->input_count; i++) {
        bool reads = n->inputs[i].node && !trd__starts_from_zero(l, n, i);
        d->inputs[i] = reads ? trd__value_number(l, n->inputs[i]) : -1;
    }
    for (int r = 0; r < n->result_count; r++) {
        int v = l->first_value[n->id] + r;
        d->outputs[r] = l->values[v].uses > 0 ? v : -1;
        if (d->outputs[r] < 0) continue;
        int operand = d->plan.in_place[r] - 1;
        if (operand >= 0 && (operand == d->accumulator || !l->info->reference_only))
            d->reuse[r] = UINT64_C(1) << operand;
    }
    trd__count_traffic(l, d);
    return TRD_OK;
}
