/* Times a list of matrix products by raw library calls. Invariant: the operands of a layer are x (m, k), the
 * weight (n, k), dy (m, n) and the weight's gradient (n, k), as in a training step; results go to y and dx.
 */
#include "backend/cpu/product_rate.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/rng.h"

enum { ROW_GRAIN = 16, COLUMN_GRAIN = 48, PATTERN = 1 << 16 };

typedef enum buffer { X, WEIGHT, DY, D_WEIGHT, RESULT, BUFFERS } buffer;

struct trd__product_bench {
    trd__product *products;
    int count;
    trd__pool *pool;
    float *buffers[BUFFERS];
    size_t bytes[BUFFERS];
};

/* One product: C (m, n) = op(A) op(B) + beta C. */
typedef struct call {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const float *a, *b;
    float beta, *c;
} call;

static void multiply(const call *p, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    if (rows <= 0 || columns <= 0) return;
    const float *a = p->a + (p->transpose_a ? row : row * p->k);
    const float *b = p->b + (p->transpose_b ? column * p->k : column);
    dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', rows, columns, p->k, 1.0f, a,
               p->transpose_a ? p->m : p->k, b, p->transpose_b ? p->k : p->n, p->beta,
               p->c + row * p->n + column, p->n);
}

static void multiply_part(void *context, int worker, int workers)
{
    const call *p = context;
    int64_t begin, end;
    omp_set_num_threads(1);
    if (p->m >= p->n) {
        trd__partition(worker, workers, p->m, ROW_GRAIN, &begin, &end);
        multiply(p, begin, end - begin, 0, p->n);
    } else {
        trd__partition(worker, workers, p->n, COLUMN_GRAIN, &begin, &end);
        multiply(p, 0, p->m, begin, end - begin);
    }
}

/* Buffers of a product list: the largest of each kind, filled with a repeated random pattern. */
static trd_status make_buffers(trd__product_bench *bench)
{
    float *pattern = trd__alloc(PATTERN, sizeof *pattern);
    if (!pattern) return TRD_NO_MEMORY;
    for (int i = 0; i < PATTERN; i++) pattern[i] = (float)trd__rng_uniform(1, 1, (uint64_t)i) - 0.5f;
    for (int i = 0; i < bench->count; i++) {
        const trd__product *p = &bench->products[i];
        size_t x = (size_t)(p->m * p->k), w = (size_t)(p->n * p->k), y = (size_t)(p->m * p->n);
        size_t elements[BUFFERS] = {
            [X] = x, [WEIGHT] = w, [DY] = y, [D_WEIGHT] = w, [RESULT] = x > y ? x : y};
        for (int k = 0; k < BUFFERS; k++)
            if (elements[k] * sizeof(float) > bench->bytes[k]) bench->bytes[k] = elements[k] * sizeof(float);
    }
    trd_status status = TRD_OK;
    for (int k = 0; k < BUFFERS && !status; k++) {
        bench->buffers[k] = trd__map(bench->bytes[k]);
        if (!bench->buffers[k]) status = TRD_NO_MEMORY;
        for (size_t at = 0; !status && at < bench->bytes[k]; at += PATTERN * sizeof(float)) {
            size_t left = bench->bytes[k] - at, whole = PATTERN * sizeof(float);
            memcpy((unsigned char *)bench->buffers[k] + at, pattern, left < whole ? left : whole);
        }
    }
    trd__free(pattern);
    return status;
}

trd_status trd__product_bench_create(const trd__product *products, int count, int workers,
                                     trd__product_bench **out)
{
    *out = NULL;
    if (count < 1) return trd__fail(TRD_INVALID_ARGUMENT, "product rate: expected at least one product");
    trd__product_bench *bench = trd__calloc(1, sizeof *bench);
    if (!bench) return TRD_NO_MEMORY;
    bench->count = count;
    bench->products = trd__alloc((size_t)count, sizeof *products);
    trd_status status = bench->products ? trd__pool_create(workers, &bench->pool) : TRD_NO_MEMORY;
    if (!status) {
        memcpy(bench->products, products, (size_t)count * sizeof *products);
        status = make_buffers(bench);
    }
    if (status) {
        trd__product_bench_free(bench);
        return status;
    }
    *out = bench;
    return TRD_OK;
}

void trd__product_bench_free(trd__product_bench *bench)
{
    if (!bench) return;
    for (int k = 0; k < BUFFERS; k++) trd__unmap(bench->buffers[k], bench->bytes[k]);
    trd__pool_free(bench->pool);
    trd__free(bench->products);
    trd__free(bench);
}

static double seconds(trd__product_bench *bench, call *p, bool partitioned)
{
    uint64_t start = trd__now_ns();
    if (partitioned) {
        trd__pool_run(bench->pool, multiply_part, p);
    } else {
        omp_set_num_threads(trd__pool_workers(bench->pool));
        multiply(p, 0, p->m, 0, p->n);
        omp_set_num_threads(1);
    }
    return (double)(trd__now_ns() - start) * 1e-9;
}

/* Gflop/s over the list, one way. */
static double rate(trd__product_bench *bench, bool partitioned)
{
    double flops = 0, time = 0;
    float *const *buffers = bench->buffers;
    for (int i = 0; i < bench->count; i++) {
        const trd__product *p = &bench->products[i];
        call forms[] = {{false, true, p->m, p->n, p->k, buffers[X], buffers[WEIGHT], 0.0f, buffers[RESULT]},
                        {false, false, p->m, p->k, p->n, buffers[DY], buffers[WEIGHT], 0.0f, buffers[RESULT]},
                        {true, false, p->n, p->k, p->m, buffers[DY], buffers[X], 1.0f, buffers[D_WEIGHT]}};
        for (int form = 0; form < 3; form++) time += p->count * seconds(bench, &forms[form], partitioned);
        flops += 6.0 * p->count * (double)p->m * (double)p->n * (double)p->k;
    }
    return flops / time * 1e-9;
}

void trd__product_bench_pass(trd__product_bench *bench)
{
    rate(bench, true);
}

trd__product_rate trd__product_bench_sample(trd__product_bench *bench)
{
    return (trd__product_rate){rate(bench, true), rate(bench, false)};
}
