/* Cases of repeat. */
#include "support/op_case.h"

/* tanh(x W + shared) per iteration; made: the sum over rows. */
static void layer(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_value h = trd_linear(b, in->carries[0], in->stacked[0]);
    out[0] = trd_tanh(b, trd_add(b, h, in->shared[0]));
    out[1] = trd_reduce_sum(b, out[0], 1, false, trd_value_dtype(out[0]));
}

/* Parameters: count, reverse. */
static int build(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_repeat(b,
               &(trd_repeat_options){.count = (int64_t)c->parameter[0],
                                     .reverse = c->parameter[1] > 0,
                                     .carries = in,
                                     .carry_count = 1,
                                     .shared = in + 1,
                                     .shared_count = 1,
                                     .stacked = in + 2,
                                     .stacked_count = 1,
                                     .made_count = 1,
                                     .body = layer},
               out);
    return 2;
}

static const op_case cases[] = {
    {.name = "layers",
     .op = &trd__op_repeat,
     .build = build,
     .parameter = {3},
     .operands = {OP_X("x", 5, 7), OP_X("bias", 7), OP_X("weight", 3, 7, 7)}},
};

OP_CASES_MAIN("ops/repeat", cases)
