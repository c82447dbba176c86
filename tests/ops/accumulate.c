/* Cases of accumulate: rounded once into the accumulator's dtype, whatever x's is. */
#include "support/op_case.h"

static int build(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_accumulate(b, in[0], in[1]);
    return 1;
}

/* A constant 0 is defined, not added to. */
static int build_first(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    trd_value zero = trd_constant_fill(b, trd_value_dtype(in[0]), trd_value_shape(in[0]), 0);
    out[0] = trd_accumulate(b, trd_accumulate(b, zero, in[0]), in[1]);
    return 1;
}

#define X(label, type, ...)                                                                                  \
    {                                                                                                        \
        .name = label, .dtype = type, .shape = OP_SHAPE(__VA_ARGS__), .fill = op_normal, .high = 1,          \
        .gradient = true                                                                                     \
    }

static const op_case cases[] = {
    {.name = "same",
     .op = &trd__op_accumulate,
     .build = build,
     .operands = {OP_X("accumulator", 17, 33), OP_X("x", 17, 33)}},
    {.name = "bf16_f32",
     .op = &trd__op_accumulate,
     .build = build,
     .skip = 1u << OP_DIFFERENCES /* rounds */,
     .operands = {X("accumulator", TRD_BF16, 65, 129), X("x", TRD_F32, 65, 129)}},
    {.name = "f32_bf16",
     .op = &trd__op_accumulate,
     .build = build,
     .skip = 1u << OP_DIFFERENCES /* rounds */,
     .operands = {X("accumulator", TRD_F32, 5, 3), X("x", TRD_BF16, 5, 3)}},
    {.name = "first",
     .op = &trd__op_accumulate,
     .build = build_first,
     .operands = {OP_X("x", 3, 65), OP_X("y", 3, 65)}},
};

OP_CASES_MAIN("ops/accumulate", cases)
