/* Bytes that a kernel moves between memory and its registers in one run: whole operands and results, but for
 * ops that go to rows or elements by an index. Ids that repeat are counted as often as they occur. */
#include "backend/cpu/lower.h"

static uint64_t type_bytes(const trd__type *type)
{
    return trd__tensor_bytes(&type->shape, type->dtype);
}

/* Rows that n adds to or replaces, in the result's dtype. */
static uint64_t touched_bytes(const trd_node *n)
{
    const trd__type *update = trd__type_of(n->inputs[1]);
    return trd__tensor_bytes(&update->shape, n->results[0].dtype);
}

/* Operand i, the accumulator when it is there. */
static uint64_t operand_bytes(const trd_node *n, int i, uint64_t whole)
{
    bool by_index = n->op == &trd__op_gather_rows || n->op == &trd__op_take_last || n->op == &trd__op_slice;
    if (by_index && i == 0) return type_bytes(&n->results[0]);
    if (n->op == &trd__op_scatter_add_rows && i == 2) return touched_bytes(n);
    return n->op == &trd__op_update_rows && i == 0 ? 0 : whole;
}

static uint64_t result_bytes(const trd_node *n, const trd__draft *d, int r, uint64_t whole)
{
    bool rows = n->op == &trd__op_scatter_add_rows || n->op == &trd__op_update_rows;
    return rows && d->updates[r] >= 0 && d->inputs[d->updates[r]] >= 0 ? touched_bytes(n) : whole;
}

void trd__count_traffic(const trd__lowering *l, trd__draft *d)
{
    const trd_node *n = d->node;
    for (int i = 0; i < d->input_count; i++)
        if (d->inputs[i] >= 0) d->bytes_read += operand_bytes(n, i, l->values[d->inputs[i]].bytes);
    for (int r = 0; r < d->output_count; r++)
        if (d->outputs[r] >= 0) d->bytes_written += result_bytes(n, d, r, l->values[d->outputs[r]].bytes);
}
