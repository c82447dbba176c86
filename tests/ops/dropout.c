/* Cases of dropout: sizes around the groups that words are drawn for, rates from almost nothing to almost
 * everything. Parameters: rate, seed, site. */
#include "support/op_case.h"

static int build(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_value site = trd_scalar(b, TRD_I32, c->parameter[2]);
    out[0] = trd_dropout(b, in[0], in[1], site, c->parameter[0], (uint64_t)c->parameter[1]);
    return 1;
}

#define CASE(label, count, rate, seed, site, ...)                                                            \
    {                                                                                                        \
        .name = label, .op = &trd__op_dropout, .build = build,                                               \
        .operands = {OP_X("x", __VA_ARGS__),                                                                 \
                     {.name = "counter", .dtype = TRD_I32, .fill = op_constant, .low = count}},              \
        .parameter = {                                                                                       \
            rate,                                                                                            \
            seed,                                                                                            \
            site                                                                                             \
        }                                                                                                    \
    }

static const op_case cases[] = {
    CASE("one", 0, 0.5, 0, 0, 1),
    CASE("odd", 1, 0.3, 1, 2, 3, 5, 33),
    CASE("group", 2147483647, 0.1, 4503599627370497, 1, 32),
    CASE("negative_counter", -5, 0.1, 77, 3, 31),
    CASE("beyond_a_group", 7, 0.9, 12345, 100, 65),
    CASE("wide", 3, 0.25, 9, 55, 2, 17, 1536),
    CASE("rare", 4, 1e-7, 9, 55, 129),
    CASE("almost_all", 4, 0.999, 9, 55, 4, 129),
};

OP_CASES_MAIN("ops/dropout", cases)
