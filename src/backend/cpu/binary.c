/* Kernels of the binary elementwise ops: one row an op. max and min return NaN where an operand is NaN. */
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
    X(or, x != 0 || y != 0, x != 0 || y != 0, x != 0 || y != 0)
BINARY(TRD__SCALAR_FUNCTIONS)

static const trd__scalar_functions functions[] = {BINARY(TRD__SCALAR_ROW){0}};

static trd_status plan(const trd_node *n, trd__cpu_plan *p)
{
    return trd__elementwise_plan(n, p, functions);
}

static const trd__cpu_kernel reference = {.name = "reference", .plan = plan, .run = trd__elementwise_run};
static const trd__cpu_kernel *const variants[] = {&reference, NULL};

#define ROW(name, f32_expression, f64_expression, i64_expression)                                            \
    {.op = &trd__op_##name, .variants = variants},
const trd__cpu_op trd__cpu_binary[] = {BINARY(ROW){0}};
