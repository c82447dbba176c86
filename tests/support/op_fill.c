/* Values of operands: pure functions of (seed, stream), so that a failure can be reproduced. */
#include <math.h>

#include "base/rng.h"
#include "support/normal.h"
#include "support/op_case.h"

enum { SEGMENT_STREAM = 77 }; /* shared by segments and positions */

static int64_t element_count(const op_operand *operand)
{
    return trd__shape_count(&operand->shape);
}

void op_uniform(double *values, const op_operand *operand, uint64_t seed, uint64_t stream)
{
    for (int64_t i = 0; i < element_count(operand); i++)
        values[i] =
            operand->low + (operand->high - operand->low) * trd__rng_uniform(seed, stream, (uint64_t)i);
}

void op_normal(double *values, const op_operand *operand, uint64_t seed, uint64_t stream)
{
    for (int64_t i = 0; i < element_count(operand); i++)
        values[i] = operand->low + operand->high * test_normal(seed, stream, (uint64_t)i);
}

void op_integers(double *values, const op_operand *operand, uint64_t seed, uint64_t stream)
{
    op_uniform(values, operand, seed, stream);
    for (int64_t i = 0; i < element_count(operand); i++) values[i] = floor(values[i]);
}

void op_booleans(double *values, const op_operand *operand, uint64_t seed, uint64_t stream)
{
    for (int64_t i = 0; i < element_count(operand); i++)
        values[i] = trd__rng_uniform(seed, stream, (uint64_t)i) < operand->high;
}

void op_constant(double *values, const op_operand *operand, uint64_t seed, uint64_t stream)
{
    (void)seed, (void)stream;
    for (int64_t i = 0; i < element_count(operand); i++) values[i] = operand->low;
}

void op_distinct(double *values, const op_operand *operand, uint64_t seed, uint64_t stream)
{
    for (int64_t i = 0; i < element_count(operand); i++) {
        uint64_t other = trd__rng_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        values[i] = values[other];
        values[other] = operand->low + operand->high * (double)i;
    }
}

/* Segment and position of every column of row b. */
static void lay_row(const op_operand *operand, uint64_t seed, int64_t b, double *segment, double *position)
{
    int64_t length = operand->shape.dim[1], t = 0;
    op_rows kind = (op_rows)operand->low;
    uint64_t draw = (uint64_t)b << 32;
    for (int64_t i = 0; i < length; i++) segment[i] = position[i] = 0;
    if (kind == OP_ROWS_WITH_EMPTY && b == 0) return;
    if (kind == OP_ROWS_LEFT_PADDED)
        t = (int64_t)trd__rng_below(seed, SEGMENT_STREAM, draw++, (uint64_t)length);
    for (int id = 1; t < length; id++) {
        int64_t count = length - t;
        if (kind != OP_ROWS_WHOLE && kind != OP_ROWS_LEFT_PADDED) {
            int64_t most = (length + 2) / 3;
            count = 1 + (int64_t)trd__rng_below(seed, SEGMENT_STREAM, draw++, (uint64_t)most);
            if (id > 3 || count > length - t) return; /* the rest is padding */
        }
        if (kind == OP_ROWS_WITH_GAPS && id == 2) {
            t += count;
            continue;
        }
        for (int64_t i = 0; i < count; i++, t++) {
            segment[t] = id;
            position[t] = (double)i;
        }
    }
}

/* Lays all rows and keeps one of the two. */
static void lay_rows(double *values, const op_operand *operand, uint64_t seed, bool positions)
{
    enum { LONGEST = 4096 };
    static double other[LONGEST];
    int64_t length = operand->shape.dim[1];
    for (int64_t b = 0; b < operand->shape.dim[0] && length <= LONGEST; b++) {
        double *row = values + b * length;
        lay_row(operand, seed, b, positions ? other : row, positions ? row : other);
    }
}

void op_segments(double *values, const op_operand *operand, uint64_t seed, uint64_t stream)
{
    (void)stream;
    lay_rows(values, operand, seed, false);
}

void op_positions(double *values, const op_operand *operand, uint64_t seed, uint64_t stream)
{
    (void)stream;
    lay_rows(values, operand, seed, true);
}
