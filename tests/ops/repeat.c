/* Cases of repeat. Each body is small; what differs is what goes through it and which gradients are asked. */
#include <treadle/ops.h>

#include "support/op_case.h"

/* How the operands of a case are handed on: the first ones are carries, the next shared, the others stacked.
 * Parameters: iterations, reverse, carries, shared. */
static int run(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out, trd_repeat_body body,
               int made)
{
    int operands = 0, carries = (int)c->parameter[2], shared = (int)c->parameter[3];
    while (operands < OP_OPERANDS && c->operands[operands].name) operands++;
    trd_repeat(b,
               &(trd_repeat_options){.count = (int64_t)c->parameter[0],
                                     .reverse = c->parameter[1] > 0,
                                     .carries = in,
                                     .carry_count = carries,
                                     .shared = in + carries,
                                     .shared_count = shared,
                                     .stacked = in + carries + shared,
                                     .stacked_count = operands - carries - shared,
                                     .made_count = made,
                                     .body = body},
               out);
    return carries + made;
}

/* tanh(x W + bias); made: the sum over rows. */
static void layer(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_value h = trd_linear(b, in->carries[0], in->stacked[0]);
    out[0] = trd_tanh(b, trd_add(b, h, in->shared[0]));
    out[1] = trd_reduce_sum(b, out[0], 1, false, trd_value_dtype(out[0]));
}

static int build_layers(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    return run(b, c, in, out, layer, 1);
}

/* The weight twice, and a scale: two contributions to each row of the weight. */
static void twice(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_value h = trd_tanh(b, trd_linear(b, in->carries[0], in->stacked[0]));
    out[0] = trd_mul(b, trd_linear(b, h, in->stacked[0]), in->stacked[1]);
}

static int build_twice(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    return run(b, c, in, out, twice, 0);
}

/* A decoder layer's norm and feed-forward part. */
static void feed_forward(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_value x = in->carries[0], h = trd_rms_norm(b, x, in->stacked[0], 1e-5);
    trd_value gate = trd_linear(b, h, in->stacked[1]), up = trd_linear(b, h, in->stacked[2]);
    out[0] = trd_add(b, x, trd_linear(b, trd_swiglu(b, gate, up), in->stacked[3]));
}

static int build_feed_forward(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    return run(b, c, in, out, feed_forward, 0);
}

/* Integers everywhere: a counter is carried, an offset shared, ids are stacked; rows of a table are added. */
static void gather(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_value counter = in->carries[1], ids = trd_add(b, in->stacked[0], in->shared[1]);
    out[0] = trd_add(b, trd_mul(b, in->carries[0], trd_cast(b, counter, trd_value_dtype(in->carries[0]))),
                     trd_gather_rows(b, in->shared[0], ids));
    out[1] = trd_add(b, counter, trd_scalar(b, TRD_I32, 1));
    out[2] = ids;
}

static int build_gather(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    return run(b, c, in, out, gather, 1);
}

/* Two carries that trade places. The second reaches results only by way of the first. */
static void trade(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    out[0] = trd_add(b, in->carries[1], in->stacked[0]);
    out[1] = trd_mul(b, in->carries[0], in->stacked[0]);
}

/* Only the first carry is a result of the case. */
static int build_trade(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    return run(b, c, in, out, trade, 0) - 1;
}

/* The carry is replaced, so no cotangent reaches the operand. */
static void replaced(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    out[0] = trd_square(b, in->stacked[0]);
    out[1] = trd_exp(b, in->stacked[0]);
}

static int build_replaced(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    return run(b, c, in, out, replaced, 1);
}

/* A repeat within a repeat: the weight of the outer iteration is shared by the inner ones. */
static void inner(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    out[0] = trd_tanh(b, trd_linear(b, in->carries[0], in->shared[0]));
}

static void outer(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_repeat(b,
               &(trd_repeat_options){.count = 2,
                                     .carries = in->carries,
                                     .carry_count = 1,
                                     .shared = in->stacked,
                                     .shared_count = 1,
                                     .body = inner},
               out);
}

static int build_nested(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    return run(b, c, in, out, outer, 0);
}

#define FROZEN(label, ...)                                                                                   \
    {                                                                                                        \
        .name = label, .dtype = OP_FLOAT, .shape = OP_SHAPE(__VA_ARGS__), .fill = op_normal, .high = 1       \
    }
#define IDS(label, most, ...)                                                                                \
    {                                                                                                        \
        .name = label, .dtype = TRD_I32, .shape = OP_SHAPE(__VA_ARGS__), .fill = op_integers, .high = (most) \
    }

static const op_case cases[] = {
    {.name = "layers",
     .op = &trd__op_repeat,
     .build = build_layers,
     .parameter = {3, 0, 1, 1},
     .bf16_tolerance = 4e-2,
     .operands = {OP_X("x", 5, 7), OP_X("bias", 7), OP_X("weight", 3, 7, 7)}},
    {.name = "layers_reverse",
     .op = &trd__op_repeat,
     .build = build_layers,
     .parameter = {3, 1, 1, 1},
     .bf16_tolerance = 4e-2,
     .operands = {OP_X("x", 5, 7), OP_X("bias", 7), OP_X("weight", 3, 7, 7)}},
    {.name = "layers_frozen_weight",
     .op = &trd__op_repeat,
     .build = build_layers,
     .parameter = {2, 0, 1, 1},
     .bf16_tolerance = 4e-2,
     .operands = {OP_X("x", 5, 7), OP_X("bias", 7), FROZEN("weight", 2, 7, 7)}},
    {.name = "layers_frozen_rest",
     .op = &trd__op_repeat,
     .build = build_layers,
     .parameter = {2, 0, 1, 1},
     .bf16_tolerance = 4e-2,
     .operands = {FROZEN("x", 5, 7), FROZEN("bias", 7), OP_X("weight", 2, 7, 7)}},
    {.name = "layers_one",
     .op = &trd__op_repeat,
     .build = build_layers,
     .parameter = {1, 0, 1, 1},
     .bf16_tolerance = 4e-2,
     .operands = {OP_X("x", 5, 7), OP_X("bias", 7), OP_X("weight", 1, 7, 7)}},
    {.name = "weight_twice",
     .op = &trd__op_repeat,
     .build = build_twice,
     .parameter = {3, 0, 1, 0},
     .bf16_tolerance = 6e-2,
     .operands = {OP_X("x", 6, 9), OP_X("weight", 3, 9, 9), OP_X("scale", 3, 9)}},
    {.name = "feed_forward",
     .op = &trd__op_repeat,
     .build = build_feed_forward,
     .parameter = {2, 0, 1, 0},
     .bf16_tolerance = 4e-2,
     .operands = {OP_X("x", 2, 4, 8), OP_X("norm", 2, 8), OP_X("gate", 2, 12, 8), OP_X("up", 2, 12, 8),
                  OP_X("down", 2, 8, 12)}},
    {.name = "integers",
     .op = &trd__op_repeat,
     .build = build_gather,
     .parameter = {3, 0, 2, 2},
     .operands = {OP_X("x", 4, 6), IDS("counter", 3, 1), OP_X("table", 9, 6), IDS("offset", 3, 1),
                  IDS("ids", 6, 3, 4)}},
    {.name = "trade",
     .op = &trd__op_repeat,
     .build = build_trade,
     .parameter = {3, 0, 2, 0},
     .operands = {OP_X("x", 5), OP_X("y", 5), OP_X("scale", 3, 5)}},
    {.name = "replaced",
     .op = &trd__op_repeat,
     .build = build_replaced,
     .parameter = {4, 0, 1, 0},
     .operands = {OP_X("x", 5), OP_X("rows", 4, 5)}},
    {.name = "many_rows",
     .op = &trd__op_repeat,
     .build = build_replaced,
     .parameter = {130, 0, 1, 0}, /* more than one concat takes */
     .operands = {OP_X("x", 2), OP_X("rows", 130, 2)}},
    {.name = "nested",
     .op = &trd__op_repeat,
     .build = build_nested,
     .parameter = {2, 0, 1, 0},
     .bf16_tolerance = 6e-2,
     .operands = {OP_X("x", 3, 5), OP_X("weight", 2, 5, 5)}},
};

OP_CASES_MAIN("ops/repeat", cases)
