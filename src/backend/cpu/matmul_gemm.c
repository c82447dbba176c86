/* Matrix products through gemm.h: every worker computes its part of C, or whole products when there are many.
 */
#include "backend/cpu/gemm.h"
#include "backend/cpu/matmul.h"

typedef struct gemm_plan {
    const trd__row_math *math;
    trd__matmul_dims dims;
    trd__gemm gemm;
    trd__deal deal; /* of each product, unless by_batch */
    bool by_batch;  /* workers take whole products of the batch */
} gemm_plan;

static const char *refuse(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    const trd__matmul_attr *attr = n->attr;
    bool known = trd__is_f32_or_bf16(attr->dtype);
    for (int i = 0; i < 2; i++) known = known && trd__is_f32_or_bf16(trd__type_of(n->inputs[i])->dtype);
    return known ? NULL : "only float32 and bfloat16";
}

/* Products that do not reach the library, few rows or many. */
static const char *refuse_large(const trd_node *n, const trd__cpu_info *info)
{
    (void)info;
    const trd__matmul_attr *attr = n->attr;
    trd__matmul_dims d = trd__matmul_dims_of(n);
    bool wide = attr->dtype == TRD_F32;
    for (int i = 0; i < 2; i++) wide = wide && trd__type_of(n->inputs[i])->dtype == TRD_F32;
    if (!wide) return "only float32";
    bool small = trd__is_small_product(attr->transpose_x, attr->transpose_y, d.m, d.n, d.k);
    return small ? NULL : "worth a call of the library";
}

static const char *refuse_bf16(const trd_node *n, const trd__cpu_info *info)
{
    const trd__matmul_attr *attr = n->attr;
    trd__matmul_dims d = trd__matmul_dims_of(n);
    if (!info->bf16_product) return "bfloat16 is widened here";
    for (int i = 0; i < 2; i++)
        if (trd__type_of(n->inputs[i])->dtype != TRD_BF16) return "only bfloat16";
    if (!trd__is_f32_or_bf16(attr->dtype)) return "results only of float32 and bfloat16";
    bool small = trd__is_small_product(attr->transpose_x, attr->transpose_y, d.m, d.n, d.k);
    return small ? "not worth a call of the library" : NULL;
}

static trd_status plan(const trd_node *n, trd__cpu_plan *plan)
{
    const trd__matmul_attr *attr = n->attr;
    gemm_plan *p = trd__arena_alloc(plan->arena, 1, sizeof *p);
    if (!p) return TRD_NO_MEMORY;
    trd__matmul_dims d = trd__matmul_dims_of(n);
    p->math = trd__row_math_for(plan->info->isa);
    p->dims = d;
    p->gemm = (trd__gemm){.a_dtype = trd__type_of(n->inputs[0])->dtype,
                          .b_dtype = trd__type_of(n->inputs[1])->dtype,
                          .c_dtype = attr->dtype,
                          .transpose_a = attr->transpose_x,
                          .transpose_b = attr->transpose_y,
                          .m = d.m,
                          .n = d.n,
                          .k = d.k,
                          .lda = attr->transpose_x ? d.m : d.k,
                          .ldb = attr->transpose_y ? d.k : d.n,
                          .ldc = d.n,
                          .alpha = 1.0f};
    p->by_batch = d.batch >= 2 * plan->info->workers;
    plan->state = p;
    plan->worker_bytes = trd__gemm_scratch_bytes(&p->gemm);
    plan->workers = d.small ? 1 : 0;
    p->deal = trd__gemm_deal(&p->gemm, d.small ? 1 : plan->info->workers);
    if (n->input_count > 2 && n->inputs[2].node) plan->in_place[0] = 2 + 1;
    return TRD_OK;
}

static trd_status plan_bf16(const trd_node *n, trd__cpu_plan *out)
{
    TRD_TRY(plan(n, out));
    ((gemm_plan *)out->state)->gemm.native = out->info->bf16_product;
    return TRD_OK;
}

/* A part of product i of the batch. */
static void run_part(const trd__cpu_call *call, int64_t i, trd__gemm_tile tile)
{
    const gemm_plan *p = call->state;
    const trd__matmul_dims *d = &p->dims;
    const trd__gemm *g = &p->gemm;
    const unsigned char *a = call->inputs[0], *b = call->inputs[1];
    const unsigned char *accumulator = call->node->input_count > 2 ? call->inputs[2] : NULL;
    size_t a_at = (size_t)(i * d->m * d->k) * trd_dtype_bytes(g->a_dtype);
    size_t b_at = d->y_batch ? (size_t)(i * d->k * d->n) * trd_dtype_bytes(g->b_dtype) : 0;
    size_t c_at = (size_t)(i * d->m * d->n) * trd_dtype_bytes(g->c_dtype);
    trd__gemm_run(g, p->math, tile, a + a_at, b + b_at, accumulator ? accumulator + c_at : NULL,
                  (unsigned char *)call->outputs[0] + c_at, call->worker_scratch);
}

static void run(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const gemm_plan *p = call->state;
    const trd__gemm *g = &p->gemm;
    int64_t begin = 0, end = p->dims.batch;
    if (p->by_batch) {
        trd__partition(call->worker, call->workers, p->dims.batch, 1, &begin, &end);
        for (int64_t i = begin; i < end; i++) run_part(call, i, (trd__gemm_tile){0, g->m, 0, g->n});
        return;
    }
    for (int part = call->worker; part < trd__deal_parts(&p->deal); part = trd__deal_next(&p->deal, call))
        for (int64_t i = 0; i < end; i++) run_part(call, i, trd__gemm_part(g, &p->deal, part));
}

/* The same kernel in three places of the list: small products stand before the stream of a weight's rows, and
 * after it what the library multiplies as bfloat16 and all that is left. */
const trd__cpu_kernel trd__matmul_small = {.name = "small", .refuse = refuse_large, .plan = plan, .run = run};
const trd__cpu_kernel trd__matmul_bf16 = {
    .name = "bf16", .refuse = refuse_bf16, .plan = plan_bf16, .run = run};
const trd__cpu_kernel trd__matmul_gemm = {.name = "gemm", .refuse = refuse, .plan = plan, .run = run};
