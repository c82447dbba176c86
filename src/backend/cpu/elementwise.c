/* See elementwise.h. A NULL operand (an accumulator that starts from zero) reads as zeros. */
#include "backend/cpu/elementwise.h"

enum { BLOCK = 256, OPERANDS = 3, PARALLEL_ELEMENTS = 1 << 15 };

trd_status trd__elementwise_plan(const trd_node *n, trd__cpu_plan *plan, const trd__scalar_functions *table)
{
    for (; table->op; table++)
        if (table->op == n->op) plan->state = (void *)(uintptr_t)table;
    plan->workers = trd__shape_count(&n->results[0].shape) < PARALLEL_ELEMENTS ? 1 : 0;
    size_t bytes = trd_dtype_bytes(n->results[0].dtype);
    for (int i = n->input_count - 1; i >= 0; i--)
        if (trd_dtype_bytes(trd__type_of(n->inputs[i])->dtype) == bytes) plan->in_place[0] = i + 1;
    return TRD_OK;
}

static trd_dtype compute_type(const trd_node *n)
{
    trd_dtype type = TRD_I64;
    for (int i = 0; i < n->input_count; i++) {
        trd_dtype operand = trd__type_of(n->inputs[i])->dtype;
        if (operand == TRD_F64) return TRD_F64;
        if (trd__dtype_is_float(operand)) type = TRD_F32;
    }
    return type;
}

#define DEFINE_BLOCK(type, member)                                                                           \
    static void block_##member(const trd__scalar_functions *functions, void *out, void *const *in,           \
                               int count)                                                                    \
    {                                                                                                        \
        const type *x = in[0], *y = in[1], *z = in[2];                                                       \
        for (int i = 0; i < count; i++) ((type *)out)[i] = functions->member(x[i], y[i], z[i]);              \
    }
DEFINE_BLOCK(float, f32)
DEFINE_BLOCK(double, f64)
DEFINE_BLOCK(int64_t, i64)

void trd__elementwise_run(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    trd_dtype type = compute_type(n), result = n->results[0].dtype;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, trd__shape_count(&n->results[0].shape), 64, &begin, &end);
    double memory[OPERANDS + 1][BLOCK] = {{0}};
    void *in[OPERANDS] = {memory[0], memory[1], memory[2]};
    for (int64_t at = begin; at < end; at += BLOCK) {
        int count = end - at < BLOCK ? (int)(end - at) : BLOCK;
        for (int i = 0; i < n->input_count; i++) {
            trd_dtype operand = trd__type_of(n->inputs[i])->dtype;
            const unsigned char *data = call->inputs[i];
            if (data)
                trd__convert(operand, data + (size_t)at * trd_dtype_bytes(operand), type, in[i],
                             (size_t)count);
        }
        if (type == TRD_F32)
            block_f32(call->state, memory[OPERANDS], in, count);
        else if (type == TRD_F64)
            block_f64(call->state, memory[OPERANDS], in, count);
        else
            block_i64(call->state, memory[OPERANDS], in, count);
        trd__convert(type, memory[OPERANDS], result,
                     (unsigned char *)call->outputs[0] + (size_t)at * trd_dtype_bytes(result), (size_t)count);
    }
}
