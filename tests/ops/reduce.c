/* Cases of the reductions: each kind of axes, with and without kept dims, empty masks, ties. */
#include "support/op_case.h"

#include "ops/rules.h"

/* Parameters: mask, keep dims, result dtype (sum of floats: the operand's). */
static int build_sum(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_dtype dtype = trd_value_dtype(in[0]);
    if (c->parameter[2] > 0) dtype = (trd_dtype)c->parameter[2];
    out[0] = trd_reduce_sum(b, in[0], (unsigned)c->parameter[0], c->parameter[1] > 0, dtype);
    return 1;
}

static int build_max(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd_reduce_max(b, in[0], (unsigned)c->parameter[0], c->parameter[1] > 0);
    return 1;
}

static int build_squares(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_sum_squares(b, in[0]);
    return 1;
}

static int build_sum_all(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_sum_all(b, in[0]);
    return 1;
}

/* Without replicas: the operand. */
static int build_replica_sum(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd__replica_sum(b, in[0]);
    return 1;
}

#define SUM(label, mask, keep, ...)                                                                          \
    {.name = "sum_" label,                                                                                   \
     .op = &trd__op_reduce_sum,                                                                              \
     .build = build_sum,                                                                                     \
     .parameter = {mask, keep},                                                                              \
     .operands = {OP_X("x", __VA_ARGS__)}},
#define MAX(label, mask, keep, ...)                                                                          \
    {.name = "max_" label,                                                                                   \
     .op = &trd__op_reduce_max,                                                                              \
     .build = build_max,                                                                                     \
     .parameter = {mask, keep},                                                                              \
     .operands = {{.name = "x",                                                                              \
                   .dtype = OP_FLOAT,                                                                        \
                   .shape = OP_SHAPE(__VA_ARGS__),                                                           \
                   .fill = op_distinct,                                                                      \
                   .low = -40,                                                                               \
                   .high = 0.5,                                                                              \
                   .gradient = true}}},
#define AXES(ROW)                                                                                            \
    ROW("last", 4, 0, 3, 5, 33)                                                                              \
    ROW("last_kept", 4, 1, 2, 3, 17)                                                                         \
    ROW("first", 1, 0, 17, 3, 5)                                                                             \
    ROW("middle_kept", 2, 1, 3, 17, 5)                                                                       \
    ROW("outer", 5, 0, 5, 3, 7)                                                                              \
    ROW("all", 7, 0, 3, 5, 17)                                                                               \
    ROW("one", 1, 0, 1)

static const op_case cases[] = {
    AXES(SUM) AXES(MAX) SUM("no_axis", 0, 0, 3, 17) SUM("long", 2, 0, 2, 5000)
        SUM("tall", 1, 0, 513, 65){.name = "sum_to_f64",
                                   .op = &trd__op_reduce_sum,
                                   .build = build_sum,
                                   .parameter = {3, 0, TRD_F64},
                                   .operands = {OP_X("x", 17, 33)}},
    {.name = "sum_bool",
     .op = &trd__op_reduce_sum,
     .build = build_sum_all,
     .operands =
         {{.name = "x", .dtype = TRD_BOOL, .shape = OP_SHAPE(9, 33), .fill = op_booleans, .high = 0.5}}},
    {.name = "sum_int",
     .op = &trd__op_reduce_sum,
     .build = build_sum_all,
     .operands = {{.name = "x",
                   .dtype = TRD_I32,
                   .shape = OP_SHAPE(9, 33),
                   .fill = op_integers,
                   .low = -50,
                   .high = 50}}},
    {.name = "sum_all", .op = &trd__op_reduce_sum, .build = build_sum_all, .operands = {OP_X("x", 9, 33)}},
    {.name = "max_ties",
     .op = &trd__op_reduce_max,
     .build = build_max,
     .parameter = {2, 0},
     .skip = 1u << OP_DIFFERENCES /* a tie has no derivative */,
     .operands = {{.name = "x",
                   .dtype = OP_FLOAT,
                   .shape = OP_SHAPE(5, 33),
                   .fill = op_integers,
                   .low = 0,
                   .high = 3,
                   .gradient = true}}},
    {.name = "squares",
     .op = &trd__op_sum_squares,
     .build = build_squares,
     .operands =
         {{.name = "x", .dtype = OP_FLOAT, .shape = OP_SHAPE(37, 129), .fill = op_normal, .high = 1}}},
    {.name = "squares_huge",
     .op = &trd__op_sum_squares,
     .build = build_squares,
     .operands =
         {{.name = "x", .dtype = OP_FLOAT, .shape = OP_SHAPE(3, 17), .fill = op_normal, .high = 1e15}}},
    {.name = "replica_sum",
     .op = &trd__op_replica_sum,
     .build = build_replica_sum,
     .skip = 1u << OP_EXPAND /* the CPU has no kernel: its expansion is what runs */,
     .operands = {{.name = "x", .dtype = OP_FLOAT, .shape = OP_SHAPE(5, 7), .fill = op_normal, .high = 1}}},
};

OP_CASES_MAIN("ops/reduce", cases)
