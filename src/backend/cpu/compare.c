/* Kernels of the comparisons and select: one row an op. */
#include "backend/cpu/elementwise.h"

/* X(op, float32, float64, integer) */
#define COMPARE(X)                                                                                           \
    X(equal, x == y, x == y, x == y)                                                                         \
    X(not_equal, x != y, x != y, x != y)                                                                     \
    X(less, x < y, x < y, x < y)                                                                             \
    X(less_equal, x <= y, x <= y, x <= y)                                                                    \
    X(greater, x > y, x > y, x > y)                                                                          \
    X(greater_equal, x >= y, x >= y, x >= y)                                                                 \
    X(select, x != 0 ? y : z, x != 0 ? y : z, x != 0 ? y : z)
TRD__SCALAR_OPS(trd__cpu_compare, COMPARE)
