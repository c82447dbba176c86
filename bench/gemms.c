/* Products of a model's linear layers by other ways than the one in use (dnnl_sgemm, a part a worker): the
 * library's matmul primitive, on plain weights and on weights laid out in blocks beforehand, and the sgemm of
 * other libraries. Usage: bench_gemms [TOKENS [LIBRARY.so:SYMBOL ...]]; a symbol has BLAS's Fortran
 * interface. Shapes are qwen3-0.6b's. Each way takes every product in turn, round after round, and a way's
 * least time counts: other load on the machine only adds. What blocks cost to make is printed apart: weights
 * change with every update. */
#include <dlfcn.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"

enum { ROUNDS = 7, MAX_WAYS = 8, PRODUCTS = 15, SPLIT_GRAIN = 48, MAX_WORKERS = 64, MAX_RANK = 2 };

/* C (m, n) = op(A) op(B), float32, row-major. */
typedef struct product {
    const char *layer, *form;
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    int count;
} product;

typedef void sgemm_function(const char *ta, const char *tb, const int *m, const int *n, const int *k,
                            const float *alpha, const float *a, const int *lda, const float *b,
                            const int *ldb, const float *beta, float *c, const int *ldc);

typedef enum kind { SGEMM, MATMUL, BLOCKED, OTHER } kind;

typedef struct way {
    kind kind;
    const char *name;
    sgemm_function *function;
} way;

/* One worker's part as a primitive, and the weights in the layout that it wants. */
typedef struct primitive {
    dnnl_primitive_t run;
    dnnl_memory_t a, b, c;
} primitive;

typedef struct state {
    dnnl_engine_t engine;
    dnnl_stream_t streams[MAX_WORKERS];
    const product *p;
    const way *way;
    float *a, *b, *c;
    primitive parts[MAX_WORKERS];
    int workers;
} state;

static void need(bool fine, const char *what)
{
    if (fine) return;
    fprintf(stderr, "bench_gemms: %s\n", what);
    exit(1);
}

static void call(dnnl_status_t status)
{
    need(status == dnnl_success, "the product library refused a call");
}

typedef struct part {
    int64_t row, rows, column, columns;
} part;

/* Rows are split when there are more of them, else columns, as in gemm.h. */
static part part_of(const product *p, int worker, int workers)
{
    part x = {0, p->m, 0, p->n};
    int64_t begin, end;
    trd__partition(worker, workers, p->m >= p->n ? p->m : p->n, SPLIT_GRAIN, &begin, &end);
    if (p->m >= p->n)
        x.row = begin, x.rows = end - begin;
    else
        x.column = begin, x.columns = end - begin;
    return x;
}

static const float *part_a(const state *s, part x)
{
    return s->a + (s->p->transpose_a ? x.row : x.row * s->p->k);
}

static const float *part_b(const state *s, part x)
{
    return s->b + (s->p->transpose_b ? x.column * s->p->k : x.column);
}

static dnnl_memory_t memory_of(const state *s, int64_t rows, int64_t columns, int64_t pitch, bool transposed,
                               const float *data)
{
    dnnl_memory_desc_t d;
    dnnl_memory_t memory;
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : pitch, transposed ? pitch : 1};
    call(dnnl_memory_desc_init_by_strides(&d, MAX_RANK, dims, dnnl_f32, strides));
    call(dnnl_memory_create(&memory, &d, s->engine, (void *)(uintptr_t)data));
    return memory;
}

static const dnnl_memory_desc_t *description(dnnl_memory_t memory)
{
    const dnnl_memory_desc_t *d;
    call(dnnl_memory_get_memory_desc(memory, &d));
    return d;
}

/* Makes a worker's primitive; returns the seconds that laying out the weights took. */
static double make_primitive(state *s, int worker)
{
    const product *p = s->p;
    primitive *x = &s->parts[worker];
    part y = part_of(p, worker, s->workers);
    x->a = memory_of(s, y.rows, p->k, p->transpose_a ? p->m : p->k, p->transpose_a, part_a(s, y));
    x->b = memory_of(s, p->k, y.columns, p->transpose_b ? p->k : p->n, p->transpose_b, part_b(s, y));
    x->c = memory_of(s, y.rows, y.columns, p->n, false, s->c + y.row * p->n + y.column);
    dnnl_memory_desc_t weights = *description(x->b);
    dnnl_dims_t dims = {p->k, y.columns};
    if (s->way->kind == BLOCKED)
        call(dnnl_memory_desc_init_by_tag(&weights, MAX_RANK, dims, dnnl_f32, dnnl_format_tag_any));
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t d;
    call(dnnl_matmul_desc_init(&matmul, description(x->a), &weights, NULL, description(x->c)));
    call(dnnl_primitive_desc_create(&d, &matmul, NULL, s->engine, NULL));
    call(dnnl_primitive_create(&x->run, d));
    double seconds = 0;
    if (s->way->kind == BLOCKED) {
        dnnl_memory_t blocks;
        dnnl_primitive_desc_t reorder;
        dnnl_primitive_t copy;
        call(dnnl_memory_create(&blocks, dnnl_primitive_desc_query_md(d, dnnl_query_weights_md, 0), s->engine,
                                DNNL_MEMORY_ALLOCATE));
        call(dnnl_reorder_primitive_desc_create(&reorder, description(x->b), s->engine, description(blocks),
                                                s->engine, NULL));
        call(dnnl_primitive_create(&copy, reorder));
        dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, x->b}, {DNNL_ARG_TO, blocks}};
        for (int i = 0; i < 2; i++) { /* the first touches the memory */
            uint64_t start = trd__now_ns();
            call(dnnl_primitive_execute(copy, s->streams[0], 2, arguments));
            seconds = (double)(trd__now_ns() - start) * 1e-9;
        }
        dnnl_primitive_destroy(copy);
        dnnl_primitive_desc_destroy(reorder);
        dnnl_memory_destroy(x->b);
        x->b = blocks;
    }
    dnnl_primitive_desc_destroy(d);
    return seconds;
}

static void drop_primitives(state *s)
{
    for (int i = 0; i < s->workers; i++) {
        primitive *x = &s->parts[i];
        if (!x->run) continue;
        dnnl_primitive_destroy(x->run);
        dnnl_memory_destroy(x->a);
        dnnl_memory_destroy(x->b);
        dnnl_memory_destroy(x->c);
        *x = (primitive){0};
    }
}

static void work(void *context, int worker, int workers)
{
    state *s = context;
    const product *p = s->p;
    part x = part_of(p, worker, workers);
    omp_set_num_threads(1);
    if (x.rows <= 0 || x.columns <= 0) return;
    char ta = p->transpose_a ? 'T' : 'N', tb = p->transpose_b ? 'T' : 'N';
    int64_t lda = p->transpose_a ? p->m : p->k, ldb = p->transpose_b ? p->k : p->n;
    const float *a = part_a(s, x), *b = part_b(s, x), one = 1, zero = 0;
    float *c = s->c + x.row * p->n + x.column;
    primitive *y = &s->parts[worker];
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, y->a}, {DNNL_ARG_WEIGHTS, y->b}, {DNNL_ARG_DST, y->c}};
    switch (s->way->kind) {
    case SGEMM:
        dnnl_sgemm(ta, tb, x.rows, x.columns, p->k, one, a, lda, b, ldb, zero, c, p->n);
        break;
    case MATMUL:
    case BLOCKED:
        dnnl_primitive_execute(y->run, s->streams[worker], 3, arguments);
        break;
    case OTHER: { /* column-major: the transposed product */
        int m = (int)x.rows, n = (int)x.columns, k = (int)p->k, la = (int)lda, lb = (int)ldb, lc = (int)p->n;
        s->way->function(&tb, &ta, &n, &m, &k, &one, b, &lb, a, &la, &zero, c, &lc);
        break;
    }
    }
}

/* Least seconds of a product by each way, and of making blocks. Every way's result is held against the
 * first's. */
static void measure(state *s, trd__pool *pool, const way *ways, int count, double *least, double *blocks)
{
    float *first = NULL;
    size_t elements = (size_t)(s->p->m * s->p->n);
    need((first = trd__alloc(elements, sizeof *first)) != NULL, trd_error_message());
    for (int i = 0; i < count; i++) least[i] = 1e30;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count; i++) {
            s->way = &ways[i];
            double made = 0;
            if (s->way->kind == MATMUL || s->way->kind == BLOCKED)
                for (int w = 0; w < s->workers; w++) made += make_primitive(s, w) / s->workers;
            if (s->way->kind == BLOCKED && (!round || made < *blocks)) *blocks = made;
            uint64_t start = trd__now_ns();
            trd__pool_run(pool, work, s);
            double seconds = (double)(trd__now_ns() - start) * 1e-9;
            if (seconds < least[i]) least[i] = seconds;
            drop_primitives(s);
            if (round) continue;
            if (!i) memcpy(first, s->c, elements * sizeof *first);
            for (size_t k = 0; k < elements; k += 997) {
                float off = s->c[k] - first[k];
                need(off < 1e-2f && off > -1e-2f, "a way computes another product");
            }
        }
    trd__free(first);
}

static float *buffer(size_t elements)
{
    float *data = trd__alloc_aligned(elements * sizeof *data);
    need(data != NULL, trd_error_message());
    for (size_t i = 0; i < elements; i++) data[i] = (float)(i * 2654435761u % 1021) / 1021 - 0.5f;
    return data;
}

/* The products of a training step of qwen3-0.6b. */
static void list_products(int64_t tokens, product *out)
{
    static const struct {
        const char *name;
        int64_t n, k;
        int count;
    } layers[PRODUCTS / 3] = {{"q", 2048, 1024, 28},
                              {"k and v", 1024, 1024, 56},
                              {"o", 1024, 2048, 28},
                              {"gate and up", 3072, 1024, 56},
                              {"down", 1024, 3072, 28}};
    for (int i = 0; i < PRODUCTS / 3; i++) {
        const char *name = layers[i].name;
        int64_t n = layers[i].n, k = layers[i].k;
        *out++ = (product){name, "forward", false, true, tokens, n, k, layers[i].count};
        *out++ = (product){name, "input gradient", false, false, tokens, k, n, layers[i].count};
        *out++ = (product){name, "weight gradient", true, false, n, k, tokens, layers[i].count};
    }
}

static int list_ways(int argc, char **argv, way *ways)
{
    int count = 0;
    ways[count++] = (way){SGEMM, "dnnl_sgemm", NULL};
    ways[count++] = (way){MATMUL, "dnnl_matmul", NULL};
    ways[count++] = (way){BLOCKED, "blocked weights", NULL};
    for (int i = 2; i < argc && count < MAX_WAYS; i++) {
        char *colon = strrchr(argv[i], ':');
        need(colon != NULL, "expected LIBRARY.so:SYMBOL");
        *colon = 0;
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL),
             *symbol = library ? dlsym(library, colon + 1) : NULL;
        need(symbol != NULL, dlerror());
        const char *slash = strrchr(argv[i], '/');
        ways[count] = (way){OTHER, slash ? slash + 1 : argv[i], NULL};
        memcpy(&ways[count++].function, &symbol, sizeof symbol);
    }
    return count;
}

int main(int argc, char **argv)
{
    int64_t tokens = argc > 1 ? atoi(argv[1]) : 512;
    product products[PRODUCTS];
    way ways[MAX_WAYS];
    need(tokens > 0, "expected a positive number of tokens");
    list_products(tokens, products);
    int count = list_ways(argc, argv, ways), workers = trd__processor_count();
    state s = {.workers = workers < MAX_WORKERS ? workers : MAX_WORKERS};
    trd__pool *pool;
    need(!trd__pool_create(s.workers, &pool), trd_error_message());
    omp_set_num_threads(1);
    call(dnnl_engine_create(&s.engine, dnnl_cpu, 0));
    for (int i = 0; i < s.workers; i++)
        call(dnnl_stream_create(&s.streams[i], s.engine, dnnl_stream_default_flags));
    size_t largest = (size_t)(tokens > 3072 ? tokens : 3072) * 3072;
    s.a = buffer(largest), s.b = buffer(largest), s.c = buffer(largest);
    double totals[MAX_WAYS] = {0}, made = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%lld tokens, %d workers; GFLOP/s\n\n| layer | product |", (long long)tokens, s.workers);
    for (int i = 0; i < count; i++) printf(" %s |", ways[i].name);
    printf("\n|---|---|");
    for (int i = 0; i < count; i++) printf("---|");
    for (int at = 0; at < PRODUCTS; at++) {
        const product *p = s.p = &products[at];
        double least[MAX_WAYS], blocks = 0, flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
        measure(&s, pool, ways, count, least, &blocks);
        printf("\n| %s | %s |", p->layer, p->form);
        for (int i = 0; i < count; i++) printf(" %.0f |", flops / least[i] * 1e-9);
        for (int i = 0; i < count; i++) totals[i] += p->count * least[i];
        made += p->count * blocks;
    }
    printf("\n| all of a step | seconds |");
    for (int i = 0; i < count; i++) printf(" %.3f |", totals[i]);
    printf("\n\nMaking the blocks of a step: %.3f s\n", made);
    trd__pool_free(pool);
    for (int i = 0; i < s.workers; i++) dnnl_stream_destroy(s.streams[i]);
    dnnl_engine_destroy(s.engine);
    trd__free(s.a), trd__free(s.b), trd__free(s.c);
    return 0;
}
