#include "ops/repeat_gradient.h"
void trd__repeat_gradient(trd_builder *b, const trd_node *n, trd__differentiate *differentiate,
                          const trd_value *dy, const bool *needs, trd_value *results, trd_value *dx)
{
    (void)differentiate, (void)dy, (void)needs, (void)results, (void)dx;
    trd_builder_fail(b, TRD_UNSUPPORTED, "%s: no gradient", n->op->name);
}
bool trd__repeat_accumulate(trd_builder *b, const trd_node *n, int result, trd_value accumulator,
                            trd_value *results)
{
    (void)b, (void)n, (void)result, (void)accumulator, (void)results;
    return false;
}
