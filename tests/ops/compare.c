/* Cases of the comparisons (with many equal pairs) and of select (whose unchosen side must not matter). */
#include "support/op_case.h"

#define DEFINE_BUILD(op, builder)                                                                            \
    static int build_##op(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)             \
    {                                                                                                        \
        (void)c;                                                                                             \
        out[0] = builder(b, in[0], in[1]);                                                                   \
        return 1;                                                                                            \
    }
#define COMPARISONS(X)                                                                                       \
    X(equal, trd_equal)                                                                                      \
    X(not_equal, trd_not_equal)                                                                              \
    X(less, trd_less)                                                                                        \
    X(less_equal, trd_less_equal)                                                                            \
    X(greater, trd_greater)                                                                                  \
    X(greater_equal, trd_greater_equal)
COMPARISONS(DEFINE_BUILD)

static int build_select(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_select(b, in[0], in[1], in[2]);
    return 1;
}

/* log of values of both signs, chosen only where they are positive: the others' NaN must not come through,
 * neither forward nor backward. */
static int build_guarded(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    trd_value zero = trd_scalar(b, trd_value_dtype(in[0]), 0);
    out[0] = trd_select(b, trd_greater(b, in[0], zero), trd_log(b, trd_abs(b, in[0])), in[0]);
    out[1] = trd_select(b, trd_less(b, in[0], zero), in[1], trd_log(b, trd_sub(b, zero, zero)));
    out[1] = trd_select(b, trd_less(b, in[0], zero), out[1], zero);
    return 2;
}

#define PAIR(label, op_name, type)                                                                           \
    {.name = label,                                                                                          \
     .op = &trd__op_##op_name,                                                                               \
     .build = build_##op_name,                                                                               \
     .operands = {                                                                                           \
         {.name = "x", .dtype = type, .shape = OP_SHAPE(7, 33), .fill = op_integers, .low = -2, .high = 3},  \
         {.name = "y", .dtype = type, .shape = OP_SHAPE(33), .fill = op_integers, .low = -2, .high = 3}}},
#define ROWS(op, builder) PAIR(#op "_float", op, OP_FLOAT) PAIR(#op "_int", op, TRD_I32)
#define CONDITION(...)                                                                                       \
    {                                                                                                        \
        .name = "condition", .dtype = TRD_BOOL, .shape = OP_SHAPE(__VA_ARGS__), .fill = op_booleans,         \
        .high = 0.5                                                                                          \
    }

static const op_case cases[] = {
    COMPARISONS(ROWS){.name = "select_equal",
                      .op = &trd__op_select,
                      .build = build_select,
                      .operands = {CONDITION(5, 33), OP_X("x", 5, 33), OP_X("y", 5, 33)}},
    {.name = "select_broadcast",
     .op = &trd__op_select,
     .build = build_select,
     .operands = {CONDITION(5, 1), OP_X("x", 3, 5, 65), OP_X("y", 65)}},
    {.name = "select_int",
     .op = &trd__op_select,
     .build = build_select,
     .operands = {CONDITION(17),
                  {.name = "x", .dtype = TRD_I32, .shape = OP_SHAPE(17), .fill = op_integers, .high = 9},
                  {.name = "y", .dtype = TRD_I32, .shape = OP_SHAPE(1), .fill = op_integers, .high = 9}}},
    {.name = "select_guards",
     .op = &trd__op_select,
     .build = build_guarded,
     .operands = {OP_X("x", 9, 33), OP_X("y", 9, 33)}},
};

OP_CASES_MAIN("ops/compare", cases)
