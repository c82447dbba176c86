/* The registry: every descriptor of ops.def, in its order. */
#include "ops/attrs.h"

#define TRD_OP(name, family) &trd__op_##name,
static const trd_op *const ops[] = {
#include "ops/ops.def"
};
#undef TRD_OP

int trd__op_count(void)
{
    return (int)(sizeof ops / sizeof *ops);
}

const trd_op *trd__op_at(int index)
{
    return ops[index];
}
