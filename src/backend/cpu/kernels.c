/* Finding kernels: an op's row is found through its family's table, so ops.def stays the only list. */
#include "backend/cpu/kernel.h"

#define TRD_OP(name, family) extern const trd__cpu_op trd__cpu_##family[];
#include "ops/ops.def"
#undef TRD_OP

static const struct {
    const trd_op *op;
    const trd__cpu_op *family;
} ops[] = {
#define TRD_OP(name, family) {&trd__op_##name, trd__cpu_##family},
#include "ops/ops.def"
#undef TRD_OP
};

const trd__cpu_op *trd__cpu_find(const trd_op *op)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (ops[i].op != op) continue;
        for (const trd__cpu_op *row = ops[i].family; row->op; row++)
            if (row->op == op) return row;
    }
    return NULL;
}

const trd__cpu_kernel *trd__cpu_choose(const trd_node *n, const trd__cpu_info *info)
{
    const trd__cpu_op *row = trd__cpu_find(n->op);
    if (!row) return NULL;
    for (const trd__cpu_kernel *const *k = row->variants; *k; k++) {
        bool reference = !k[1];
        if (info->reference_only && !reference) continue;
        if (!(*k)->refuse || !(*k)->refuse(n, info)) return *k;
    }
    return NULL;
}
