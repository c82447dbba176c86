/* Lowering of the table of rotary angles: float64 as on every backend, rounded to float32 behind cosine and
 * sine. The frequencies are a constant of the module. The rotation itself goes through its expansion. */
#include <stdio.h>

#include "backend/pjrt/emit.h"
#include "base/shape.h"

/* The inverse frequencies of all pairs: (pairs) float64. */
static trd__hlo frequencies(trd__emitter *e, const trd__rope_table_attr *attr, int64_t pairs)
{
    enum { NUMBER_TEXT = 32 };
    const trd_shape shape = TRD__SHAPE(pairs);
    char *list = trd__arena_alloc(e->arena, (size_t)pairs + 1, NUMBER_TEXT);
    size_t used = 0;
    for (int64_t i = 0; list && i < pairs; i++)
        used +=
            (size_t)snprintf(list + used, NUMBER_TEXT, "%s%s", i ? ", " : "",
                             trd__hlo_literal(e, TRD_F64, trd__rope_frequency(&attr->options, i, 2 * pairs)));
    return trd__emit(e, TRD_F64, &shape, NULL, 0, "stablehlo.constant dense<[%s]>", list ? list : "");
}

static void lower_table(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    const trd_shape *shape = &n->results[0].shape; /* (B, T, pairs, 2) */
    const trd_shape half = TRD__SHAPE(shape->dim[0], shape->dim[1], shape->dim[2], 1);
    trd__hlo positions = trd__hlo_convert(e, trd__hlo_operand(e, n, 0), TRD_F64);
    trd__hlo frequency = frequencies(e, n->attr, shape->dim[2]);
    trd__hlo product[2] = {trd__hlo_broadcast(e, positions, &half, (const int64_t[]){0, 1}),
                           trd__hlo_broadcast(e, frequency, &half, (const int64_t[]){2})};
    trd__hlo angle = trd__emit_elementwise(e, "multiply", product, 2);
    trd__hlo parts[2] = {trd__hlo_convert(e, trd__emit_elementwise(e, "cosine", &angle, 1), TRD_F32),
                         trd__hlo_convert(e, trd__emit_elementwise(e, "sine", &angle, 1), TRD_F32)};
    trd__hlo table = trd__emit(e, TRD_F32, shape, parts, 2, "stablehlo.concatenate %s, dim = 3",
                               trd__hlo_names(e, parts, 2));
    /* Else XLA computes the angles again, for every head, inside each loop that reads them. */
    results[0] = trd__emit_elementwise(e, "optimization_barrier", &table, 1);
}

const trd__pjrt_op trd__pjrt_rope[] = {{.op = &trd__op_rope_table, .lower = lower_table}, {0}};
