/* Kernels of the unary elementwise ops: one row an op. cast and stop_gradient only convert. */
#include <math.h>
#include <stdlib.h>

#include "backend/cpu/elementwise.h"

/* X(op, float32, float64, integer); integers where the op does not take them give x. */
#define UNARY(X)                                                                                             \
    X(neg, -x, -x, -x)                                                                                       \
    X(abs, fabsf(x), fabs(x), llabs(x))                                                                      \
    X(sign, (float)((x > 0) - (x < 0)), (double)((x > 0) - (x < 0)), (x > 0) - (x < 0))                      \
    X(exp, expf(x), exp(x), x)                                                                               \
    X(log, logf(x), log(x), x)                                                                               \
    X(sqrt, sqrtf(x), sqrt(x), x)                                                                            \
    X(rsqrt, 1.0f / sqrtf(x), 1.0 / sqrt(x), x)                                                              \
    X(tanh, tanhf(x), tanh(x), x)                                                                            \
    X(sigmoid, 1.0f / (1.0f + expf(-x)), 1.0 / (1.0 + exp(-x)), x)                                           \
    X(square, x *x, x *x, x *x)                                                                              \
    X(not, x == 0, x == 0, x == 0)                                                                           \
    X(is_finite, isfinite(x) != 0, isfinite(x) != 0, 1)                                                      \
    X(cast, x, x, x)                                                                                         \
    X(stop_gradient, x, x, x)
TRD__SCALAR_OPS(trd__cpu_unary, UNARY)
