/* Kernels of the leaves that are computed: a constant that something reads as a whole tensor, and counting.
 */
#include "backend/cpu/kernel.h"

enum { PARALLEL_ELEMENTS = 1 << 15 };

static trd_status plan(const trd_node *n, trd__cpu_plan *p)
{
    p->workers = trd__shape_count(&n->results[0].shape) < PARALLEL_ELEMENTS ? 1 : 0;
    return TRD_OK;
}

static void run_constant(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__constant_attr *attr = call->node->attr;
    size_t size = trd_dtype_bytes(attr->dtype);
    unsigned char one[8] = {0}, *out = call->outputs[0];
    trd__store(attr->dtype, one, 0, attr->value);
    int64_t begin, end;
    trd__partition(call->worker, call->workers, trd__shape_count(&attr->shape), 64, &begin, &end);
    if (attr->value == 0)
        memset(out + (size_t)begin * size, 0, (size_t)(end - begin) * size);
    else
        for (int64_t i = begin; i < end; i++) memcpy(out + (size_t)i * size, one, size);
}

static void run_iota(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__iota_attr *attr = call->node->attr;
    int64_t inner = 1, length = attr->shape.dim[attr->axis];
    for (int i = attr->axis + 1; i < attr->shape.rank; i++) inner *= attr->shape.dim[i];
    int64_t begin, end;
    trd__partition(call->worker, call->workers, trd__shape_count(&attr->shape), 64, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        trd__store(attr->dtype, call->outputs[0], (size_t)i, (double)(i / inner % length));
}

static const trd__cpu_kernel constant = {.name = "reference", .plan = plan, .run = run_constant};
static const trd__cpu_kernel iota = {.name = "reference", .plan = plan, .run = run_iota};
static const trd__cpu_kernel *const constant_variants[] = {&constant, NULL};
static const trd__cpu_kernel *const iota_variants[] = {&iota, NULL};

const trd__cpu_op trd__cpu_leaf[] = {{.op = &trd__op_constant, .variants = constant_variants},
                                     {.op = &trd__op_iota, .variants = iota_variants},
                                     {0}};
