/* The registry: every descriptor of ops.def, in its order. */
#include <string.h>

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

const trd_op *trd__op_find(const char *name)
{
    for (int i = 0; i < trd__op_count(); i++)
        if (strcmp(ops[i]->name, name) == 0) return ops[i];
    return NULL;
}
