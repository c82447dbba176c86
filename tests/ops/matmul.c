/* Cases of the products: every storage order, batches, shared weights, degenerate sizes, wide results. */
#include "support/op_case.h"

/* Parameters: transpose x, transpose y, result dtype (0: the operands'). */
static int build(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_dtype dtype = trd_value_dtype(in[0]);
    if (c->parameter[2] > 0) dtype = (trd_dtype)c->parameter[2];
    out[0] = trd_matmul(b, in[0], in[1], c->parameter[0] > 0, c->parameter[1] > 0, dtype);
    return 1;
}

static int build_linear(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_linear(b, in[0], in[1]);
    return 1;
}

/* One weight used twice: its accumulator is a chain of two products. */
static int build_twice(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_linear(b, trd_tanh(b, trd_linear(b, in[0], in[1])), in[1]);
    return 1;
}

/* A float32 weight used in bfloat16: its gradient is the float32 product. */
static int build_cast_weight(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_linear(b, in[0], trd_cast(b, in[1], trd_value_dtype(in[0])));
    return 1;
}

#define X(label, ...)                                                                                        \
    {                                                                                                        \
        .name = label, .dtype = OP_FLOAT, .shape = {__VA_ARGS__}, .fill = op_normal, .high = 1,              \
        .gradient = true                                                                                     \
    }
#define FOUR(label, m, n, k)                                                                                 \
    {.name = label "_nn",                                                                                    \
     .op = &trd__op_matmul,                                                                                  \
     .build = build,                                                                                         \
     .operands = {X("x", 2, {m, k}), X("y", 2, {k, n})}},                                                    \
        {.name = label "_nt",                                                                                \
         .op = &trd__op_matmul,                                                                              \
         .build = build,                                                                                     \
         .parameter = {0, 1},                                                                                \
         .operands = {X("x", 2, {m, k}), X("y", 2, {n, k})}},                                                \
        {.name = label "_tn",                                                                                \
         .op = &trd__op_matmul,                                                                              \
         .build = build,                                                                                     \
         .parameter = {1, 0},                                                                                \
         .operands = {X("x", 2, {k, m}), X("y", 2, {k, n})}},                                                \
    {                                                                                                        \
        .name = label "_tt", .op = &trd__op_matmul, .build = build, .parameter = {1, 1}, .operands = {       \
            X("x", 2, {k, m}),                                                                               \
            X("y", 2, {n, k})                                                                                \
        }                                                                                                    \
    }

static const op_case cases[] = {
    FOUR("odd", 17, 33, 5),
    FOUR("one", 1, 1, 1),
    FOUR("row", 1, 65, 33),
    FOUR("column", 65, 1, 17),
    FOUR("square", 64, 48, 96),
    {.name = "batched",
     .op = &trd__op_matmul,
     .build = build,
     .operands = {X("x", 4, {2, 3, 5, 17}), X("y", 4, {2, 3, 17, 7})}},
    {.name = "batched_tt",
     .op = &trd__op_matmul,
     .build = build,
     .parameter = {1, 1},
     .operands = {X("x", 3, {3, 17, 5}), X("y", 3, {3, 7, 17})}},
    {.name = "shared",
     .op = &trd__op_matmul,
     .build = build,
     .operands = {X("x", 3, {3, 5, 17}), X("y", 2, {17, 9})}},
    {.name = "shared_tn",
     .op = &trd__op_matmul,
     .build = build,
     .parameter = {1, 0},
     .operands = {X("x", 3, {3, 17, 5}), X("y", 2, {17, 9})}},
    {.name = "to_f32",
     .op = &trd__op_matmul,
     .build = build,
     .parameter = {0, 1, TRD_F32},
     .skip = 1u << OP_DIFFERENCES /* rounds */,
     .operands = {X("x", 2, {9, 33}), X("y", 2, {17, 33})}},
    {.name = "linear",
     .op = &trd__op_matmul,
     .build = build_linear,
     .operands = {X("x", 3, {2, 17, 33}), X("weight", 2, {65, 33})}},
    {.name = "linear_vector",
     .op = &trd__op_matmul,
     .build = build_linear,
     .operands = {X("x", 1, {33}), X("weight", 2, {5, 33})}},
    {.name = "linear_no_rows",
     .op = &trd__op_matmul,
     .build = build_linear,
     .operands = {X("x", 2, {0, 33}), X("weight", 2, {5, 33})}},
    {.name = "linear_twice",
     .op = &trd__op_matmul,
     .build = build_twice,
     .bf16_tolerance = 3e-2,
     .operands = {X("x", 2, {9, 17}), X("weight", 2, {17, 17})}},
    {.name = "linear_cast_weight",
     .op = &trd__op_matmul,
     .build = build_cast_weight,
     .skip = 1u << OP_DIFFERENCES /* rounds */,
     .operands = {{.name = "x", .dtype = TRD_BF16, .shape = OP_SHAPE(9, 33), .fill = op_normal, .high = 1},
                  {.name = "weight",
                   .dtype = TRD_F32,
                   .shape = OP_SHAPE(17, 33),
                   .fill = op_normal,
                   .high = 1,
                   .gradient = true}}},
};

OP_CASES_MAIN("ops/matmul", cases)
