/* Cases of swiglu and its gradient op. */
#include "support/op_case.h"

static int build(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_swiglu(b, in[0], in[1]);
    return 1;
}

#define CASE(label, spread, ...)                                                                             \
    {                                                                                                        \
        .name = label, .op = &trd__op_swiglu, .build = build, .operands = {                                  \
            {.name = "gate",                                                                                 \
             .dtype = OP_FLOAT,                                                                              \
             .shape = OP_SHAPE(__VA_ARGS__),                                                                 \
             .fill = op_normal,                                                                              \
             .high = spread,                                                                                 \
             .gradient = true},                                                                              \
            {.name = "up",                                                                                   \
             .dtype = OP_FLOAT,                                                                              \
             .shape = OP_SHAPE(__VA_ARGS__),                                                                 \
             .fill = op_normal,                                                                              \
             .high = 1,                                                                                      \
             .gradient = true}                                                                               \
        }                                                                                                    \
    }

/* Only one of the gradients is asked for: the other has no buffer. */
#define PARTIAL(label, of_gate, of_up)                                                                       \
    {                                                                                                        \
        .name = label, .op = &trd__op_swiglu_grad, .build = build, .operands = {                             \
            {.name = "gate",                                                                                 \
             .dtype = OP_FLOAT,                                                                              \
             .shape = OP_SHAPE(5, 33),                                                                       \
             .fill = op_normal,                                                                              \
             .high = 1,                                                                                      \
             .gradient = of_gate},                                                                           \
            {.name = "up",                                                                                   \
             .dtype = OP_FLOAT,                                                                              \
             .shape = OP_SHAPE(5, 33),                                                                       \
             .fill = op_normal,                                                                              \
             .high = 1,                                                                                      \
             .gradient = of_up}                                                                              \
        }                                                                                                    \
    }

static const op_case cases[] = {
    PARTIAL("only_gate", true, false), PARTIAL("only_up", false, true),
    CASE("odd", 1, 3, 5, 33),          CASE("one", 1, 1),
    CASE("wide", 2, 17, 1536),         CASE("large", 40, 5, 65),
    CASE("saturated", 200, 129),
};

OP_CASES_MAIN("ops/swiglu", cases)
