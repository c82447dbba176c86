/* Cases of rms_norm and its gradient op. */
#include "support/op_case.h"

/* Parameter 0: eps. */
static int build(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd_rms_norm(b, in[0], in[1], c->parameter[0]);
    return 1;
}

#define CASE(label, eps, spread, channels, ...)                                                              \
    {                                                                                                        \
        .name = label, .op = &trd__op_rms_norm, .build = build, .parameter = {eps}, .operands = {            \
            {.name = "x",                                                                                    \
             .dtype = OP_FLOAT,                                                                              \
             .shape = OP_SHAPE(__VA_ARGS__),                                                                 \
             .fill = op_normal,                                                                              \
             .high = spread,                                                                                 \
             .gradient = true},                                                                              \
            {.name = "scale",                                                                                \
             .dtype = OP_FLOAT,                                                                              \
             .shape = OP_SHAPE(channels),                                                                    \
             .fill = op_normal,                                                                              \
             .low = 1,                                                                                       \
             .high = 0.3,                                                                                    \
             .gradient = true}                                                                               \
        }                                                                                                    \
    }

/* Only one of the gradients is asked for: the other has no buffer. */
#define PARTIAL(label, of_x, of_scale)                                                                       \
    {                                                                                                        \
        .name = label, .op = &trd__op_rms_norm_grad, .build = build, .parameter = {1e-6}, .operands = {      \
            {.name = "x",                                                                                    \
             .dtype = OP_FLOAT,                                                                              \
             .shape = OP_SHAPE(5, 33),                                                                       \
             .fill = op_normal,                                                                              \
             .high = 1,                                                                                      \
             .gradient = of_x},                                                                              \
            {.name = "scale",                                                                                \
             .dtype = OP_FLOAT,                                                                              \
             .shape = OP_SHAPE(33),                                                                          \
             .fill = op_normal,                                                                              \
             .low = 1,                                                                                       \
             .high = 0.3,                                                                                    \
             .gradient = of_scale}                                                                           \
        }                                                                                                    \
    }

static const op_case cases[] = {
    PARTIAL("only_x", true, false),          PARTIAL("only_scale", false, true),
    CASE("odd", 1e-6, 1, 33, 3, 5, 33),      CASE("one_channel", 1e-2, 1, 1, 7, 1),
    CASE("one_row", 1e-6, 1, 65, 65),        CASE("heads", 1e-6, 1, 64, 2, 5, 3, 64),
    CASE("model", 1e-5, 1, 576, 2, 17, 576), CASE("many_rows", 1e-6, 1, 16, 257, 16),
    CASE("large", 1e-6, 1e4, 33, 5, 33),     CASE("small", 1e-2, 1e-2, 33, 5, 33),
    CASE("zero_rows", 1e-2, 0, 17, 3, 17),
};

OP_CASES_MAIN("ops/rms_norm", cases)
