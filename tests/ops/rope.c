/* Cases of the rotary embedding: full and partial heads, each scaling, packed and left-padded rows. */
#include "support/op_case.h"

/* Parameters: scaling, partial factor (0: all). */
static int build(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    trd_rope_options options = {.theta = 10000,
                                .scaling = (trd_rope_scaling)c->parameter[0],
                                .factor = 8,
                                .low_freq_factor = 1,
                                .high_freq_factor = 4,
                                .original_max_position_embeddings = 64,
                                .partial_rotary_factor = c->parameter[1]};
    trd_rows rows = {.positions = in[1]};
    out[0] = trd_rope(b, in[0], &rows, &options);
    return 1;
}

#define CASE(label, reached, kind, scaling, partial, batch, length, heads, lanes)                            \
    {                                                                                                        \
        .name = label, .op = &trd__op_##reached, .build = build, .parameter = {scaling, partial},            \
        .operands = {                                                                                        \
            OP_X("x", batch, length, heads, lanes),                                                          \
            {.name = "positions",                                                                            \
             .dtype = TRD_I32,                                                                               \
             .shape = OP_SHAPE(batch, length),                                                               \
             .fill = op_positions,                                                                           \
             .low = kind}                                                                                    \
        }                                                                                                    \
    }

static const op_case cases[] = {
    CASE("whole", rope, OP_ROWS_WHOLE, TRD_ROPE_DEFAULT, 0, 2, 17, 3, 64),
    CASE("small_heads", rope, OP_ROWS_WHOLE, TRD_ROPE_DEFAULT, 0, 1, 5, 1, 2),
    CASE("odd_pairs", rope, OP_ROWS_PACKED, TRD_ROPE_DEFAULT, 0, 2, 9, 2, 18),
    CASE("long", rope, OP_ROWS_WHOLE, TRD_ROPE_DEFAULT, 1, 1, 300, 1, 32),
    CASE("packed", rope, OP_ROWS_PACKED, TRD_ROPE_DEFAULT, 0, 3, 33, 2, 16),
    CASE("left_padded", rope, OP_ROWS_LEFT_PADDED, TRD_ROPE_DEFAULT, 0, 3, 17, 2, 16),
    CASE("partial", rope, OP_ROWS_WHOLE, TRD_ROPE_DEFAULT, 0.25, 2, 9, 2, 64),
    CASE("linear", rope, OP_ROWS_WHOLE, TRD_ROPE_LINEAR, 0, 1, 65, 1, 32),
    CASE("llama3", rope, OP_ROWS_WHOLE, TRD_ROPE_LLAMA3, 0, 1, 129, 1, 64),
    CASE("table", rope_table, OP_ROWS_PACKED, TRD_ROPE_LLAMA3, 0, 2, 33, 1, 32),
};

OP_CASES_MAIN("ops/rope", cases)
