/* accumulator + x, rounded once to the accumulator's dtype. */
#include "backend/cpu/elementwise.h"

TRD__SCALAR_FUNCTIONS(accumulate, x + y, x + y, x + y)

static const trd__scalar_functions functions[] = {TRD__SCALAR_ROW(accumulate, , , ){0}};

static trd_status plan(const trd_node *n, trd__cpu_plan *p)
{
    return trd__elementwise_plan(n, p, functions);
}

static const trd__cpu_kernel reference = {.name = "reference", .plan = plan, .run = trd__elementwise_run};
static const trd__cpu_kernel *const variants[] = {&reference, NULL};

const trd__cpu_op trd__cpu_accumulate[] = {{.op = &trd__op_accumulate, .variants = variants}, {0}};
