/* Cases of attention and its gradient op: head ratios, head sizes, packed, padded and cached rows, scores far
 * apart. The log-sum-exp is compared on real rows only; padding may hold any finite value. */
#include <math.h>

#include "graph/node.h"
#include "support/op_case.h"

static int build(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    trd_rows rows = {.segments = in[3]};
    out[0] = trd_attention(b, in[0], in[1], in[2], &rows);
    return 1;
}

/* values, but other on padding queries; axes are those of q (B, T, H, D) or of the log-sum-exp (B, H, T). */
static trd_value except_padding(trd_builder *b, trd_value segments, trd_value values, double other)
{
    trd_shape shape = trd_value_shape(segments);
    bool q_like = trd_value_shape(values).rank == 4;
    segments = trd_reshape(b, segments,
                           q_like ? TRD__SHAPE(shape.dim[0], shape.dim[1], 1, 1)
                                  : TRD__SHAPE(shape.dim[0], 1, shape.dim[1]));
    trd_value real = trd_greater(b, segments, trd_scalar(b, TRD_I32, 0));
    return trd_select(b, real, values, trd_scalar(b, trd_value_dtype(values), other));
}

/* Only the log-sum-exp: the output itself has no buffer. */
static int build_only_log_sum(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_rows rows = {.segments = in[3], .positions = in[4], .cached = c->operands[4].name != NULL};
    trd_value y = trd_attention(b, in[0], in[1], in[2], &rows);
    out[0] = except_padding(b, in[3], trd__result(y.node, 1), 0);
    return 1;
}

/* Both results; nothing may be differentiated through the log-sum-exp. */
static int build_log_sum(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    build(b, c, in, out);
    out[1] = except_padding(b, in[3], trd__result(out[0].node, 1), 0);
    return 2;
}

/* The output's cotangent is 0 * NaN on padding queries, which must not reach any gradient. */
static int build_poisoned(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    build(b, c, in, out);
    trd_value ones = trd_constant_fill(b, trd_value_dtype(out[0]), trd_value_shape(out[0]), 1);
    trd_value poison = except_padding(b, in[3], ones, NAN);
    out[0] = except_padding(b, in[3], trd_mul(b, out[0], poison), 0);
    return 1;
}

static int build_cached(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    trd_rows rows = {.segments = in[3], .positions = in[4], .cached = true};
    out[0] = trd_attention(b, in[0], in[1], in[2], &rows);
    return 1;
}

#define X(label, spread, differentiable, ...)                                                                \
    {                                                                                                        \
        .name = label, .dtype = OP_FLOAT, .shape = OP_SHAPE(__VA_ARGS__), .fill = op_normal, .high = spread, \
        .gradient = differentiable                                                                           \
    }
#define SEGMENTS(kind, batch, length)                                                                        \
    {                                                                                                        \
        .name = "segments", .dtype = TRD_I32, .shape = OP_SHAPE(batch, length), .fill = op_segments,         \
        .low = kind                                                                                          \
    }
#define CASE(label, kind, spread, batch, length, heads, groups, lanes, ...)                                  \
    {                                                                                                        \
        .name = label, .op = &trd__op_attention, .build = build, .bf16_tolerance = 2e-2,                     \
        .operands = {X("q", spread, true, batch, length, heads, lanes),                                      \
                     X("k", spread, true, batch, length, groups, lanes),                                     \
                     X("v", 1, true, batch, length, groups, lanes), SEGMENTS(kind, batch, length)},          \
        __VA_ARGS__                                                                                          \
    }
/* Another way to build from the same operands. */
#define BUILT(label, how, kind, length, differentiable)                                                      \
    {                                                                                                        \
        .name = label, .op = &trd__op_attention, .build = how, .bf16_tolerance = 2e-2, .operands = {         \
            X("q", 1, differentiable, 3, length, 4, 16),                                                     \
            X("k", 1, differentiable, 3, length, 2, 16),                                                     \
            X("v", 1, differentiable, 3, length, 2, 16),                                                     \
            SEGMENTS(kind, 3, length)                                                                        \
        }                                                                                                    \
    }
/* Only some of the gradients are asked for: the others have no buffer. */
#define PARTIAL(label, length, of_q, of_k, of_v)                                                             \
    {                                                                                                        \
        .name = label, .op = &trd__op_attention_grad, .build = build, .bf16_tolerance = 2e-2, .operands = {  \
            X("q", 1, of_q, 2, length, 4, 16),                                                               \
            X("k", 1, of_k, 2, length, 2, 16),                                                               \
            X("v", 1, of_v, 2, length, 2, 16),                                                               \
            SEGMENTS(OP_ROWS_PACKED, 2, length)                                                              \
        }                                                                                                    \
    }
#define CACHED(label, how, queries, keys, heads, groups, lanes)                                              \
    {                                                                                                        \
        .name = label, .op = &trd__op_attention, .build = how, .operands = {                                 \
            X("q", 1, false, 3, queries, heads, lanes),                                                      \
            X("k", 1, false, 3, keys, groups, lanes),                                                        \
            X("v", 1, false, 3, keys, groups, lanes),                                                        \
            SEGMENTS(OP_ROWS_WHOLE, 3, queries),                                                             \
            {.name = "positions",                                                                            \
             .dtype = TRD_I32,                                                                               \
             .shape = OP_SHAPE(3, queries),                                                                  \
             .fill = op_integers,                                                                            \
             .low = 0,                                                                                       \
             .high = keys}                                                                                   \
        }                                                                                                    \
    }

/* Scores of a hundred and more are rounded by 1e-5 in float32, and their exponentials keep that. */
#define FAR 3e-5

/* Long rows are there for the fast kernels' blocks; the short ones have been through everything. */
#define SLOW_MODES (1u << OP_DIFFERENCES | 1u << OP_ACCUMULATE)

static const op_case cases[] = {
    CASE("whole", OP_ROWS_WHOLE, 1, 2, 17, 2, 2, 16),
    CASE("one_token", OP_ROWS_WHOLE, 1, 1, 1, 1, 1, 16),
    CASE("ratio_2", OP_ROWS_PACKED, 1, 2, 33, 4, 2, 32),
    CASE("ratio_4", OP_ROWS_PACKED, 1, 1, 37, 4, 1, 64),
    CASE("head_128", OP_ROWS_WHOLE, 1, 1, 35, 2, 1, 128),
    CASE("head_odd", OP_ROWS_PACKED, 1, 2, 9, 2, 1, 24),
    CASE("packed", OP_ROWS_PACKED, 1, 2, 65, 2, 1, 16),
    CASE("left_padded", OP_ROWS_LEFT_PADDED, 1, 3, 33, 2, 2, 16),
    CASE("empty_row", OP_ROWS_WITH_EMPTY, 1, 3, 33, 2, 1, 16),
    CASE("only_padding", OP_ROWS_WITH_EMPTY, 1, 1, 17, 2, 1, 16),
    CASE("blocks", OP_ROWS_WHOLE, 1, 1, 150, 1, 1, 16, .skip = SLOW_MODES),
    CASE("blocks_packed", OP_ROWS_PACKED, 1, 1, 257, 2, 1, 16, .skip = SLOW_MODES),
    CASE("chunks_far_scores", OP_ROWS_WHOLE, 6, 1, 600, 1, 1, 8, .skip = SLOW_MODES, .tolerance = FAR),
    CASE("far_scores", OP_ROWS_PACKED, 6, 2, 33, 2, 1, 16, .tolerance = FAR),
    PARTIAL("only_q", 33, true, false, false),
    PARTIAL("only_k", 33, false, true, false),
    PARTIAL("only_v", 33, false, false, true),
    BUILT("log_sum", build_log_sum, OP_ROWS_WITH_EMPTY, 33, false),
    BUILT("only_log_sum", build_only_log_sum, OP_ROWS_WITH_EMPTY, 33, false),
    BUILT("poisoned_packed", build_poisoned, OP_ROWS_PACKED, 33, true),
    BUILT("poisoned_left", build_poisoned, OP_ROWS_LEFT_PADDED, 33, true),
    BUILT("poisoned_empty", build_poisoned, OP_ROWS_WITH_EMPTY, 33, true),
    BUILT("poisoned_gaps", build_poisoned, OP_ROWS_WITH_GAPS, 33, true),
    CASE("few", OP_ROWS_WHOLE, 1, 1, 8, 4, 4, 16),
    CASE("few_most", OP_ROWS_WHOLE, 1, 2, 16, 4, 2, 24),
    CASE("few_packed", OP_ROWS_PACKED, 1, 3, 13, 4, 1, 16),
    CASE("few_gaps", OP_ROWS_WITH_GAPS, 1, 3, 15, 4, 2, 16),
    CASE("few_far_scores", OP_ROWS_PACKED, 6, 2, 16, 2, 1, 16, .tolerance = FAR),
    PARTIAL("few_only_q", 16, true, false, false),
    PARTIAL("few_only_k", 16, false, true, false),
    PARTIAL("few_only_v", 16, false, false, true),
    BUILT("few_log_sum", build_log_sum, OP_ROWS_WITH_EMPTY, 16, false),
    BUILT("few_only_log_sum", build_only_log_sum, OP_ROWS_WITH_EMPTY, 16, false),
    BUILT("few_poisoned_packed", build_poisoned, OP_ROWS_PACKED, 16, true),
    BUILT("few_poisoned_left", build_poisoned, OP_ROWS_LEFT_PADDED, 16, true),
    BUILT("few_poisoned_empty", build_poisoned, OP_ROWS_WITH_EMPTY, 16, true),
    BUILT("few_poisoned_gaps", build_poisoned, OP_ROWS_WITH_GAPS, 16, true),
    CACHED("cached_only_log_sum", build_only_log_sum, 1, 33, 4, 2, 16),
    CACHED("cached_one", build_cached, 1, 33, 2, 1, 16),
    CACHED("cached_several", build_cached, 5, 129, 4, 2, 64),
    CACHED("cached_ratio_4", build_cached, 1, 70, 4, 1, 32),
};

OP_CASES_MAIN("ops/attention", cases)
