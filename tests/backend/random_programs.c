/* Random programs: fused, planned and run in place on one to three threads against plain kernels, every value
 * in a buffer of its own kind, loops unrolled. Programs of exact ops must agree to the bit; those with
 * products and transcendental functions to rounding. Each runs twice, so state written in place feeds the
 * next run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/kernel.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "base/shape.h"
#include "graph/passes.h"
#include "ops/attrs.h"
#include "support/nightly.h"
#include "support/program.h"

enum {
    ROWS = 6,
    FEW_COLUMNS = 40,
    MANY_COLUMNS = 12000,
    STATE = 6,
    RESULTS = 5,
    NODES = 45,
    BODY_NODES = 8,
    PROGRAMS = 150,
    SLOT_STATE = 0,
    SLOT_RESULTS = 2
};

typedef struct maker {
    trd__program *program;
    trd_builder *b;
    uint64_t seed, draws;
    bool exact;
    int64_t columns;               /* few: one thread runs everything; many: all threads share the work */
    trd_value matrices[5 * NODES]; /* (ROWS, columns) f32 */
    int matrix_count;
    trd_value scalars[3 * NODES]; /* () f32 */
    int scalar_count;
    trd_value vector; /* (columns) */
    trd_value ids;    /* (ROWS) i32 below 4 */
} maker;

static int below(maker *m, int bound)
{
    return (int)trd__rng_below(m->seed, 9, m->draws++, (uint64_t)bound);
}

static trd_value pick(maker *m)
{
    /* Mostly a recent value, so that chains form. */
    int newest = m->matrix_count < 6 ? m->matrix_count : 6;
    return m->matrices[below(m, 3) ? m->matrix_count - 1 - below(m, newest) : below(m, m->matrix_count)];
}

static trd_value pick_scalar(maker *m)
{
    return m->scalars[below(m, m->scalar_count)];
}

static trd_value bounded(maker *m, trd_value x)
{
    trd_value limit = trd_scalar(m->b, TRD_F32, 2);
    return trd_max(m->b, trd_min(m->b, x, limit), trd_neg(m->b, limit));
}

static trd_value elementwise(maker *m)
{
    trd_builder *b = m->b;
    trd_value x = pick(m), y = pick(m);
    /* First those that turn a last bit into another value, for exact programs only. */
    switch (m->exact ? below(m, 14) : 4 + below(m, 13)) {
    case 0:
        return trd_select(b, trd_less(b, x, y), x, trd_neg(b, y));
    case 1:
        return trd_sqrt(b, trd_abs(b, x));
    case 2:
        return trd_cast(b, trd_and(b, trd_is_finite(b, x), trd_not_equal(b, x, y)), TRD_F32);
    case 3:
        return trd_cast(b, trd_cast(b, x, TRD_BF16), TRD_F32);
    case 4:
        return trd_add(b, x, y);
    case 5:
        return trd_sub(b, x, y);
    case 6:
        return trd_mul(b, bounded(m, x), y);
    case 7:
        return trd_mul(b, x, pick_scalar(m));
    case 8:
        return trd_add(b, x, m->vector);
    case 9:
        return trd_square(b, bounded(m, x));
    case 10:
        return trd_div(b, x, trd_add(b, trd_abs(b, y), trd_scalar(b, TRD_F32, 1)));
    case 11:
        return trd_accumulate(b, x, m->exact ? trd_cast(b, y, TRD_BF16) : y);
    case 12:
        return trd_sub(b, x, trd_broadcast(b, trd_slice(b, y, 1, 3, 4), trd_value_shape(x)));
    case 13:
        return trd_select(b, trd_less(b, m->vector, trd_scalar(b, TRD_F32, 0)), x, y);
    case 14:
        return trd_sigmoid(b, x);
    case 15:
        return trd_exp(b, trd_neg(b, trd_abs(b, x)));
    default:
        return trd_tanh(b, x);
    }
}

static trd_value structural(maker *m)
{
    trd_builder *b = m->b;
    trd_value x = pick(m), y = pick(m);
    static const int swap[] = {1, 0};
    switch (below(m, m->exact ? 7 : 8)) {
    case 0:
        return trd_concat(b, (trd_value[]){trd_slice(b, x, 0, 2, ROWS), trd_slice(b, y, 0, 0, 2)}, 2, 0);
    case 1:
        return trd_pad(b, trd_slice(b, x, 1, 5, (int)m->columns), 1, 2, 3, 0.5);
    case 2:
        return trd_reshape(b, trd_transpose(b, x, swap), TRD__SHAPE(ROWS, m->columns));
    case 3:
        return trd_gather_rows(b, x, m->ids);
    case 4:
        return trd_accumulate(b, x, trd_scatter_add_rows(b, m->ids, y, ROWS));
    case 5:
        return trd_mul(b, trd_broadcast(b, trd_reduce_sum(b, x, 2, true, TRD_F32), trd_value_shape(x)),
                       trd_scalar(b, TRD_F32, 0.01));
    case 6:
        return trd_reshape(b, trd_neg(b, trd_reshape(b, x, TRD__SHAPE(ROWS * m->columns))),
                           TRD__SHAPE(ROWS, m->columns));
    default:
        return trd_accumulate(
            b, x,
            trd_mul(b, trd_scalar(b, TRD_F32, 1.0 / (double)m->columns),
                    trd_matmul(b, trd_matmul(b, x, y, false, true, TRD_F32), y, false, false, TRD_F32)));
    }
}

static trd_value scalar(maker *m)
{
    trd_builder *b = m->b;
    trd_value x = pick(m), tame = trd_scalar(b, TRD_F32, 0.01);
    switch (below(m, 4)) {
    case 0:
        return trd_mul(b, trd_sum_all(b, bounded(m, x)), tame);
    case 1:
        return trd_mul(b, trd_cast(b, trd_sum_squares(b, bounded(m, x)), TRD_F32), tame);
    case 2:
        return trd_sub(b, pick_scalar(m), trd_mul(b, pick_scalar(m), tame));
    default:
        return trd_mul(
            b,
            trd_reshape(b, trd_slice(b, trd_slice(b, bounded(m, x), 0, 1, 2), 1, 7, 8), trd__shape_scalar()),
            tame);
    }
}

static void random_body(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    maker *outer = user, m = *outer;
    m.b = b;
    m.matrix_count = m.scalar_count = 0;
    for (int i = 0; i < 2; i++) m.matrices[m.matrix_count++] = in->carries[i];
    m.matrices[m.matrix_count++] = in->stacked[0];
    m.matrices[m.matrix_count++] = in->shared[0];
    m.vector = in->shared[1];
    m.ids = in->shared[2];
    m.scalars[m.scalar_count++] = in->shared[3];
    for (int i = 0; i < BODY_NODES; i++) {
        trd_value v = below(&m, 4) ? elementwise(&m) : structural(&m);
        m.matrices[m.matrix_count++] = v;
    }
    for (int i = 0; i < 4; i++) out[i] = pick(&m); /* may be a carry itself, or the same twice */
    outer->draws = m.draws;
}

/* Carries two matrices through a random body over two rows; one of the results made is added to the rows. */
static void add_loop(maker *m)
{
    enum { COUNT = 2 };
    trd_builder *b = m->b;
    trd_shape shape = TRD__SHAPE(COUNT, ROWS, m->columns), row = TRD__SHAPE(ROWS, m->columns);
    trd_value carries[] = {pick(m), pick(m)}, shared[] = {pick(m), m->vector, m->ids, pick_scalar(m)};
    trd_value stacked = trd_reshape(b, trd_concat(b, (trd_value[]){pick(m), pick(m)}, COUNT, 0), shape);
    trd_value results[4];
    trd_repeat(b,
               &(trd_repeat_options){.count = COUNT,
                                     .reverse = below(m, 2),
                                     .carries = carries,
                                     .carry_count = 2,
                                     .shared = shared,
                                     .shared_count = 4,
                                     .stacked = &stacked,
                                     .stacked_count = 1,
                                     .made_count = 2,
                                     .body = random_body,
                                     .user = m},
               results);
    trd_value added = trd_accumulate(b, stacked, results[3]);
    int first = below(m, COUNT);
    trd_value made[] = {results[0], results[1],
                        trd_reshape(b, trd_slice(b, results[2], 0, first, first + 1), row),
                        trd_reshape(b, trd_slice(b, added, 0, first, first + 1), row)};
    for (int i = below(m, 2); i < 4; i += 1 + below(m, 2)) m->matrices[m->matrix_count++] = made[i];
}

static void bind_outputs(maker *m)
{
    for (int i = 0; i < STATE; i++)
        if (below(m, 4))
            trd__program_output(m->program, SLOT_STATE, i, pick(m)); /* may be another's old value */
    for (int i = 0; i < RESULTS; i++) {
        trd_value v = i < 2    ? pick(m)
                      : i == 2 ? pick_scalar(m)
                      : i == 3 ? trd_cast(m->b, pick(m), TRD_BF16)
                               : trd_less(m->b, pick(m), pick(m));
        trd__program_output(m->program, SLOT_RESULTS, i,
                            m->exact || i < 4 ? v : trd_is_finite(m->b, pick(m)));
    }
}

static trd__program *random_program(uint64_t seed, bool exact)
{
    maker m = {.seed = seed, .exact = exact, .columns = seed % 10 < 8 ? FEW_COLUMNS : MANY_COLUMNS};
    assert_int_equal(trd__program_create("random", &m.program), TRD_OK);
    m.b = m.program->builder;
    trd_shape matrix = TRD__SHAPE(ROWS, m.columns);
    trd__entry state[STATE], results[RESULTS],
        inputs[3] = {test_entry("vector", TRD_F32, TRD__SHAPE(m.columns)),
                     test_entry("ids", TRD_I32, TRD__SHAPE(ROWS)),
                     test_entry("scalar", TRD_F32, trd__shape_scalar())};
    static const trd_dtype dtypes[RESULTS] = {TRD_F32, TRD_F32, TRD_F32, TRD_BF16, TRD_BOOL};
    for (int i = 0; i < STATE; i++) state[i] = test_entry("state", TRD_F32, matrix);
    for (int i = 0; i < RESULTS; i++)
        results[i] = test_entry("result", dtypes[i], i == 2 ? trd__shape_scalar() : matrix);
    trd__program_slot(m.program, "state", TRD__UPDATE, state, STATE);
    trd__program_slot(m.program, "inputs", TRD__READ, inputs, 3);
    trd__program_slot(m.program, "results", TRD__WRITE, results, RESULTS);
    for (int i = 0; i < STATE; i++)
        m.matrices[m.matrix_count++] = trd__program_input(m.program, SLOT_STATE, i);
    m.matrices[m.matrix_count++] = trd_constant_fill(m.b, TRD_F32, matrix, 0);
    m.vector = trd__program_input(m.program, 1, 0);
    m.ids = trd__program_input(m.program, 1, 1);
    m.scalars[m.scalar_count++] = trd__program_input(m.program, 1, 2);
    m.scalars[m.scalar_count++] = trd_scalar(m.b, TRD_F32, 0.5);
    for (int i = 0; i < NODES; i++) {
        int kind = below(&m, exact ? 11 : 10);
        if (kind == 10) {
            add_loop(&m);
            continue;
        }
        trd_value v = kind < 6 ? elementwise(&m) : kind < 8 ? structural(&m) : scalar(&m);
        if (kind < 8)
            m.matrices[m.matrix_count++] = v;
        else
            m.scalars[m.scalar_count++] = v;
    }
    bind_outputs(&m);
    if (trd_builder_status(m.b)) fail_msg("seed %d: %s", (int)seed, trd_error_message());
    return m.program;
}

typedef struct world {
    trd__backend *backend;
    trd__executable *executable;
    trd__set *sets[3];
} world;

static world make_world(const trd__program *p, int threads, const char *isa, bool reference, bool exact)
{
    world w = {.backend = test_backend_isa(threads, isa)};
    w.executable = test_compile(w.backend, p, reference);
    for (int s = 0; s < 3; s++) {
        w.sets[s] = test_set(w.backend, &p->slots[s]);
        for (int e = 0; s < SLOT_RESULTS && e < p->slots[s].entry_count; e++)
            test_fill(w.backend, w.sets[s], e, 17 + (uint64_t)s);
    }
    /* Distinct rows where results are compared to the bit: adding twice into one depends on the order. */
    if (exact) test_write(w.backend, w.sets[1], 1, (double[ROWS]){3, 0, 5, 1, 4, 2});
    return w;
}

static void free_world(world *w)
{
    w->backend->table->executable_free(w->backend, w->executable);
    for (int s = 0; s < 3; s++) w->backend->table->set_free(w->backend, w->sets[s]);
    trd__backend_free(w->backend);
}

static void compare(world *a, world *b, uint64_t seed, bool exact, int threads)
{
    for (int s = 0; s < 3; s += 2)
        for (int e = 0; e < a->sets[s]->entry_count; e++) {
            double *x = test_read(a->backend, a->sets[s], e), *y = test_read(b->backend, b->sets[s], e);
            for (int64_t i = 0; i < test_count(a->sets[s], e); i++) {
                double tolerance = exact ? 0 : (e == 3 && s == SLOT_RESULTS ? 1e-2 : 1e-3) * (1 + fabs(x[i]));
                bool same = x[i] == y[i] || (isnan(x[i]) && isnan(y[i])) || fabs(x[i] - y[i]) <= tolerance;
                if (!same)
                    fail_msg("seed %d, %d threads, %s %d [%d]: plain %.9g, fused %.9g", (int)seed, threads,
                             a->sets[s]->name, e, (int)i, x[i], y[i]);
            }
            trd__free(x);
            trd__free(y);
        }
}

static bool is_no_repeat(const trd_node *n, void *user)
{
    (void)user;
    return n->op != &trd__op_repeat;
}

static void check_program(uint64_t seed)
{
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    trd__isa best = trd__cpu_detect();
    bool exact = seed % 2 == 0;
    int threads = 1 + (int)(seed % 3);
    trd__program *p = random_program(seed, exact);
    world fused = make_world(p, threads, isas[seed / 3 % (uint64_t)(best + 1)], false, exact);
    assert_int_equal(trd__expand(p, is_no_repeat, NULL), TRD_OK);
    world plain = make_world(p, 1, NULL, true, exact);
    trd__program_free(p);
    for (int run = 0; run < 2; run++) {
        assert_int_equal(plain.backend->table->execute(plain.backend, plain.executable, plain.sets, NULL),
                         TRD_OK);
        assert_int_equal(fused.backend->table->execute(fused.backend, fused.executable, fused.sets, NULL),
                         TRD_OK);
        compare(&plain, &fused, seed, exact, threads);
    }
    trd__memory_report report = fused.backend->table->memory(fused.executable);
    assert_true(report.arena_bytes >= report.lower_bound_bytes);
    free_world(&plain);
    free_world(&fused);
}

static void fused_equals_plain(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) check_program(seed);
    /* More of the exact ones: elsewhere a long chain may cancel to any relative error. */
    for (uint64_t seed = PROGRAMS; seed < nightly_times(PROGRAMS, 20); seed += 2) check_program(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fused_equals_plain)};
    return cmocka_run_group_tests_name("backend/random_programs", tests, NULL, NULL);
}
