/* Matrix products: the variant list and the plain kernel, which takes every float dtype and sums in float64.
 */
#include "backend/cpu/matmul.h"

enum {
    SMALL_PRODUCT = 1 << 18
}; /* multiply-adds below which a barrier costs more than a second worker saves */

trd__matmul_dims trd__matmul_dims_of(const trd_node *n)
{
    const trd__matmul_attr *attr = n->attr;
    const trd_shape *x = &trd__type_of(n->inputs[0])->shape;
    const trd_shape *y = &trd__type_of(n->inputs[1])->shape;
    trd__matmul_dims d = {.batch = 1, .y_batch = y->rank > 2};
    for (int axis = 0; axis < x->rank - 2; axis++) d.batch *= x->dim[axis];
    d.m = x->dim[x->rank - (attr->transpose_x ? 1 : 2)];
    d.k = x->dim[x->rank - (attr->transpose_x ? 2 : 1)];
    d.n = y->dim[y->rank - (attr->transpose_y ? 2 : 1)];
    if (!d.y_batch && !attr->transpose_x) { /* a shared y: the rows of all batches are one long operand */
        d.m *= d.batch;
        d.batch = 1;
    }
    d.small = (double)d.batch * (double)d.m * (double)d.n * (double)d.k < SMALL_PRODUCT;
    return d;
}

static trd_status plan_reference(const trd_node *n, trd__cpu_plan *plan)
{
    plan->workers = trd__matmul_dims_of(n).small ? 1 : 0;
    if (n->input_count > 2 && n->inputs[2].node) plan->in_place[0] = 2 + 1;
    return TRD_OK;
}

/* Row `row` of op(x) times op(y), plus the accumulator's row. */
static void reference_row(const trd__cpu_call *call, const trd__matmul_dims *d, int64_t batch, int64_t row)
{
    const trd_node *n = call->node;
    const trd__matmul_attr *attr = n->attr;
    trd_dtype x_dtype = trd__type_of(n->inputs[0])->dtype, y_dtype = trd__type_of(n->inputs[1])->dtype;
    const void *accumulator = n->input_count > 2 ? call->inputs[2] : NULL;
    int64_t x_at = batch * d->m * d->k + (attr->transpose_x ? row : row * d->k);
    int64_t x_step = attr->transpose_x ? d->m : 1;
    int64_t y_base = d->y_batch ? batch * d->k * d->n : 0;
    int64_t y_step = attr->transpose_y ? 1 : d->n;
    for (int64_t column = 0; column < d->n; column++) {
        int64_t y_at = y_base + (attr->transpose_y ? column * d->k : column);
        size_t out = (size_t)((batch * d->m + row) * d->n + column);
        double sum = 0;
        for (int64_t k = 0; k < d->k; k++)
            sum += trd__load(x_dtype, call->inputs[0], (size_t)(x_at + k * x_step)) *
                   trd__load(y_dtype, call->inputs[1], (size_t)(y_at + k * y_step));
        if (accumulator) sum += trd__load(attr->dtype, accumulator, out);
        trd__store(attr->dtype, call->outputs[0], out, sum);
    }
}

static void run_reference(const trd__cpu_call *call, int phase)
{
    (void)phase;
    trd__matmul_dims d = trd__matmul_dims_of(call->node);
    int64_t begin, end;
    trd__partition(call->worker, call->workers, d.batch * d.m, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) reference_row(call, &d, row / d.m, row % d.m);
}

static const trd__cpu_kernel reference = {.name = "reference", .plan = plan_reference, .run = run_reference};
static const trd__cpu_kernel *const variants[] = {&trd__matmul_small, &trd__matmul_stream, &trd__matmul_bf16,
                                                  &trd__matmul_gemm,  &reference,          NULL};

const trd__cpu_op trd__cpu_matmul[] = {{.op = &trd__op_matmul, .variants = variants}, {0}};
