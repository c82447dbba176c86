/* Product rate of a model's linear layers, and how close the CPU kernels for a linear layer, attention and
 * the head come to it; the machine's copy bandwidth, and how close the kernels come that only pass over
 * memory. Usage: bench_products [tokens [workers [passes]]], the last word for passes over memory alone;
 * shapes are those of qwen3-0.6b. Only ratios of one run mean something: the machine's own speed drifts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "backend/cpu/kernel.h"
#include "backend/cpu/product_rate.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/shape.h"
#include "nn/optimizer.h"

enum {
    HIDDEN = 1024,
    MLP = 3072,
    HEADS = 16,
    GROUPS = 8,
    SIZE = 128,
    VOCABULARY = 151936,
    LAYERS = 28,
    UPDATED = 8 * MLP
};
enum { MAX_OPERANDS = 8, RUNS = 5, PASS_RUNS = 15, PATTERN = 1021 };

typedef struct operands {
    trd__type types[MAX_OPERANDS];
    trd_node leaves[MAX_OPERANDS];
    trd_value values[MAX_OPERANDS];
    void *data[MAX_OPERANDS];
    int count;
} operands;

static void die(const char *what)
{
    fprintf(stderr, "bench_products: %s\n", what);
    exit(1);
}

/* One more operand of uniform deviates from `lowest` to 1 above it; integers are all 1. */
static void add_from(operands *o, trd_dtype dtype, trd_shape shape, double lowest)
{
    int i = o->count++;
    size_t elements = (size_t)trd__shape_count(&shape), bytes = trd_dtype_bytes(dtype);
    o->types[i] = (trd__type){.dtype = dtype, .shape = shape};
    o->leaves[i] = (trd_node){.results = &o->types[i], .result_count = 1};
    o->values[i] = (trd_value){&o->leaves[i], 0};
    unsigned char *data = trd__alloc_aligned(elements * bytes);
    if (!data) die(trd_error_message());
    for (size_t k = 0; k < elements && k < PATTERN; k++)
        trd__store(dtype, data, k, dtype == TRD_I32 ? 1 : trd__rng_uniform(1, (uint64_t)i, k) + lowest);
    for (size_t k = PATTERN; k < elements; k++) memcpy(data + k * bytes, data + (k - PATTERN) * bytes, bytes);
    o->data[i] = data;
}

static void add(operands *o, trd_dtype dtype, trd_shape shape)
{
    add_from(o, dtype, shape, -0.5);
}

static void add_null(operands *o)
{
    o->count++;
}

static void drop(operands *o)
{
    for (int i = 0; i < o->count; i++) trd__free(o->data[i]);
    *o = (operands){0};
}

typedef struct job {
    const trd__cpu_kernel *kernel;
    trd__cpu_call call;
    size_t worker_bytes;
    int workers, phase;
    _Atomic int64_t taken;
} job;

static void work(void *context, int worker, int workers)
{
    job *j = context;
    if (worker >= j->workers) return;
    trd__cpu_call call = j->call;
    call.worker = worker;
    call.workers = j->workers < workers ? j->workers : workers;
    call.worker_scratch = (unsigned char *)call.worker_scratch + (size_t)worker * j->worker_bytes;
    j->kernel->run(&call, j->phase);
}

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The first quartile of sorted times: a worker that slept wakes on the other one's core now and then. */
static double quartile(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, ascending);
    return times[count / 4];
}

/* Time of the op's best kernel, in ns: the first quartile of `runs`. */
static double kernel_ns(trd__pool *pool, const trd_op *op, const void *attr, operands *in, operands *out,
                        int runs)
{
    trd__cpu_info info = {.isa = trd__cpu_detect(), .workers = trd__pool_workers(pool)};
    trd__arena *arena = trd__arena_create();
    trd_node node = {.op = op,
                     .attr = attr,
                     .inputs = in->values,
                     .input_count = in->count,
                     .results = out->types,
                     .result_count = out->count};
    trd__cpu_plan plan = {.info = &info, .arena = arena};
    job j = {.kernel = trd__cpu_choose(&node, &info)};
    if (!arena || !j.kernel || j.kernel->plan(&node, &plan)) die("no kernel for the op");
    const void *inputs[MAX_OPERANDS];
    for (int i = 0; i < in->count; i++) inputs[i] = in->data[i];
    j.workers = plan.workers == 1 ? 1 : info.workers;
    j.worker_bytes = (plan.worker_bytes + 63) / 64 * 64;
    j.call = (trd__cpu_call){.node = &node, .inputs = inputs, .outputs = out->data, .state = plan.state};
    j.call.taken = &j.taken;
    j.call.worker_scratch = trd__alloc_aligned(j.worker_bytes * (size_t)info.workers);
    j.call.shared_scratch = trd__alloc_aligned(plan.shared_bytes);
    if (!j.call.worker_scratch || !j.call.shared_scratch) die(trd_error_message());
    double times[PASS_RUNS];
    for (int run = 0; run < runs; run++) {
        uint64_t start = trd__now_ns();
        for (j.phase = 0; j.phase < (plan.phases ? plan.phases : 1); j.phase++) {
            j.taken = 0;
            trd__pool_run(pool, work, &j);
        }
        times[run] = (double)(trd__now_ns() - start);
    }
    trd__free(j.call.worker_scratch);
    trd__free(j.call.shared_scratch);
    trd__arena_free(arena);
    return quartile(times, runs);
}

/* Runs an op, prints its rate beside the product rate, and frees its operands. */
static void report(trd__pool *pool, const char *name, const trd_op *op, const void *attr, operands *in,
                   operands *out, double flops, double product_rate)
{
    double gflops = flops / kernel_ns(pool, op, attr, in, out, RUNS);
    printf("%-24s %-9s %7.1f Gflop/s, %.2f of the product rate\n", name, trd_dtype_name(in->types[0].dtype),
           gflops, gflops / product_rate);
    drop(in);
    drop(out);
}

static void linear(trd__pool *pool, trd_dtype dtype, int64_t tokens, double peak)
{
    double flops = 2.0 * (double)tokens * HIDDEN * MLP;
    trd__matmul_attr forward = {.transpose_y = 1, .dtype = dtype};
    trd__matmul_attr weight = {.transpose_x = 1, .dtype = dtype};
    operands in = {0}, out = {0};
    add(&in, dtype, TRD__SHAPE(tokens, HIDDEN));
    add(&in, dtype, TRD__SHAPE(MLP, HIDDEN));
    add(&out, dtype, TRD__SHAPE(tokens, MLP));
    report(pool, "linear", &trd__op_matmul, &forward, &in, &out, flops, peak);
    add(&in, dtype, TRD__SHAPE(tokens, MLP));
    add(&in, dtype, TRD__SHAPE(tokens, HIDDEN));
    add(&in, dtype, TRD__SHAPE(MLP, HIDDEN));
    add(&out, dtype, TRD__SHAPE(MLP, HIDDEN));
    report(pool, "linear, weight gradient", &trd__op_matmul, &weight, &in, &out, flops, peak);
}

static void attention(trd__pool *pool, trd_dtype dtype, int64_t tokens, double peak)
{
    trd__attention_attr attr = {.scale = 1.0 / sqrt((double)SIZE)};
    double flops = 2.0 * (double)tokens * (double)tokens * HEADS * SIZE; /* the causal half of two products */
    trd_shape q = TRD__SHAPE(1, tokens, HEADS, SIZE), k = TRD__SHAPE(1, tokens, GROUPS, SIZE);
    for (int gradient = 0; gradient < 2; gradient++) {
        operands in = {0}, out = {0};
        add(&in, dtype, q);
        add(&in, dtype, k);
        add(&in, dtype, k);
        add(&in, TRD_I32, TRD__SHAPE(1, tokens));
        add(&out, dtype, q);
        if (!gradient) {
            add(&out, TRD_F32, TRD__SHAPE(1, HEADS, tokens));
            report(pool, "attention", &trd__op_attention, &attr, &in, &out, flops, peak);
            continue;
        }
        add(&in, dtype, q);
        add(&in, TRD_F32, TRD__SHAPE(1, HEADS, tokens));
        add(&in, dtype, q);
        add(&out, dtype, k);
        add(&out, dtype, k);
        report(pool, "attention, gradient", &trd__op_attention_grad, &attr, &in, &out, 2 * flops, peak);
    }
}

static void head(trd__pool *pool, trd_dtype dtype, int64_t tokens, double peak)
{
    trd__token_logprobs_attr attr = {.temperature = 1.0, .weight_grad_dtype = dtype};
    double flops = 3 * 2.0 * (double)tokens * HIDDEN * VOCABULARY;
    operands in = {0}, out = {0};
    add(&in, dtype, TRD__SHAPE(tokens, HIDDEN));
    add(&in, dtype, TRD__SHAPE(VOCABULARY, HIDDEN));
    add(&in, TRD_I32, TRD__SHAPE(tokens));
    add_null(&in);
    add(&in, TRD_F32, TRD__SHAPE(tokens));
    add_null(&in);
    add(&out, TRD_F32, TRD__SHAPE(tokens));
    add(&out, dtype, TRD__SHAPE(tokens, HIDDEN));
    add(&out, dtype, TRD__SHAPE(VOCABULARY, HIDDEN));
    report(pool, "head, merged gradient", &trd__op_token_logprobs_grad, &attr, &in, &out, flops, peak);
}

/* -- Passes over memory -- */

typedef struct copy {
    const char *from;
    char *to;
    int64_t bytes;
} copy;

static void copy_part(void *context, int worker, int workers)
{
    const copy *c = context;
    int64_t begin, end;
    trd__partition(worker, workers, c->bytes, 1 << 12, &begin, &end);
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

/* Bytes read and written, in GB/s: of copies of float32 rows of an MLP's width. */
static double copy_rate(trd__pool *pool, int64_t tokens)
{
    operands o = {0};
    add(&o, TRD_F32, TRD__SHAPE(tokens, MLP));
    add(&o, TRD_F32, TRD__SHAPE(tokens, MLP));
    copy c = {o.data[0], o.data[1], tokens * MLP * (int64_t)sizeof(float)};
    double times[PASS_RUNS];
    for (int run = 0; run < PASS_RUNS; run++) {
        uint64_t start = trd__now_ns();
        trd__pool_run(pool, copy_part, &c);
        times[run] = (double)(trd__now_ns() - start);
    }
    drop(&o);
    return 2 * (double)c.bytes / quartile(times, PASS_RUNS);
}

static double type_bytes(const trd__type *t)
{
    return (double)trd__shape_count(&t->shape) * (double)trd_dtype_bytes(t->dtype);
}

static void report_pass(trd__pool *pool, const char *name, const trd_op *op, const void *attr, operands *in,
                        operands *out, double copy_rate)
{
    double bytes = 0;
    for (int i = 0; i < in->count; i++)
        if (in->data[i]) bytes += type_bytes(&in->types[i]);
    for (int i = 0; i < out->count; i++) bytes += type_bytes(&out->types[i]);
    double rate = bytes / kernel_ns(pool, op, attr, in, out, PASS_RUNS);
    printf("%-24s %-9s %7.1f GB/s, %.2f of the copy bandwidth\n", name, trd_dtype_name(in->types[0].dtype),
           rate, rate / copy_rate);
    drop(in);
    drop(out);
}

static void norms(trd__pool *pool, const char *const *names, trd_dtype dtype, int64_t rows, int64_t channels,
                  double peak)
{
    trd__rms_norm_attr attr = {.eps = 1e-6};
    for (int gradient = 0; gradient < 2; gradient++) {
        operands in = {0}, out = {0};
        add(&in, dtype, TRD__SHAPE(rows, channels));
        add(&in, dtype, TRD__SHAPE(channels));
        add(&out, dtype, TRD__SHAPE(rows, channels));
        if (gradient) {
            add(&in, dtype, TRD__SHAPE(rows, channels));
            add_null(&in);
            add(&out, dtype, TRD__SHAPE(channels));
        }
        report_pass(pool, names[gradient], gradient ? &trd__op_rms_norm_grad : &trd__op_rms_norm, &attr, &in,
                    &out, peak);
    }
}

static void rope(trd__pool *pool, trd_dtype dtype, int64_t tokens, double peak)
{
    trd__rope_attr attr = {0};
    operands in = {0}, out = {0};
    add(&in, dtype, TRD__SHAPE(1, tokens, HEADS, SIZE));
    add(&in, TRD_F32, TRD__SHAPE(1, tokens, SIZE / 2, 2));
    add(&out, dtype, TRD__SHAPE(1, tokens, HEADS, SIZE));
    report_pass(pool, "rope", &trd__op_rope, &attr, &in, &out, peak);
}

static void swiglu(trd__pool *pool, trd_dtype dtype, int64_t tokens, double peak)
{
    for (int gradient = 0; gradient < 2; gradient++) {
        operands in = {0}, out = {0};
        for (int i = 0; i < 2 + gradient; i++) add(&in, dtype, TRD__SHAPE(tokens, MLP));
        for (int i = 0; i < 1 + gradient; i++) add(&out, dtype, TRD__SHAPE(tokens, MLP));
        report_pass(pool, gradient ? "swiglu, gradient" : "swiglu",
                    gradient ? &trd__op_swiglu_grad : &trd__op_swiglu, NULL, &in, &out, peak);
    }
}

/* -- Norm and updates: programs, whose passes over memory the fuser makes -- */

enum { GRADIENT, STATE, SCALARS };

static trd__entry entry_of(const char *name, trd_dtype dtype, trd_shape shape)
{
    return (trd__entry){.name = name, .dtype = dtype, .shape = shape};
}

/* One parameter's update as an engine traces it: divided and clipped gradient, a step that may be skipped. */
static void trace_update(trd__program *p, const trd__optimizer_type *type, trd_dtype dtype, trd_shape shape)
{
    trd_builder *b = p->builder;
    trd_optimizer_options options = {.b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .mu_dtype = TRD_F32};
    trd__parameter info = {.name = "p", .shape = shape};
    trd__optimizer_state states[TRD__OPTIMIZER_STATES];
    int count = type->states ? type->states(&options, &info, states) : 0;
    trd__entry gradient = entry_of("g", dtype, shape), state[1 + TRD__OPTIMIZER_STATES], scalars[4];
    state[0] = entry_of("p", dtype, shape);
    for (int k = 0; k < count; k++) state[1 + k] = entry_of(states[k].name, states[k].dtype, shape);
    for (int k = 0; k < 4; k++) scalars[k] = entry_of("scalar", TRD_F32, trd__shape_scalar());
    trd__program_slot(p, "gradient", TRD__READ, &gradient, 1);
    trd__program_slot(p, "state", TRD__UPDATE, state, 1 + count);
    trd__program_slot(p, "scalars", TRD__READ, scalars, 4);
    trd_value g = trd__program_input(p, GRADIENT, 0);
    trd__update_scalars shared = {.learning_rate = trd__program_input(p, SCALARS, 0),
                                  .count = trd__program_input(p, SCALARS, 1)};
    trd__parameter_update u = {.info = &info, .decay = 0.1, .parameter = trd__program_input(p, STATE, 0)};
    u.gradient = trd_mul(b, trd_cast(b, g, TRD_F32), trd__program_input(p, SCALARS, 2));
    if (dtype != TRD_F32) u.gradient = trd_cast(b, trd_cast(b, u.gradient, dtype), TRD_F32);
    u.gradient = trd_mul(b, u.gradient, trd__program_input(p, SCALARS, 3));
    trd_value keep = trd_is_finite(b, trd__program_input(p, SCALARS, 3));
    for (int k = 0; k < count; k++) u.states[k] = trd__program_input(p, STATE, 1 + k);
    if (type->prepare) type->prepare(b, &options, &shared);
    type->update(b, &options, &shared, &u);
    trd__program_output(p, STATE, 0, trd_select(b, keep, u.new_parameter, u.parameter));
    for (int k = 0; k < count; k++)
        trd__program_output(p, STATE, 1 + k, trd_select(b, keep, u.new_states[k], u.states[k]));
}

/* Nothing is negative: an update takes roots of second moments. */
static void fill(const trd__backend_table *table, trd__backend *backend, trd__set *set)
{
    for (int i = 0; i < set->entry_count; i++) {
        const trd__entry *entry = &set->entries[i];
        const float one = 1;
        operands o = {0};
        add_from(&o, entry->dtype, entry->shape, 0);
        if (table->set_write(backend, set, i, entry->shape.rank ? o.data[0] : &one)) die(trd_error_message());
        drop(&o);
    }
}

/* Runs a program, which it frees, and prints the rate of the bytes that its kernels move. */
static void report_program(const char *name, trd_dtype dtype, trd__program *p, int workers, double copy_rate)
{
    trd__backend *backend;
    trd__executable *executable;
    trd__set *sets[TRD__MAX_SLOTS];
    trd__backend_options options = {.name = "cpu", .threads = workers};
    if (trd__backend_create(&options, &backend)) die(trd_error_message());
    const trd__backend_table *table = backend->table;
    if (table->compile(backend, p, NULL, &executable)) die(trd_error_message());
    for (int s = 0; s < p->slot_count; s++) {
        const trd__slot *slot = &p->slots[s];
        if (table->set_create(backend, slot->name, slot->entries, slot->entry_count, &sets[s]))
            die(trd_error_message());
        fill(table, backend, sets[s]);
    }
    double times[PASS_RUNS];
    for (int run = 0; run < PASS_RUNS; run++) {
        uint64_t start = trd__now_ns();
        if (table->execute(backend, executable, sets, NULL) || table->drain(backend))
            die(trd_error_message());
        times[run] = (double)(trd__now_ns() - start);
    }
    trd__memory_report memory = table->memory(executable);
    double rate = (double)(memory.bytes_read + memory.bytes_written) / quartile(times, PASS_RUNS);
    printf("%-24s %-9s %7.1f GB/s, %.2f of the copy bandwidth\n", name, trd_dtype_name(dtype), rate,
           rate / copy_rate);
    table->executable_free(backend, executable);
    for (int s = 0; s < p->slot_count; s++) table->set_free(backend, sets[s]);
    trd__backend_free(backend);
    trd__program_free(p);
}

static trd__program *program_of(const char *name)
{
    trd__program *p;
    if (trd__program_create(name, &p)) die(trd_error_message());
    return p;
}

static void update(const char *name, trd_dtype dtype, int workers, double copy_rate)
{
    const trd__optimizer_type *type;
    trd__program *p = program_of("update");
    if (trd__optimizer_find(name, &type)) die(trd_error_message());
    trace_update(p, type, dtype, TRD__SHAPE(UPDATED, HIDDEN));
    report_program(name, dtype, p, workers, copy_rate);
}

/* The squares of a gradient, which are added for its norm. */
static void squares(trd_dtype dtype, int workers, double copy_rate)
{
    trd__program *p = program_of("norm");
    trd__entry gradient = entry_of("g", dtype, TRD__SHAPE(UPDATED, HIDDEN)),
               sum = entry_of("sum", TRD_F64, trd__shape_scalar());
    trd__program_slot(p, "gradient", TRD__READ, &gradient, 1);
    trd__program_slot(p, "sum", TRD__WRITE, &sum, 1);
    trd__program_output(p, 1, 0, trd_sum_squares(p->builder, trd__program_input(p, 0, 0)));
    report_program("norm of gradients", dtype, p, workers, copy_rate);
}

static void passes(trd__pool *pool, int64_t tokens)
{
    static const char *const channels[] = {"rms_norm", "rms_norm, gradient"};
    static const char *const heads[] = {"rms_norm of heads", "the same, gradient"};
    for (int i = 0; i < 2; i++) {
        trd_dtype dtype = i ? TRD_BF16 : TRD_F32;
        double peak = copy_rate(pool, tokens);
        printf("copy bandwidth %.1f GB/s\n", peak);
        norms(pool, channels, dtype, tokens, HIDDEN, peak);
        norms(pool, heads, dtype, tokens * HEADS, SIZE, peak);
        rope(pool, dtype, tokens, peak);
        swiglu(pool, dtype, tokens, peak);
        squares(dtype, trd__pool_workers(pool), peak);
        update("sgd", dtype, trd__pool_workers(pool), peak);
        update("adamw", dtype, trd__pool_workers(pool), peak);
    }
}

static void products(int64_t tokens, int workers, trd__pool *pool)
{
    trd__product list[] = {
        {tokens, HEADS * SIZE, HIDDEN, LAYERS}, {tokens, GROUPS * SIZE, HIDDEN, 2 * LAYERS},
        {tokens, HIDDEN, HEADS * SIZE, LAYERS}, {tokens, MLP, HIDDEN, 2 * LAYERS},
        {tokens, HIDDEN, MLP, LAYERS},          {tokens, VOCABULARY, HIDDEN, 1}};
    trd__product_bench *bench;
    if (trd__product_bench_create(list, sizeof list / sizeof *list, workers, &bench))
        die(trd_error_message());
    trd__product_rate rate = trd__product_bench_sample(bench);
    trd__product_bench_free(bench);
    printf("%lld tokens, %d workers: product rate %.1f Gflop/s (the library's own threads %.1f)\n",
           (long long)tokens, workers, rate.partitioned_gflops, rate.openmp_gflops);
    for (int i = 0; i < 2; i++) {
        trd_dtype dtype = i ? TRD_BF16 : TRD_F32;
        linear(pool, dtype, tokens, rate.partitioned_gflops);
        attention(pool, dtype, tokens, rate.partitioned_gflops);
        head(pool, dtype, tokens, rate.partitioned_gflops);
    }
}

int main(int argc, char **argv)
{
    int64_t tokens = argc > 1 ? atoi(argv[1]) : 512;
    int workers = argc > 2 ? atoi(argv[2]) : trd__processor_count();
    bool passes_alone = argc > 3;
    if (argc > 4 || (passes_alone && strcmp(argv[3], "passes") != 0))
        die("usage: bench_products [tokens [workers [passes]]]");
    setvbuf(stdout, NULL, _IOLBF, 0);
    trd__pool *pool;
    if (tokens < 1) die("expected a positive number of tokens");
    if (trd__pool_create(workers, &pool)) die(trd_error_message());
    if (!passes_alone) products(tokens, workers, pool);
    passes(pool, tokens);
    trd__pool_free(pool);
    return 0;
}
