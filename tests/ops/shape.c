/* Cases of the ops that move elements. */
#include "support/op_case.h"

static int build_reshape(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_reshape(b, in[0], TRD__SHAPE(5, -1, 3));
    return 1;
}

/* Parameter 0 holds the permutation's digits: 201 = (2, 0, 1). */
static int build_transpose(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    int permutation[TRD_MAX_RANK], digits = (int)c->parameter[0];
    for (int i = c->operands[0].shape.rank - 1; i >= 0; i--, digits /= 10) permutation[i] = digits % 10;
    out[0] = trd_transpose(b, in[0], permutation);
    return 1;
}

static int build_broadcast(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_broadcast(b, in[0], TRD__SHAPE(3, 5, 33));
    return 1;
}

/* Parameters: axis, begin, end. */
static int build_slice(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd_slice(b, in[0], (int)c->parameter[0], (int64_t)c->parameter[1], (int64_t)c->parameter[2]);
    return 1;
}

/* Parameters: axis, before, after, value. */
static int build_pad(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd_pad(b, in[0], (int)c->parameter[0], (int64_t)c->parameter[1], (int64_t)c->parameter[2],
                     c->parameter[3]);
    return 1;
}

/* Parameters: axis, count. */
static int build_concat(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd_concat(b, in, (int)c->parameter[1], (int)c->parameter[0]);
    return 1;
}

#define TRANSPOSE(label, digits, ...)                                                                        \
    {                                                                                                        \
        .name = label, .op = &trd__op_transpose, .build = build_transpose, .parameter = {digits},            \
        .operands = {                                                                                        \
            OP_X("x", __VA_ARGS__)                                                                           \
        }                                                                                                    \
    }
#define BROADCAST(label, ...)                                                                                \
    {                                                                                                        \
        .name = label, .op = &trd__op_broadcast, .build = build_broadcast, .operands = {                     \
            OP_X("x", __VA_ARGS__)                                                                           \
        }                                                                                                    \
    }
#define SLICE(label, axis, begin, end, ...)                                                                  \
    {                                                                                                        \
        .name = label, .op = &trd__op_slice, .build = build_slice, .parameter = {axis, begin, end},          \
        .operands = {                                                                                        \
            OP_X("x", __VA_ARGS__)                                                                           \
        }                                                                                                    \
    }
#define PAD(label, axis, before, after, value, ...)                                                          \
    {                                                                                                        \
        .name = label, .op = &trd__op_pad, .build = build_pad, .parameter = {axis, before, after, value},    \
        .operands = {                                                                                        \
            OP_X("x", __VA_ARGS__)                                                                           \
        }                                                                                                    \
    }

static const op_case cases[] = {
    {.name = "reshape", .op = &trd__op_reshape, .build = build_reshape, .operands = {OP_X("x", 15, 17)}},
    TRANSPOSE("matrix", 10, 17, 33),
    TRANSPOSE("outer_pair", 102, 3, 5, 7),
    TRANSPOSE("rotate", 201, 3, 5, 33),
    TRANSPOSE("inner_pair", 21, 3, 17, 5),
    TRANSPOSE("heads", 213, 2, 5, 3, 17),
    TRANSPOSE("four_reversed", 3210, 2, 5, 3, 17),
    BROADCAST("row", 33),
    BROADCAST("column", 5, 1),
    BROADCAST("outer", 3, 1, 1),
    BROADCAST("one", 1),
    SLICE("first_axis", 0, 2, 5, 7, 33),
    SLICE("last_axis", 2, 1, 17, 3, 5, 33),
    SLICE("nothing", 1, 2, 2, 3, 5),
    PAD("first_axis", 0, 2, 1, 0.5, 3, 17),
    PAD("last_axis", 1, 0, 3, -1, 5, 33),
    {.name = "concat_last",
     .op = &trd__op_concat,
     .build = build_concat,
     .parameter = {1, 3},
     .operands = {OP_X("a", 5, 3), OP_X("b", 5, 17), OP_X("c", 5, 1)}},
    {.name = "concat_first",
     .op = &trd__op_concat,
     .build = build_concat,
     .parameter = {0, 2},
     .operands = {OP_X("a", 2, 33), OP_X("b", 3, 33)}},
};

OP_CASES_MAIN("ops/shape", cases)
