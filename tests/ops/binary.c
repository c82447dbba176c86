/* Cases of the binary ops: equal shapes and every kind of broadcasting, whose gradient is a sum. */
#include "support/op_case.h"

#define DEFINE_BUILD(op, builder)                                                                            \
    static int build_##op(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)             \
    {                                                                                                        \
        (void)c;                                                                                             \
        out[0] = builder(b, in[0], in[1]);                                                                   \
        return 1;                                                                                            \
    }
/* X(op, builder, low, high of x and y) */
#define FLOAT_OPS(X)                                                                                         \
    X(add, trd_add, -3, 3)                                                                                   \
    X(sub, trd_sub, -3, 3)                                                                                   \
    X(mul, trd_mul, -3, 3)                                                                                   \
    X(div, trd_div, 0.5, 3)                                                                                  \
    X(max, trd_max, -3, 3)                                                                                   \
    X(min, trd_min, -3, 3)                                                                                   \
    X(pow, trd_pow, 0.5, 3)
#define BUILD(op, builder, from, to) DEFINE_BUILD(op, builder)
FLOAT_OPS(BUILD)
DEFINE_BUILD(and, trd_and)
DEFINE_BUILD(or, trd_or)
DEFINE_BUILD(xor, trd_xor)
DEFINE_BUILD(shift_left, trd_shift_left)
DEFINE_BUILD(shift_right, trd_shift_right)

#define OPERAND(label, from, to, ...)                                                                        \
    {                                                                                                        \
        .name = label, .dtype = OP_FLOAT, .shape = {__VA_ARGS__}, .fill = op_uniform, .low = from,           \
        .high = to, .gradient = true                                                                         \
    }
#define ROW(label, op_name, x, y)                                                                            \
    {.name = label, .op = &trd__op_##op_name, .build = build_##op_name, .operands = {x, y}},
#define ROWS(op, builder, from, to)                                                                          \
    ROW(#op "_equal", op, OPERAND("x", from, to, 3, {3, 5, 33}), OPERAND("y", from, to, 3, {3, 5, 33}))      \
    ROW(#op "_row", op, OPERAND("x", from, to, 3, {2, 3, 65}), OPERAND("y", from, to, 1, {65}))              \
    ROW(#op "_column", op, OPERAND("x", from, to, 2, {17, 1}), OPERAND("y", from, to, 2, {17, 33}))          \
    ROW(#op "_middle", op, OPERAND("x", from, to, 3, {3, 1, 5}), OPERAND("y", from, to, 3, {1, 7, 5}))       \
    ROW(#op "_scalar", op, OPERAND("x", from, to, 0, {0}), OPERAND("y", from, to, 2, {9, 33}))

#define INTEGERS(label, op_name)                                                                             \
    {.name = label,                                                                                          \
     .op = &trd__op_##op_name,                                                                               \
     .build = build_##op_name,                                                                               \
     .operands = {{.name = "x",                                                                              \
                   .dtype = TRD_I32,                                                                         \
                   .shape = OP_SHAPE(5, 17),                                                                 \
                   .fill = op_integers,                                                                      \
                   .low = -50,                                                                               \
                   .high = 50},                                                                              \
                  {.name = "y",                                                                              \
                   .dtype = TRD_I32,                                                                         \
                   .shape = OP_SHAPE(17),                                                                    \
                   .fill = op_integers,                                                                      \
                   .low = -50,                                                                               \
                   .high = 50}}},
#define LOGICAL(label, op_name)                                                                              \
    {.name = label,                                                                                          \
     .op = &trd__op_##op_name,                                                                               \
     .build = build_##op_name,                                                                               \
     .operands = {                                                                                           \
         {.name = "x", .dtype = TRD_BOOL, .shape = OP_SHAPE(5, 33), .fill = op_booleans, .high = 0.5},       \
         {.name = "y", .dtype = TRD_BOOL, .shape = OP_SHAPE(5, 1), .fill = op_booleans, .high = 0.5}}},

#define BITS(op_name)                                                                                        \
    {.name = #op_name,                                                                                       \
     .op = &trd__op_##op_name,                                                                               \
     .build = build_##op_name,                                                                               \
     .operands = {{.name = "x",                                                                              \
                   .dtype = TRD_I32,                                                                         \
                   .shape = OP_SHAPE(5, 17),                                                                 \
                   .fill = op_integers,                                                                      \
                   .low = -2147483648.0,                                                                     \
                   .high = 2147483648.0},                                                                    \
                  {.name = "y",                                                                              \
                   .dtype = TRD_I32,                                                                         \
                   .shape = OP_SHAPE(17),                                                                    \
                   .fill = op_integers,                                                                      \
                   .low = 0,                                                                                 \
                   .high = 32}}},

static const op_case cases[] = {FLOAT_OPS(ROWS) INTEGERS("add_int", add) INTEGERS("sub_int", sub)
                                    INTEGERS("mul_int", mul) INTEGERS("max_int", max) INTEGERS("min_int", min)
                                        LOGICAL("and", and) LOGICAL("or", or) BITS(xor) BITS(shift_left)
                                            BITS(shift_right)};

OP_CASES_MAIN("ops/binary", cases)
