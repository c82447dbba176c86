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
UNARY(TRD__SCALAR_FUNCTIONS)

static const trd__scalar_functions functions[] = {UNARY(TRD__SCALAR_ROW){0}};

static trd_status plan(const trd_node *n, trd__cpu_plan *p)
{
    return trd__elementwise_plan(n, p, functions);
}

static const trd__cpu_kernel reference = {.name = "reference", .plan = plan, .run = trd__elementwise_run};
static const trd__cpu_kernel *const variants[] = {&reference, NULL};

#define ROW(name, f32_expression, f64_expression, i64_expression)                                            \
    {.op = &trd__op_##name, .variants = variants},
const trd__cpu_op trd__cpu_unary[] = {UNARY(ROW){0}};
