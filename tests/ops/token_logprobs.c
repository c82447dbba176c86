/* Cases of token_logprobs and its gradient op: with a cotangent known up front (both in one op) and one that
 * depends on the result, masks of every kind, temperatures, logits far apart. */
#include <math.h>

#include "support/op_case.h"

/* Parameter 0: temperature. The loss is linear, so forward and gradient merge. */
static int build(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd_token_logprobs(b, in[0], in[1], in[2], in[3], c->parameter[0], NULL);
    return 1;
}

static int build_all_rows(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd_token_logprobs(b, in[0], in[1], in[2], (trd_value){NULL, 0}, c->parameter[0], NULL);
    return 1;
}

/* The cotangent depends on the log-probabilities, so the gradient forms the logits again. */
static int build_squared(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    build(b, c, in, out);
    out[0] = trd_square(b, out[0]);
    return 1;
}

/* The log-sum-exp as a second result: linear, so that both gradients merge, alone, and as a z-loss. */
static int build_log_sums(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_value log_sums;
    out[0] = trd_token_logprobs(b, in[0], in[1], in[2], in[3], c->parameter[0], &log_sums);
    out[0] = trd_sub(b, out[0], log_sums);
    return 1;
}

static int build_log_sums_alone(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_token_logprobs(b, in[0], in[1], in[2], in[3], c->parameter[0], &out[0]);
    return 1;
}

static int build_z_loss(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_value log_sums;
    out[0] = trd_token_logprobs(b, in[0], in[1], in[2], in[3], c->parameter[0], &log_sums);
    out[0] = trd_add(b, out[0], trd_square(b, log_sums));
    return 1;
}

/* Rows outside the mask hold NaN: they may neither come through nor leave a trace in any gradient. */
static int build_poisoned(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_shape shape = trd_value_shape(in[3]);
    trd_value column = trd_reshape(b, in[3], TRD__SHAPE(shape.dim[0], shape.dim[1], 1));
    trd_value nan = trd_scalar(b, trd_value_dtype(in[0]), NAN);
    trd_value hidden = trd_select(b, column, in[0], nan);
    out[0] = trd_token_logprobs(b, hidden, in[1], in[2], in[3], c->parameter[0], NULL);
    return 1;
}

#define X(label, spread, ...)                                                                                \
    {                                                                                                        \
        .name = label, .dtype = OP_FLOAT, .shape = OP_SHAPE(__VA_ARGS__), .fill = op_normal, .high = spread, \
        .gradient = true                                                                                     \
    }
#define OPERANDS(share, spread, batch, length, channels, vocabulary)                                         \
    .bf16_tolerance = 2e-2, .operands = {X("hidden", spread, batch, length, channels),                       \
                                         X("weight", 1, vocabulary, channels),                               \
                                         {.name = "targets",                                                 \
                                          .dtype = TRD_I32,                                                  \
                                          .shape = OP_SHAPE(batch, length),                                  \
                                          .fill = op_integers,                                               \
                                          .low = 0,                                                          \
                                          .high = vocabulary},                                               \
                                         {.name = "row_mask",                                                \
                                          .dtype = TRD_BOOL,                                                 \
                                          .shape = OP_SHAPE(batch, length),                                  \
                                          .fill = op_booleans,                                               \
                                          .high = share}}
#define MERGED(label, ...)                                                                                   \
    {                                                                                                        \
        .name = label, .op = &trd__op_token_logprobs_grad, .build = build, .parameter = {1},                 \
        OPERANDS(__VA_ARGS__)                                                                                \
    }
#define SEPARATE(label, ...)                                                                                 \
    {                                                                                                        \
        .name = label, .op = &trd__op_token_logprobs, .build = build_squared, .parameter = {1},              \
        OPERANDS(__VA_ARGS__)                                                                                \
    }

/* Only one of the gradients is asked for: the other has no buffer. */
#define PARTIAL(label, builder, of_hidden, of_weight)                                                        \
    {                                                                                                        \
        .name = label, .op = &trd__op_token_logprobs_grad, .build = builder, .parameter = {1},               \
        .bf16_tolerance = 2e-2,                                                                              \
        .operands =                                                                                          \
        { {.name = "hidden",                                                                                 \
           .dtype = OP_FLOAT,                                                                                \
           .shape = OP_SHAPE(2, 9, 17),                                                                      \
           .fill = op_normal,                                                                                \
           .high = 1,                                                                                        \
           .gradient = of_hidden},                                                                           \
          {.name = "weight",                                                                                 \
           .dtype = OP_FLOAT,                                                                                \
           .shape = OP_SHAPE(33, 17),                                                                        \
           .fill = op_normal,                                                                                \
           .high = 1,                                                                                        \
           .gradient = of_weight},                                                                           \
          {.name = "targets", .dtype = TRD_I32, .shape = OP_SHAPE(2, 9), .fill = op_integers, .high = 33},   \
          {.name = "row_mask", .dtype = TRD_BOOL, .shape = OP_SHAPE(2, 9), .fill = op_booleans, .high = 0.5} \
        }                                                                                                    \
    }

static const op_case cases[] = {
    PARTIAL("only_hidden", build, true, false),
    PARTIAL("only_weight", build, false, true),
    PARTIAL("separate_only_hidden", build_squared, true, false),
    PARTIAL("separate_only_weight", build_squared, false, true),
    MERGED("mixed_mask", 0.5, 1, 2, 17, 33, 65),
    MERGED("no_rows", 0, 1, 2, 9, 17, 33),
    MERGED("all_rows", 1, 1, 2, 9, 17, 33),
    MERGED("one", 1, 1, 1, 1, 1, 2),
    MERGED("wide", 0.7, 1, 1, 9, 24, 1030),
    MERGED("blocks", 0.95, 0.3, 3, 101, 8, 130),
    MERGED("far_logits", 0.6, 20, 2, 9, 33, 65),
    SEPARATE("separate", 0.5, 1, 2, 17, 33, 65),
    SEPARATE("separate_no_rows", 0, 1, 2, 9, 17, 33),
    SEPARATE("separate_blocks", 0.95, 0.3, 3, 101, 8, 130),
    {.name = "log_sums",
     .op = &trd__op_token_logprobs_grad,
     .build = build_log_sums,
     .parameter = {0.7},
     OPERANDS(0.5, 1, 2, 17, 33, 65)},
    {.name = "log_sums_alone",
     .op = &trd__op_token_logprobs_grad,
     .build = build_log_sums_alone,
     .parameter = {1},
     OPERANDS(0.5, 1, 2, 9, 17, 33)},
    {.name = "z_loss",
     .op = &trd__op_token_logprobs,
     .build = build_z_loss,
     .parameter = {1},
     OPERANDS(0.5, 1, 2, 17, 33, 65)},
    {.name = "poisoned",
     .op = &trd__op_token_logprobs_grad,
     .build = build_poisoned,
     .parameter = {1},
     OPERANDS(0.5, 1, 2, 17, 33, 65)},
    {.name = "null_mask",
     .op = &trd__op_token_logprobs_grad,
     .build = build_all_rows,
     .parameter = {1},
     OPERANDS(1, 1, 2, 9, 17, 33)},
    {.name = "temperature",
     .op = &trd__op_token_logprobs_grad,
     .build = build,
     .parameter = {0.7},
     OPERANDS(0.5, 1, 2, 9, 17, 33)},
};

OP_CASES_MAIN("ops/token_logprobs", cases)
