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
COMPARE(TRD__SCALAR_FUNCTIONS)

static const trd__scalar_functions functions[] = {COMPARE(TRD__SCALAR_ROW){0}};

static trd_status plan(const trd_node *n, trd__cpu_plan *p)
{
    return trd__elementwise_plan(n, p, functions);
}

static const trd__cpu_kernel reference = {.name = "reference", .plan = plan, .run = trd__elementwise_run};
static const trd__cpu_kernel *const variants[] = {&reference, NULL};

#define ROW(name, f32_expression, f64_expression, i64_expression)                                            \
    {.op = &trd__op_##name, .variants = variants},
const trd__cpu_op trd__cpu_compare[] = {COMPARE(ROW){0}};
