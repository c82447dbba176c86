/* Kernels of the binary elementwise ops: one row an op. max and min return NaN where an operand is NaN;
 * integers are computed in 64 bits and keep the low ones. */
#include <math.h>

#include "backend/cpu/elementwise.h"

#define LARGER(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))
#define SMALLER(x, y) ((x) < (y) || (x) != (x) ? (x) : (y))

/* X(op, float32, float64, integer) */
#define BINARY(X)                                                                                            \
    X(add, x + y, x + y, x + y)                                                                              \
    X(sub, x - y, x - y, x - y)                                                                              \
    X(mul, x *y, x *y, x *y)                                                                                 \
    X(div, x / y, x / y, y == 0 ? 0 : x / y)                                                                 \
    X(max, LARGER(x, y), LARGER(x, y), LARGER(x, y))                                                         \
    X(min, SMALLER(x, y), SMALLER(x, y), SMALLER(x, y))                                                      \
    X(pow, powf(x, y), pow(x, y), x)                                                                         \
    X(and, x != 0 && y != 0, x != 0 && y != 0, x != 0 && y != 0)                                             \
    X(or, x != 0 || y != 0, x != 0 || y != 0, x != 0 || y != 0)                                              \
    X(xor, x, x, x ^ y)                                                                                      \
    X(shift_left, x, x, (int64_t)((uint64_t)x << (y & 31)))                                                  \
    X(shift_right, x, x, (uint32_t)x >> (y & 31))
TRD__SCALAR_OPS(trd__cpu_binary, BINARY)
