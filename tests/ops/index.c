/* Cases of the indexed ops: repeated ids, ids that never occur, single rows. */
#include "support/op_case.h"

trd_value trd__put_last(trd_builder *b, trd_value values, trd_value index, int64_t size);

static int build_gather(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_gather_rows(b, in[0], in[1]);
    return 1;
}

/* A float32 table used in another dtype and back. */
static int build_gather_cast(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    trd_value rows = trd_gather_rows(b, trd_cast(b, in[0], TRD_BF16), in[1]);
    out[0] = trd_cast(b, rows, TRD_F32);
    return 1;
}

/* Parameter 0: rows. */
static int build_scatter(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd_scatter_add_rows(b, in[0], in[1], (int64_t)c->parameter[0]);
    return 1;
}

static int build_take(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_take_last(b, in[0], in[1]);
    return 1;
}

/* Parameter 0: size. */
static int build_put(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    out[0] = trd__put_last(b, in[0], in[1], (int64_t)c->parameter[0]);
    return 1;
}

static int build_update(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out)
{
    (void)c;
    out[0] = trd_update_rows(b, in[0], in[1], in[2]);
    return 1;
}

#define IDS(from, to, ...)                                                                                   \
    {                                                                                                        \
        .name = "ids", .dtype = TRD_I32, .shape = OP_SHAPE(__VA_ARGS__), .fill = op_integers, .low = from,   \
        .high = to                                                                                           \
    }

static const op_case cases[] = {
    {.name = "gather",
     .op = &trd__op_gather_rows,
     .build = build_gather,
     .operands = {OP_X("table", 65, 33), IDS(0, 65, 3, 17)}},
    {.name = "gather_repeated",
     .op = &trd__op_gather_rows,
     .build = build_gather,
     .operands = {OP_X("table", 17, 65), IDS(3, 5, 2, 33)}},
    {.name = "gather_one",
     .op = &trd__op_gather_rows,
     .build = build_gather,
     .operands = {OP_X("table", 1, 1), IDS(0, 1, 5)}},
    {.name = "gather_cast",
     .op = &trd__op_gather_rows,
     .build = build_gather_cast,
     .bf16_tolerance = 2e-2,
     .tolerance = 1e-2,
     .skip = 1u << OP_DIFFERENCES /* rounds */,
     .operands = {{.name = "table",
                   .dtype = TRD_F32,
                   .shape = OP_SHAPE(17, 33),
                   .fill = op_normal,
                   .high = 1,
                   .gradient = true},
                  IDS(3, 5, 2, 33)}},
    {.name = "scatter",
     .op = &trd__op_scatter_add_rows,
     .build = build_scatter,
     .parameter = {29},
     .operands = {IDS(0, 29, 3, 17), OP_X("updates", 3, 17, 33)}},
    {.name = "scatter_one_row",
     .op = &trd__op_scatter_add_rows,
     .build = build_scatter,
     .parameter = {3},
     .operands = {IDS(1, 2, 65), OP_X("updates", 65, 5)}},
    {.name = "scatter_wide",
     .op = &trd__op_scatter_add_rows,
     .build = build_scatter,
     .parameter = {7},
     .operands = {IDS(0, 7, 33), OP_X("updates", 33, 129)}},
    {.name = "take",
     .op = &trd__op_take_last,
     .build = build_take,
     .operands = {OP_X("x", 3, 17, 65), IDS(0, 65, 3, 17)}},
    {.name = "take_one",
     .op = &trd__op_take_last,
     .build = build_take,
     .operands = {OP_X("x", 5, 1), IDS(0, 1, 5)}},
    {.name = "put",
     .op = &trd__op_put_last,
     .build = build_put,
     .parameter = {33},
     .operands = {OP_X("values", 3, 17), IDS(0, 33, 3, 17)}},
    {.name = "update",
     .op = &trd__op_update_rows,
     .build = build_update,
     .operands =
         {{.name = "cache", .dtype = OP_FLOAT, .shape = OP_SHAPE(3, 17, 2, 5), .fill = op_normal, .high = 1},
          {.name = "update", .dtype = OP_FLOAT, .shape = OP_SHAPE(3, 4, 2, 5), .fill = op_normal, .high = 1},
          {.name = "start",
           .dtype = TRD_I32,
           .shape = OP_SHAPE(3),
           .fill = op_integers,
           .low = 0,
           .high = 13}}},
    {.name = "update_beyond_end",
     .op = &trd__op_update_rows,
     .build = build_update,
     .operands =
         {{.name = "cache", .dtype = OP_FLOAT, .shape = OP_SHAPE(2, 5, 3), .fill = op_normal, .high = 1},
          {.name = "update", .dtype = OP_FLOAT, .shape = OP_SHAPE(2, 4, 3), .fill = op_normal, .high = 1},
          {.name = "start",
           .dtype = TRD_I32,
           .shape = OP_SHAPE(2),
           .fill = op_integers,
           .low = 3,
           .high = 6}}},
};

OP_CASES_MAIN("ops/index", cases)
