/* Cases of the leaves; the input leaf is in every case. */
#include "support/op_case.h"

/* Parameters: dtype, value. */
static int build_constant(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)in;
    out[0] = trd_constant_fill(b, (trd_dtype)c->parameter[0], TRD__SHAPE(3, 17), c->parameter[1]);
    out[1] = trd_scalar(b, (trd_dtype)c->parameter[0], c->parameter[1]);
    return 2;
}

/* Parameters: dtype, axis. */
static int build_iota(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)in;
    out[0] = trd_iota(b, (trd_dtype)c->parameter[0], TRD__SHAPE(3, 17, 5), (int)c->parameter[1]);
    return 1;
}

static int build_input(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)b, (void)c;
    out[0] = in[0];
    return 1;
}

static const op_case cases[] = {
    {.name = "constant_f32", .op = &trd__op_constant, .build = build_constant, .parameter = {TRD_F32, -2.5}},
    {.name = "constant_bf16", .op = &trd__op_constant, .build = build_constant, .parameter = {TRD_BF16, 0.1}},
    {.name = "constant_f16", .op = &trd__op_constant, .build = build_constant, .parameter = {TRD_F16, 0.1}},
    {.name = "constant_f64", .op = &trd__op_constant, .build = build_constant, .parameter = {TRD_F64, 0.1}},
    {.name = "constant_int", .op = &trd__op_constant, .build = build_constant, .parameter = {TRD_I32, -7}},
    {.name = "constant_bool", .op = &trd__op_constant, .build = build_constant, .parameter = {TRD_BOOL, 1}},
    {.name = "iota_first", .op = &trd__op_iota, .build = build_iota, .parameter = {TRD_I32, 0}},
    {.name = "iota_middle", .op = &trd__op_iota, .build = build_iota, .parameter = {TRD_F32, 1}},
    {.name = "iota_last", .op = &trd__op_iota, .build = build_iota, .parameter = {TRD_BF16, 2}},
    {.name = "input", .op = &trd__op_input, .build = build_input, .operands = {OP_X("x", 5, 33)}},
};

OP_CASES_MAIN("ops/leaf", cases)
