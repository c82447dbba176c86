/* The driver of the op case tables; see the header. A case becomes a small program: its operands, a fixed
 * cotangent per float result, the results, and the gradients of sum(result * cotangent) by every operand that
 * asks for one. A *variant* is one way to run it; a mode compares variants. */
#include "support/op_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/kernel.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "graph/passes.h"
#include "support/mesh.h"
#include "support/nightly.h"

enum {
    PROBES = 8,
    COTANGENT_STREAM = 1000,
    ACCUMULATOR_STREAM = 2000,
    MAX_TESTS = 2048,
    NIGHT_SEEDS = 4,
    MESH_CASES = 3
};

typedef struct variant {
    const char *label;
    trd_dtype dtype;
    trd_dtype accumulator; /* TRD_DTYPE_COUNT: the operand's */
    bool reference, fuse, expand, accumulate;
    bool xla;                        /* the backend "pjrt", */
    const trd__placement *placement; /* on a mesh; NULL: on one device */
    const char *isa;                 /* NULL: the best */
    int threads;                     /* 0: one */
} variant;

typedef struct test_context {
    const op_case *test;
    op_mode mode;
    uint64_t seed;
    const char *program;
    int number; /* of the case in its table */
} test_context;

static const char *const mode_names[OP_MODES] = {"fast",   "differences", "expand", "accumulate",
                                                 "repeat", "pjrt",        "mesh"};
static const char *const isa_names[] = {"baseline", "avx2", "avx512"};

/* -- building -- */

static int operand_count(const op_case *c)
{
    int count = 0;
    while (count < OP_OPERANDS && c->operands[count].name) count++;
    return count;
}

static bool differentiable(const op_case *c)
{
    for (int i = 0; i < operand_count(c); i++)
        if (c->operands[i].gradient) return true;
    return false;
}

static small_tensor fill_tensor(const char *name, trd_dtype dtype, trd_shape shape, const op_operand *how,
                                uint64_t seed, uint64_t stream)
{
    small_tensor t = small_tensor_make(name, dtype, shape);
    size_t count = small_tensor_count(&t);
    double *values = calloc(count + 1, sizeof *values);
    op_operand operand = *how;
    operand.shape = shape;
    operand.fill(values, &operand, seed, stream);
    for (size_t i = 0; i < count; i++) trd__store(dtype, t.data, i, values[i]);
    free(values);
    return t;
}

static trd_dtype dtype_in(const op_operand *operand, trd_dtype dtype)
{
    return operand->dtype == OP_FLOAT ? dtype : operand->dtype;
}

/* Operands, then a cotangent per float result, whose types a trial build tells. */
static int make_inputs(const test_context *t, trd_dtype dtype, small_tensor *inputs)
{
    const op_case *c = t->test;
    const op_operand unit = {.fill = op_normal, .high = 1};
    int count = operand_count(c), total = count;
    for (int i = 0; i < count; i++) {
        const op_operand *o = &c->operands[i];
        inputs[i] = fill_tensor(o->name, dtype_in(o, dtype), o->shape, o, t->seed, (uint64_t)i + 1);
    }
    small_program trial;
    small_program_begin(&trial, inputs, count);
    trd_value out[OP_RESULTS];
    int results = c->build(small_program_builder(&trial), c, trial.values, out);
    expect_ok(trd_builder_status(small_program_builder(&trial)), "build");
    for (int i = 0; i < results; i++)
        if (trd__dtype_is_float(trd_value_dtype(out[i])))
            inputs[total++] = fill_tensor("cotangent", trd_value_dtype(out[i]), trd_value_shape(out[i]),
                                          &unit, t->seed, (uint64_t)(COTANGENT_STREAM + i));
    trd__program_free(trial.program);
    return total;
}

/* Sum over the float results of result * cotangent; null where no result is one. */
static trd_value weighted_loss(trd_builder *b, const trd_value *out, int results, const trd_value *cotangents,
                               trd_dtype dtype)
{
    trd_value loss = {NULL, 0};
    for (int i = 0; i < results; i++) {
        if (!trd__dtype_is_float(trd_value_dtype(out[i]))) continue;
        trd_value product = trd_mul(b, out[i], *cotangents++);
        unsigned axes = (1u << trd_value_shape(product).rank) - 1;
        trd_value sum = trd_reduce_sum(b, product, axes, false, dtype);
        loss = trd_is_null(loss) ? sum : trd_add(b, loss, sum);
    }
    return loss;
}

static bool keep_none(const trd_node *n, void *user)
{
    (void)n, (void)user;
    return false;
}

static bool reaches(const small_program *p, const trd_op *op)
{
    const trd_graph *graph = &p->program->builder->graph;
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->op == op) return true;
    return false;
}

/* Builds the case as v says. loss (may be NULL): makes the loss the last result instead of differentiating.
 */
static void build_variant(const test_context *t, const variant *v, bool with_loss, small_program *p)
{
    const op_case *c = t->test;
    small_tensor inputs[SMALL_MAX], accumulators[OP_OPERANDS];
    const op_operand unit = {.fill = op_normal, .high = 1};
    trd_value out[OP_RESULTS];
    int total = make_inputs(t, v->dtype, inputs), count = operand_count(c), of[OP_OPERANDS], gradients = 0;
    small_program_begin(p, inputs, total);
    trd_builder *b = small_program_builder(p);
    int results = c->build(b, c, p->values, out);
    for (int i = 0; i < results; i++) small_program_result(p, "result", out[i]);
    trd_dtype sum = v->dtype == TRD_F64 ? TRD_F64 : TRD_F32;
    trd_value loss = weighted_loss(b, out, results, p->values + count, sum);
    for (int i = 0; i < count; i++) {
        const op_operand *o = &c->operands[i];
        if (!o->gradient) continue;
        trd_dtype dtype = v->accumulator == TRD_DTYPE_COUNT ? dtype_in(o, v->dtype) : v->accumulator;
        accumulators[gradients] =
            v->accumulate
                ? fill_tensor(o->name, dtype, o->shape, &unit, t->seed, (uint64_t)(ACCUMULATOR_STREAM + i))
                : (small_tensor){.name = o->name, .dtype = dtype, .shape = o->shape};
        of[gradients++] = i;
    }
    if (with_loss)
        small_program_result(p, "loss", loss);
    else if (gradients)
        small_program_differentiate(p, loss, of, accumulators, gradients);
    small_program_finish(p);
    if (v->fuse) expect_ok(trd__fuse_accumulate(p->program), "fuse accumulators");
    if (!with_loss) assert_true(reaches(p, c->op));
    if (v->expand) expect_ok(trd__expand(p->program, keep_none, NULL), "expand");
}

static void run_built(const variant *v, small_program *p)
{
    trd__backend *backend =
        v->xla ? small_backend_pjrt(v->placement) : small_backend(v->isa, v->threads ? v->threads : 1);
    small_program_run(p, backend, v->reference);
    trd__backend_free(backend);
}

static void run_variant(const test_context *t, const variant *v, small_program *p)
{
    build_variant(t, v, false, p);
    run_built(v, p);
}

/* -- comparing -- */

static void fail_case(const test_context *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void fail_case(const test_context *t, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail_msg("%s %s: %s\n  reproduce: %s --case %s --mode %s --seed %llu", t->test->op->name, t->test->name,
             text, t->program, t->test->name, mode_names[t->mode], (unsigned long long)t->seed);
}

static double largest(const small_tensor *t)
{
    double most = 0;
    for (size_t i = 0; i < small_tensor_count(t); i++)
        most = fmax(most, fabs(trd__load(t->dtype, t->data, i)));
    return most;
}

/* want + add (NULL: nothing) against have, to tolerance times the largest element or exactly for 0. */
static void compare(const test_context *t, const variant *v, const char *what, const small_tensor *want,
                    const small_tensor *add, const small_tensor *have, double tolerance)
{
    if (!trd__dtype_is_float(want->dtype)) tolerance = 0;
    double scale = largest(want) + (add ? largest(add) : 0);
    for (size_t i = 0; i < small_tensor_count(want); i++) {
        double a = trd__load(want->dtype, want->data, i), c = trd__load(have->dtype, have->data, i);
        if (add) a += trd__load(add->dtype, add->data, i);
        if (a == c || fabs(a - c) <= tolerance * scale) continue;
        fail_case(t, "%s in %s: %s \"%s\" element %zu: expected %.9g, found %.9g (tolerance %g of %g)",
                  v->label, trd_dtype_name(v->dtype), what, want->name, i, a, c, tolerance, scale);
    }
}

static double tolerance_of(const op_case *c, trd_dtype dtype)
{
    if (dtype == TRD_BF16) return c->bf16_tolerance > 0 ? c->bf16_tolerance : 1e-2;
    if (dtype == TRD_F16) return 4e-3;
    if (dtype == TRD_F64) return 1e-7; /* tables of angles are float32 */
    return c->tolerance > 0 ? c->tolerance : 1e-5;
}

/* The plain kernels' outcome for v's dtypes. */
static void run_reference(const test_context *t, const variant *v, small_program *p)
{
    variant plain = {
        .label = "reference", .dtype = v->dtype, .accumulator = v->accumulator, .reference = true};
    run_variant(t, &plain, p);
}

static void compare_to_reference(const test_context *t, const variant *v)
{
    small_program want, have;
    run_reference(t, v, &want);
    run_variant(t, v, &have);
    double tolerance = tolerance_of(t->test, v->dtype);
    for (int i = 0; i < want.result_count; i++)
        compare(t, v, "result", &want.results[i], NULL, &have.results[i], tolerance);
    for (int i = 0; i < want.gradient_count; i++) {
        if (want.gradients[i].dtype == TRD_BF16) tolerance = tolerance_of(t->test, TRD_BF16);
        compare(t, v, "gradient", &want.gradients[i], NULL, &have.gradients[i], tolerance);
    }
    small_program_end(&want);
    small_program_end(&have);
}

/* The dtypes a case is run in: float32, then bfloat16 where that makes sense. */
static int case_dtypes(const op_case *c, trd_dtype *dtypes)
{
    bool floats = false;
    for (int i = 0; i < operand_count(c); i++) floats |= c->operands[i].dtype == OP_FLOAT;
    dtypes[0] = TRD_F32;
    dtypes[1] = TRD_BF16;
    return floats && !c->f32_only ? 2 : 1;
}

/* -- modes -- */

static void mode_fast(const test_context *t)
{
    trd_dtype dtypes[2];
    int count = case_dtypes(t->test, dtypes);
    for (int d = 0; d < count; d++)
        for (int isa = 0; isa <= (int)trd__cpu_detect(); isa++)
            for (int threads = 1; threads <= 2; threads++)
                compare_to_reference(t, &(variant){.label = isa_names[isa],
                                                   .dtype = dtypes[d],
                                                   .accumulator = TRD_DTYPE_COUNT,
                                                   .fuse = true,
                                                   .isa = isa_names[isa],
                                                   .threads = threads});
}

static void mode_expand(const test_context *t)
{
    trd_dtype dtypes[4];
    int count = case_dtypes(t->test, dtypes);
    dtypes[count++] = TRD_F16;
    dtypes[count++] = TRD_F64;
    if (!t->test->op->expand) return;
    for (int d = 0; d < count; d++)
        compare_to_reference(t, &(variant){.label = "expansion",
                                           .dtype = dtypes[d],
                                           .accumulator = TRD_DTYPE_COUNT,
                                           .reference = true,
                                           .expand = true});
}

/* v against gradient + what the accumulators held. */
static void compare_accumulated(const test_context *t, const variant *v)
{
    small_program want, have;
    run_reference(t, v, &want);
    build_variant(t, v, false, &have);
    small_tensor before[SMALL_MAX];
    for (int i = 0; i < have.gradient_count; i++) {
        before[i] = small_tensor_make("before", have.gradients[i].dtype, have.gradients[i].shape);
        memcpy(before[i].data, have.gradients[i].data, small_tensor_bytes(&before[i]));
    }
    run_built(v, &have);
    for (int i = 0; i < want.gradient_count; i++) {
        bool bf16 = v->dtype == TRD_BF16 || v->accumulator == TRD_BF16;
        double tolerance = tolerance_of(t->test, bf16 ? TRD_BF16 : TRD_F32);
        compare(t, v, "accumulated gradient", &want.gradients[i], &before[i], &have.gradients[i], tolerance);
        small_tensor_free(&before[i]);
    }
    small_program_end(&want);
    small_program_end(&have);
}

static void mode_accumulate(const test_context *t)
{
    trd_dtype dtypes[2];
    int count = case_dtypes(t->test, dtypes);
    for (int d = 0; d < count; d++)
        for (int a = 0; a < 2; a++)
            for (int way = 0; way < 3; way++)
                compare_accumulated(t, &(variant){.label = way == 0   ? "accumulate, plain"
                                                           : way == 1 ? "accumulate, expanded"
                                                                      : "accumulate, fast",
                                                  .dtype = dtypes[d],
                                                  .accumulator = a ? TRD_BF16 : TRD_F32,
                                                  .reference = way < 2,
                                                  .expand = way == 1,
                                                  .fuse = true,
                                                  .accumulate = true,
                                                  .threads = 2});
}

static void mode_repeat(const test_context *t)
{
    trd_dtype dtypes[2];
    int count = case_dtypes(t->test, dtypes);
    for (int d = 0; d < count; d++)
        for (int threads = 1; threads <= 2; threads++) {
            variant v = {.label = "repeat", .dtype = dtypes[d], .accumulator = TRD_DTYPE_COUNT, .fuse = true};
            v.threads = threads;
            small_program first, second;
            run_variant(t, &v, &first);
            run_variant(t, &v, &second);
            for (int i = 0; i < first.result_count; i++)
                compare(t, &v, "result", &first.results[i], NULL, &second.results[i], 0);
            for (int i = 0; i < first.gradient_count; i++)
                compare(t, &v, "gradient", &first.gradients[i], NULL, &second.gradients[i], 0);
            small_program_end(&first);
            small_program_end(&second);
        }
}

static void mode_pjrt(const test_context *t)
{
    trd_dtype dtypes[4];
    int count = case_dtypes(t->test, dtypes);
    if (nightly()) dtypes[count++] = TRD_F64; /* a compilation more for each case */
    for (int d = 0; d < count; d++) {
        variant v = {.label = "pjrt", .dtype = dtypes[d], .accumulator = TRD_DTYPE_COUNT, .xla = true};
        compare_to_reference(t, &v);
    }
    if (!differentiable(t->test)) return;
    variant v = {.label = "pjrt, accumulate",
                 .dtype = TRD_F32,
                 .accumulator = TRD_BF16,
                 .accumulate = true,
                 .xla = true};
    compare_accumulated(t, &v);
}

static void compare_on_mesh(const test_context *t, int mesh, trd_dtype dtype)
{
    compare_to_reference(t, &(variant){.label = test_mesh_at(mesh)->name,
                                       .dtype = dtype,
                                       .accumulator = TRD_DTYPE_COUNT,
                                       .xla = true,
                                       .placement = &test_mesh_at(mesh)->placement});
}

/* By day one mesh, at night all and one in bfloat16. */
static void mode_mesh(const test_context *t)
{
    trd_dtype dtypes[2];
    int some = t->number / MESH_CASES % TEST_MESHES;
    int count = nightly() ? case_dtypes(t->test, dtypes) : 1;
    for (int i = 0; i < TEST_MESHES; i++)
        if (nightly() || i == some) compare_on_mesh(t, i, TRD_F32);
    if (count > 1) compare_on_mesh(t, some, dtypes[1]);
}

static double loss_with(small_program *p, trd__backend *backend, int input, size_t element, double value)
{
    small_tensor *x = &p->inputs[input];
    double before = trd__load(TRD_F64, x->data, element);
    trd__store(TRD_F64, x->data, element, value);
    small_program_run(p, backend, true);
    trd__store(TRD_F64, x->data, element, before);
    return trd__load(TRD_F64, p->results[p->result_count - 1].data, 0);
}

/* Central differences of the loss at a few elements of one operand. */
static void check_differences(const test_context *t, small_program *loss, trd__backend *backend, int input,
                              const small_tensor *gradient)
{
    variant v = {.label = "central difference", .dtype = TRD_F64};
    size_t count = small_tensor_count(gradient);
    double limit = t->test->differences_tolerance > 0 ? t->test->differences_tolerance : 1e-6;
    double scale = fmax(largest(gradient), 1e-3);
    for (int probe = 0; probe < PROBES && (size_t)probe < count; probe++) {
        size_t element = count <= PROBES ? (size_t)probe
                                         : trd__rng_below(t->seed, (uint64_t)input, (uint64_t)probe, count);
        double x = trd__load(TRD_F64, loss->inputs[input].data, element), h = 1e-5 * fmax(1, fabs(x));
        double up = loss_with(loss, backend, input, element, x + h);
        double down = loss_with(loss, backend, input, element, x - h);
        double want = (up - down) / (2 * h), have = trd__load(TRD_F64, gradient->data, element);
        if (!(fabs(want - have) <= limit * scale))
            fail_case(t, "%s by \"%s\" element %zu: expected %.9g, found %.9g", v.label, gradient->name,
                      element, want, have);
    }
}

static void mode_differences(const test_context *t)
{
    variant v = {.label = "float64", .dtype = TRD_F64, .accumulator = TRD_DTYPE_COUNT, .reference = true};
    small_program gradients, loss;
    run_variant(t, &v, &gradients);
    if (gradients.gradient_count) {
        build_variant(t, &v, true, &loss);
        trd__backend *backend = small_backend(NULL, 1);
        for (int i = 0, g = 0; i < operand_count(t->test); i++)
            if (t->test->operands[i].gradient)
                check_differences(t, &loss, backend, i, &gradients.gradients[g++]);
        trd__backend_free(backend);
        small_program_end(&loss);
    }
    small_program_end(&gradients);
}

static void (*const modes[OP_MODES])(const test_context *) = {
    mode_fast, mode_differences, mode_expand, mode_accumulate, mode_repeat, mode_pjrt, mode_mesh};

/* -- the program -- */

static void run_context(void **state)
{
    test_context t = *(const test_context *)*state;
    uint64_t seeds = t.mode == OP_MESH ? 1 : nightly_times(1, NIGHT_SEEDS);
    for (uint64_t end = t.seed + seeds; t.seed < end; t.seed++) modes[t.mode](&t);
}

/* Names of the ops the cases reach, gradients included. */
static int print_coverage(const test_context *contexts, int count)
{
    for (int i = 0; i < count; i++) {
        if (contexts[i].mode != OP_FAST) continue;
        small_program p;
        variant v = {.dtype = TRD_F32, .accumulator = TRD_DTYPE_COUNT};
        build_variant(&contexts[i], &v, false, &p);
        for (int o = 0; o < trd__op_count(); o++)
            if (reaches(&p, trd__op_at(o))) printf("%s\n", trd__op_at(o)->name);
        small_program_end(&p);
    }
    return 0;
}

typedef struct options {
    const char *test, *mode;
    uint64_t seed;
    bool list, coverage;
} options;

static bool parse(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--list") == 0)
            o->list = true;
        else if (strcmp(argv[i], "--coverage") == 0)
            o->coverage = true;
        else if (!value)
            return false;
        else if (strcmp(argv[i], "--case") == 0)
            o->test = argv[++i];
        else if (strcmp(argv[i], "--mode") == 0)
            o->mode = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0)
            o->seed = strtoull(argv[++i], NULL, 10);
        else
            return false;
    }
    return true;
}

/* Whether mode has something to do for the case. */
static bool applies(const op_case *c, int number, op_mode mode)
{
    if (c->skip >> mode & 1u) return false;
    if (mode == OP_MESH && !nightly() && number % MESH_CASES) return false;
    if (mode == OP_DIFFERENCES || mode == OP_ACCUMULATE) return differentiable(c);
    return mode != OP_EXPAND || c->op->expand;
}

int op_cases_main(int argc, char **argv, const char *group, const op_case *cases, size_t count)
{
    static test_context contexts[MAX_TESTS];
    static struct CMUnitTest tests[MAX_TESTS];
    static char names[MAX_TESTS][96];
    options o = {.seed = 7};
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: %s [--list] [--coverage] [--case NAME] [--mode MODE] [--seed N]\n", argv[0]);
        return 2;
    }
    int total = 0;
    for (size_t i = 0; i < count; i++)
        for (int mode = 0; mode < OP_MODES && total < MAX_TESTS; mode++) {
            if (!applies(&cases[i], (int)i, (op_mode)mode) ||
                (o.test && strcmp(o.test, cases[i].name) != 0) ||
                (o.mode ? strcmp(o.mode, mode_names[mode]) != 0 : mode >= OP_PJRT))
                continue;
            contexts[total] = (test_context){&cases[i], (op_mode)mode, o.seed, argv[0], (int)i};
            snprintf(names[total], sizeof names[total], "%s %s %s", cases[i].op->name, cases[i].name,
                     mode_names[mode]);
            if (o.list) printf("%s\n", names[total]);
            tests[total] = (struct CMUnitTest){
                .name = names[total], .test_func = run_context, .initial_state = &contexts[total]};
            total++;
        }
    if (o.list) return 0;
    if (o.coverage) return print_coverage(contexts, total);
    return _cmocka_run_group_tests(group, tests, (size_t)total, NULL, NULL);
}
