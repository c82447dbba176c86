/* The library makes a primitive for dimensions that are known only when it runs, one for each combination of
 * transpositions and accumulation. Such a primitive keeps no scratch of its own, so threads may share it.
 *
 * Invariants: the calling thread's number of OpenMP threads is what it was, and 1 within. The choice between
 * this and widening asks for a gain halfway between what processors have, about 1 and 2 and more, so that a
 * machine makes the same choice, and the same bits, in every process. */
#include "backend/cpu/bf16_product.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "backend/cpu/gemm.h"
#include "base/alloc.h"
#include "base/clock.h"

enum { FORMS = 8 }; /* bits: transpose_a, transpose_b, accumulate */
/* The probe: products of SIDE in each dimension, the least time of ROUNDS in turn. */
enum { SIDE = 128, ROUNDS = 3 };
/* AMX is several times as fast as float32, a full-rate dot product twice, a slow one half as fast. */
static const double least_gain = 1.5;

struct trd__bf16_product {
    dnnl_engine_t engine;
    dnnl_primitive_t forms[FORMS];
};

static dnnl_status_t describe(dnnl_memory_desc_t *memory, dnnl_data_type_t dtype, bool transpose,
                              int64_t rows, int64_t columns, int64_t ld)
{
    const dnnl_dims_t dims = {rows, columns}, strides = {transpose ? 1 : ld, transpose ? ld : 1};
    return dnnl_memory_desc_init_by_strides(memory, 2, dims, dtype, strides);
}

static dnnl_status_t set_accumulation(dnnl_primitive_attr_t attributes)
{
    dnnl_post_ops_t operations;
    dnnl_status_t status = dnnl_post_ops_create(&operations);
    if (status) return status;
    status = dnnl_post_ops_append_sum(operations, 1.0f);
    if (!status) status = dnnl_primitive_attr_set_post_ops(attributes, operations);
    dnnl_post_ops_destroy(operations);
    return status;
}

static dnnl_status_t make_form(trd__bf16_product *p, int form)
{
    const int64_t any = DNNL_RUNTIME_DIM_VAL;
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attributes;
    dnnl_primitive_desc_t descriptor;
    dnnl_status_t status = describe(&a, dnnl_bf16, form & 1, any, any, any);
    if (!status) status = describe(&b, dnnl_bf16, form & 2, any, any, any);
    if (!status) status = describe(&c, dnnl_f32, false, any, any, any);
    if (!status) status = dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c);
    if (!status) status = dnnl_primitive_attr_create(&attributes);
    if (status) return status;
    status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (!status && form & 4) status = set_accumulation(attributes);
    if (!status) status = dnnl_primitive_desc_create(&descriptor, &matmul, attributes, p->engine, NULL);
    dnnl_primitive_attr_destroy(attributes);
    if (status) return status;
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(descriptor, dnnl_query_scratchpad_md, 0);
    if (dnnl_memory_desc_get_size(scratch) > 0)
        status = dnnl_unimplemented; /* nobody would give it any */
    else
        status = dnnl_primitive_create(&p->forms[form], descriptor);
    dnnl_primitive_desc_destroy(descriptor);
    return status;
}

void trd__bf16_product_free(trd__bf16_product *p)
{
    if (!p) return;
    for (int form = 0; form < FORMS; form++)
        if (p->forms[form]) dnnl_primitive_destroy(p->forms[form]);
    if (p->engine) dnnl_engine_destroy(p->engine);
    trd__free(p);
}

static void discard(trd__bf16_product **product)
{
    trd__bf16_product_free(*product);
    *product = NULL;
}

static trd_status status_of(dnnl_status_t status)
{
    if (!status) return TRD_OK;
    if (status == dnnl_out_of_memory)
        return trd__fail(TRD_NO_MEMORY, "products of bfloat16: the product library has no memory left");
    return trd__fail(TRD_UNSUPPORTED,
                     "products of bfloat16: the product library has none of its own for this processor "
                     "(its status %d); set TRD_CPU_BF16=widen",
                     (int)status);
}

/* Makes the forms [first, last). */
static trd_status make_forms(trd__bf16_product *p, int first, int last)
{
    dnnl_status_t status = dnnl_success;
    for (int form = first; form < last && !status; form++) status = make_form(p, form);
    return status_of(status);
}

/* With the first form alone, which is what the probe runs. */
static trd_status create(trd__bf16_product **product)
{
    trd__bf16_product *p = *product = trd__calloc(1, sizeof *p);
    if (!p) return TRD_NO_MEMORY;
    trd_status status = status_of(dnnl_engine_create(&p->engine, dnnl_cpu, 0));
    if (!status) status = make_forms(p, 0, 1);
    if (status) discard(product);
    return status;
}

bool trd__bf16_product_run(const trd__bf16_product *p, bool transpose_a, bool transpose_b, int64_t m,
                           int64_t n, int64_t k, const trd__bf16 *a, int64_t lda, const trd__bf16 *b,
                           int64_t ldb, bool accumulate, float *c, int64_t ldc)
{
    enum { A, B, C, OPERANDS };
    dnnl_memory_desc_t shapes[OPERANDS];
    dnnl_exec_arg_t arguments[OPERANDS] = {
        {.arg = DNNL_ARG_SRC}, {.arg = DNNL_ARG_WEIGHTS}, {.arg = DNNL_ARG_DST}};
    void *const data[OPERANDS] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c};
    dnnl_stream_t stream = NULL;
    omp_set_num_threads(1); /* of the calling thread, as for every call of the library */
    dnnl_status_t status = dnnl_stream_create(&stream, p->engine, dnnl_stream_default_flags);
    if (!status) status = describe(&shapes[A], dnnl_bf16, transpose_a, m, k, lda);
    if (!status) status = describe(&shapes[B], dnnl_bf16, transpose_b, k, n, ldb);
    if (!status) status = describe(&shapes[C], dnnl_f32, false, m, n, ldc);
    for (int i = 0; i < OPERANDS && !status; i++)
        status = dnnl_memory_create(&arguments[i].memory, &shapes[i], p->engine, data[i]);
    int form = transpose_a | transpose_b << 1 | accumulate << 2;
    if (!status) status = dnnl_primitive_execute(p->forms[form], stream, OPERANDS, arguments);
    if (!status) status = dnnl_stream_wait(stream);
    for (int i = OPERANDS - 1; i >= 0; i--)
        if (arguments[i].memory) dnnl_memory_destroy(arguments[i].memory);
    if (stream) dnnl_stream_destroy(stream);
    return !status;
}

/* -- the choice -- */

typedef struct probe {
    trd__gemm gemm;
    const trd__row_math *math;
    trd__bf16 *a, *b;
    float *c;
    void *scratch;
} probe;

static uint64_t least(uint64_t x, uint64_t y)
{
    return x < y ? x : y;
}

/* Nanoseconds of one product; native: NULL for widening. */
static uint64_t time_product(probe *p, const trd__bf16_product *native)
{
    uint64_t begin = trd__now_ns();
    p->gemm.native = native;
    trd__gemm_run(&p->gemm, p->math, (trd__gemm_tile){0, SIDE, 0, SIDE}, p->a, p->b, NULL, p->c, p->scratch);
    return trd__now_ns() - begin;
}

/* *gain: how many times as fast as widening the library's product is. *ns: what it took to find out, without
 * the library's own start, which the first product of float32 would pay otherwise. */
static trd_status measure(const trd__bf16_product *native, trd__isa isa, double *gain, uint64_t *ns)
{
    probe p = {.gemm = {.a_dtype = TRD_BF16,
                        .b_dtype = TRD_BF16,
                        .c_dtype = TRD_F32,
                        .m = SIDE,
                        .n = SIDE,
                        .k = SIDE,
                        .lda = SIDE,
                        .ldb = SIDE,
                        .ldc = SIDE,
                        .alpha = 1.0f},
               .math = trd__row_math_for(isa)};
    size_t elements = (size_t)SIDE * SIDE;
    trd_status status = TRD_NO_MEMORY;
    p.a = trd__calloc(2 * elements, sizeof *p.a);
    p.c = trd__calloc(elements, sizeof *p.c);
    p.scratch = trd__alloc_aligned(trd__gemm_scratch_bytes(&p.gemm));
    if (p.a && p.c && p.scratch) {
        uint64_t widened = UINT64_MAX, own = UINT64_MAX;
        p.b = p.a + elements;
        time_product(&p, NULL);
        uint64_t begin = trd__now_ns();
        for (int round = 0; round < ROUNDS; round++) {
            own = least(own, time_product(&p, native));
            widened = least(widened, time_product(&p, NULL));
        }
        *ns = trd__now_ns() - begin;
        *gain = (double)widened / (double)own;
        status = TRD_OK;
    }
    trd__free(p.scratch);
    trd__free(p.c);
    trd__free(p.a);
    return status;
}

/* Drops the product where it does not pay, or where the library has not all of it. */
static trd_status keep_if_faster(trd__isa isa, const trd_log_sink *log, trd__bf16_product **product)
{
    double gain;
    uint64_t ns;
    trd_status status = measure(*product, isa, &gain, &ns);
    if (status) return status;
    if (gain >= least_gain)
        status = make_forms(*product, 1, FORMS);
    else
        discard(product);
    if (status == TRD_UNSUPPORTED) discard(product);
    if (status == TRD_NO_MEMORY) return status;
    trd__log(log, TRD_LOG_INFO,
             "backend cpu: products of bfloat16 by %s: the library's own are %.2f times as fast "
             "(measured in %.1f ms)",
             *product ? "the library" : "widening", gain, (double)ns / 1e6);
    return TRD_OK;
}

static trd_status choose(trd__bf16_way way, trd__isa isa, const trd_log_sink *log,
                         trd__bf16_product **product)
{
    bool native = way == TRD__BF16_NATIVE;
    if (way == TRD__BF16_WIDEN) return TRD_OK;
    if (!native && (isa < TRD__ISA_AVX512 || !trd__cpu_has_bf16())) return TRD_OK;
    trd_status status = create(product);
    if (!native && status == TRD_UNSUPPORTED) return TRD_OK; /* then widening is the only way */
    if (!status) status = native ? make_forms(*product, 1, FORMS) : keep_if_faster(isa, log, product);
    if (status) discard(product);
    return status;
}

trd_status trd__bf16_product_choose(trd__bf16_way way, trd__isa isa, const trd_log_sink *log,
                                    trd__bf16_product **product)
{
    int threads = omp_get_max_threads();
    *product = NULL;
    omp_set_num_threads(1); /* a primitive keeps the number of the thread that made it */
    trd_status status = choose(way, isa, log, product);
    omp_set_num_threads(threads);
    return status;
}
