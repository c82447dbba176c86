/* Cases of the unary ops: each over an odd-sized and a tiny shape, on the domain where it is smooth. */
#include "support/op_case.h"

typedef trd_value (*unary_builder)(trd_builder *b, trd_value x);

trd_value trd__sign(trd_builder *b, trd_value x); /* has no public name */

#define DEFINE_BUILD(name, builder)                                                                          \
    static int build_##name(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)           \
    {                                                                                                        \
        (void)c;                                                                                             \
        out[0] = builder(b, in[0]);                                                                          \
        return 1;                                                                                            \
    }
/* X(op, builder, fill, low, high, gradient) */
#define FLOAT_OPS(X)                                                                                         \
    X(neg, trd_neg, op_normal, 0, 2, true)                                                                   \
    X(abs, trd_abs, op_normal, 0, 2, true)                                                                   \
    X(sign, trd__sign, op_integers, -1, 2, false)                                                            \
    X(exp, trd_exp, op_uniform, -20, 5, true)                                                                \
    X(log, trd_log, op_uniform, 0.01, 50, true)                                                              \
    X(sqrt, trd_sqrt, op_uniform, 0.01, 50, true)                                                            \
    X(rsqrt, trd_rsqrt, op_uniform, 0.1, 50, true)                                                           \
    X(tanh, trd_tanh, op_normal, 0, 3, true)                                                                 \
    X(sigmoid, trd_sigmoid, op_normal, 0, 5, true)                                                           \
    X(square, trd_square, op_normal, 0, 3, true)                                                             \
    X(is_finite, trd_is_finite, op_normal, 0, 1, false)                                                      \
    X(stop_gradient, trd_stop_gradient, op_normal, 0, 1, false)
#define BUILD(op, builder, fill_function, from, to, differentiable) DEFINE_BUILD(op, builder)
FLOAT_OPS(BUILD)
DEFINE_BUILD(not, trd_not)

/* Parameter 0 is the dtype to cast to and parameter 1 that to come back to, so that cotangents exist. */
static int build_cast(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd_cast(b, trd_cast(b, in[0], (trd_dtype)c->parameter[0]), (trd_dtype)c->parameter[1]);
    return 1;
}

#define ROW(label, op_name, fill_function, from, to, differentiable, ...)                                    \
    {.name = label,                                                                                          \
     .op = &trd__op_##op_name,                                                                               \
     .build = build_##op_name,                                                                               \
     .operands = {{.name = "x",                                                                              \
                   .dtype = OP_FLOAT,                                                                        \
                   .shape = OP_SHAPE(__VA_ARGS__),                                                           \
                   .fill = fill_function,                                                                    \
                   .low = from,                                                                              \
                   .high = to,                                                                               \
                   .gradient = differentiable}}},
#define ROWS(op, builder, fill_function, from, to, differentiable)                                           \
    ROW(#op "_odd", op, fill_function, from, to, differentiable, 3, 5, 67)                                   \
    ROW(#op "_one", op, fill_function, from, to, differentiable, 1)                                          \
    ROW(#op "_two_tiles", op, fill_function, from, to, differentiable, 33, 129)

#define CAST(label, from, to, back, differentiable, fill_function)                                           \
    {                                                                                                        \
        .name = label, .op = &trd__op_cast, .build = build_cast, .parameter = {to, back},                    \
        .skip = 1u << OP_DIFFERENCES /* rounding is no smooth function */, .operands = {                     \
            {.name = "x",                                                                                    \
             .dtype = from,                                                                                  \
             .shape = OP_SHAPE(7, 33),                                                                       \
             .fill = fill_function,                                                                          \
             .low = -9,                                                                                      \
             .high = 9,                                                                                      \
             .gradient = differentiable}                                                                     \
        }                                                                                                    \
    }

static const op_case cases[] = {
    FLOAT_OPS(ROWS){.name = "exp_extreme",
                    .op = &trd__op_exp,
                    .build = build_exp,
                    .f32_only = true,
                    .operands = {{.name = "x",
                                  .dtype = OP_FLOAT,
                                  .shape = OP_SHAPE(257),
                                  .fill = op_uniform,
                                  .low = -120,
                                  .high = 80}}},
    {.name = "sigmoid_extreme",
     .op = &trd__op_sigmoid,
     .build = build_sigmoid,
     .operands = {{.name = "x",
                   .dtype = OP_FLOAT,
                   .shape = OP_SHAPE(257),
                   .fill = op_uniform,
                   .low = -120,
                   .high = 120,
                   .gradient = true}}},
    {.name = "neg_int",
     .op = &trd__op_neg,
     .build = build_neg,
     .operands = {{.name = "x",
                   .dtype = TRD_I32,
                   .shape = OP_SHAPE(5, 7),
                   .fill = op_integers,
                   .low = -100,
                   .high = 100}}},
    {.name = "not",
     .op = &trd__op_not,
     .build = build_not,
     .operands =
         {{.name = "x", .dtype = TRD_BOOL, .shape = OP_SHAPE(5, 65), .fill = op_booleans, .high = 0.5}}},
    CAST("f32_bf16_f32", TRD_F32, TRD_BF16, TRD_F32, true, op_normal),
    CAST("bf16_f32", TRD_BF16, TRD_F32, TRD_F32, true, op_normal),
    CAST("f32_f16_f64", TRD_F32, TRD_F16, TRD_F64, true, op_normal),
    CAST("f64_f32", TRD_F64, TRD_F32, TRD_F32, true, op_normal),
    CAST("i32_f32", TRD_I32, TRD_F32, TRD_F32, false, op_integers),
    CAST("f32_i32", TRD_F32, TRD_I32, TRD_F32, false, op_integers),
    CAST("bool_f32", TRD_BOOL, TRD_F32, TRD_F32, false, op_booleans),
    CAST("i32_bool", TRD_I32, TRD_BOOL, TRD_I32, false, op_integers),
};

OP_CASES_MAIN("ops/unary", cases)
