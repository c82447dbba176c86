/* What fusion and in-place planning promise, by the exact bytes that a program's steps move: an update reads
 * every gradient twice (the norm needs a pass of its own), everything else once, writes once and has no
 * temporary of a parameter's size; an accumulation chain has none either. Then what the loops promise: few of
 * them for an update, and the bits of the reference kernels. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/group.h"
#include "base/alloc.h"
#include "base/shape.h"
#include "ops/attrs.h"
#include "support/program.h"

enum { PARAMETERS = 3, ROWS = 64, COLUMNS = 1024, SMALL = 8192 /* bytes that scalars may take */ };
enum { GRADIENT, PARAMETER, MU, NU, KINDS };

static trd_value f32(trd_builder *b, double value)
{
    return trd_scalar(b, TRD_F32, value);
}

/* AdamW with clipping, moments corrected as in a first step, and a step that may be skipped, for parameters
 * of one dtype and shape. */
static trd__program *update_program(trd_dtype dtype, trd_shape shape)
{
    trd__program *p;
    assert_int_equal(trd__program_create("update", &p), TRD_OK);
    trd_builder *b = p->builder;
    trd__entry gradients[PARAMETERS], state[3 * PARAMETERS],
        inputs[] = {test_entry("lr", TRD_F32, trd__shape_scalar())};
    for (int i = 0; i < PARAMETERS; i++) gradients[i] = test_entry("g", dtype, shape);
    for (int i = 0; i < 3 * PARAMETERS; i++)
        state[i] = test_entry("s", i < PARAMETERS ? dtype : TRD_F32, shape);
    int g_slot = trd__program_slot(p, "gradients", TRD__READ, gradients, PARAMETERS);
    int slot = trd__program_slot(p, "state", TRD__UPDATE, state, 3 * PARAMETERS);
    trd_value lr = trd__program_input(p, trd__program_slot(p, "inputs", TRD__READ, inputs, 1), 0);
    trd_value g[PARAMETERS], squares = trd_scalar(b, TRD_F64, 0);
    for (int i = 0; i < PARAMETERS; i++) {
        g[i] = trd_mul(b, trd_cast(b, trd__program_input(p, g_slot, i), TRD_F32), f32(b, 0.25));
        squares = trd_add(b, squares, trd_sum_squares(b, g[i]));
    }
    trd_value norm = trd_cast(b, trd_sqrt(b, squares), TRD_F32);
    trd_value clip = trd_select(b, trd_less(b, norm, f32(b, 1)), f32(b, 1), trd_div(b, f32(b, 1), norm));
    trd_value keep = trd_is_finite(b, norm);
    for (int i = 0; i < PARAMETERS; i++) {
        trd_value old = trd__program_input(p, slot, i), mu = trd__program_input(p, slot, PARAMETERS + i);
        trd_value nu = trd__program_input(p, slot, 2 * PARAMETERS + i), x = trd_cast(b, old, TRD_F32);
        trd_value clipped = trd_mul(b, g[i], clip);
        trd_value new_mu = trd_add(b, trd_mul(b, mu, f32(b, 0.9)), trd_mul(b, clipped, f32(b, 0.1)));
        trd_value new_nu =
            trd_add(b, trd_mul(b, nu, f32(b, 0.99)), trd_mul(b, trd_square(b, clipped), f32(b, 0.01)));
        trd_value mu_hat = trd_mul(b, new_mu, f32(b, 10)), nu_hat = trd_mul(b, new_nu, f32(b, 100));
        trd_value step = trd_div(b, mu_hat, trd_add(b, trd_sqrt(b, nu_hat), f32(b, 1e-8)));
        x = trd_cast(b, trd_sub(b, x, trd_mul(b, step, lr)), dtype);
        trd__program_output(p, slot, i, trd_select(b, keep, x, old));
        trd__program_output(p, slot, PARAMETERS + i, trd_select(b, keep, new_mu, mu));
        trd__program_output(p, slot, 2 * PARAMETERS + i, trd_select(b, keep, new_nu, nu));
    }
    return p;
}

static void check_update(trd_dtype dtype)
{
    trd__backend *backend = test_backend(2);
    trd__program *p = update_program(dtype, TRD__SHAPE(ROWS, COLUMNS));
    trd__executable *executable = test_compile(backend, p, false);
    trd__memory_report report = backend->table->memory(executable);
    uint64_t tensor = (uint64_t)ROWS * COLUMNS, width = trd_dtype_bytes(dtype);
    uint64_t read = PARAMETERS * tensor * (2 * width + width + 4 + 4),
             written = PARAMETERS * tensor * (width + 4 + 4);
    assert_in_range(report.bytes_read, read, read + SMALL);
    assert_in_range(report.bytes_written, written, written + SMALL);
    assert_in_range(report.arena_bytes, 0, SMALL);
    backend->table->executable_free(backend, executable);
    trd__program_free(p);
    trd__backend_free(backend);
}

static void update_is_one_pass(void **state)
{
    (void)state;
    check_update(TRD_F32);
    check_update(TRD_BF16);
}

/* A tied weight: a product's and a lookup's contribution into one accumulator, which starts from zero or not.
 */
static void accumulation_has_no_temporary(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        trd__backend *backend = test_backend(2);
        trd__program *p;
        assert_int_equal(trd__program_create("gradients", &p), TRD_OK);
        trd_builder *b = p->builder;
        trd_shape weight = TRD__SHAPE(2048, 64);
        trd__entry inputs[] = {test_entry("x", TRD_F32, TRD__SHAPE(8, 64)),
                               test_entry("dy", TRD_F32, TRD__SHAPE(8, 2048)),
                               test_entry("ids", TRD_I32, TRD__SHAPE(8))};
        trd__entry gradients[] = {test_entry("embedding", TRD_F32, weight)};
        int in = trd__program_slot(p, "inputs", TRD__READ, inputs, 3);
        int out = trd__program_slot(p, "gradients", first ? TRD__WRITE : TRD__UPDATE, gradients, 1);
        trd_value x = trd__program_input(p, in, 0), dy = trd__program_input(p, in, 1);
        trd_value sum = first ? trd_constant_fill(b, TRD_F32, weight, 0) : trd__program_input(p, out, 0);
        sum = trd_accumulate(b, sum, trd_matmul(b, dy, x, true, false, TRD_F32));
        sum = trd_accumulate(b, sum, trd_scatter_add_rows(b, trd__program_input(p, in, 2), x, 2048));
        trd__program_output(p, out, 0, sum);
        trd__executable *executable = test_compile(backend, p, false);
        trd__memory_report report = backend->table->memory(executable);
        assert_int_equal(report.arena_bytes, 0);
        assert_int_equal(report.kernel_count, 2);
        backend->table->executable_free(backend, executable);
        trd__program_free(p);
        trd__backend_free(backend);
    }
}

/* A value is the same bits alone, fused with others, at any place in a tile and on any number of threads. */
static void bits_do_not_depend_on_the_group(void **state)
{
    (void)state;
    enum { COUNT = 70001 };
    double *found[3];
    for (int threads = 1; threads <= 3; threads++) {
        trd__backend *backend = test_backend(threads);
        trd__program *p;
        assert_int_equal(trd__program_create("bits", &p), TRD_OK);
        trd_builder *b = p->builder;
        trd__entry in[] = {test_entry("x", TRD_F32, TRD__SHAPE(COUNT))};
        trd__entry out[] = {test_entry("alone", TRD_F32, TRD__SHAPE(COUNT)),
                            test_entry("shifted", TRD_F32, TRD__SHAPE(COUNT - 3))};
        int i = trd__program_slot(p, "inputs", TRD__READ, in, 1),
            o = trd__program_slot(p, "results", TRD__WRITE, out, 2);
        trd_value x = trd__program_input(p, i, 0);
        trd__program_output(p, o, 0, trd_exp(b, x));
        trd_value shifted = trd_exp(b, trd_slice(b, x, 0, 3, COUNT));
        trd__program_output(p, o, 1, trd_sub(b, trd_add(b, shifted, shifted), shifted));
        trd__set *sets[] = {test_set(backend, &p->slots[0]), test_set(backend, &p->slots[1])};
        trd__executable *executable = test_compile(backend, p, false);
        test_fill(backend, sets[0], 0, 3);
        assert_int_equal(backend->table->execute(backend, executable, sets, NULL), TRD_OK);
        double *alone = test_read(backend, sets[1], 0), *part = test_read(backend, sets[1], 1);
        for (int k = 3; k < COUNT; k++) assert_true(alone[k] == part[k - 3]);
        found[threads - 1] = alone;
        for (int k = 0; k < COUNT; k++) assert_true(alone[k] == found[0][k]);
        trd__free(part);
        backend->table->executable_free(backend, executable);
        for (int s = 0; s < 2; s++) backend->table->set_free(backend, sets[s]);
        trd__program_free(p);
        trd__backend_free(backend);
    }
    for (int t = 0; t < 3; t++) trd__free(found[t]);
}

/* -- Joined loops -- */

/* The ops that run over each tile in the program's largest group. */
static int loops_of(const trd__executable *executable)
{
    int most = 0;
    for (int i = 0; i < executable->step_count; i++) {
        const trd__cpu_step *step = &executable->steps[i];
        const trd__group *group = step->state;
        if (step->kernel == &trd__kernel_group && group->store_count && group->op_count > most)
            most = group->op_count;
    }
    return most;
}

/* A parameter's group: the gradient divided and clipped, the first moment, the gradient's square, the second
 * moment, its corrected root, the quotient and the parameter. */
static void update_has_few_loops(void **state)
{
    (void)state;
    trd__backend *backend = test_backend(2);
    trd__program *p = update_program(TRD_F32, TRD__SHAPE(ROWS, COLUMNS));
    trd__executable *executable = test_compile(backend, p, false);
    assert_int_equal(loops_of(executable), 7);
    backend->table->executable_free(backend, executable);
    trd__program_free(p);
    trd__backend_free(backend);
}

/* Runs the program with fast and with reference kernels on the same values and compares every bit. The first
 * element is `first`, and so is the last slot where it is a scalar. */
static void check_bits(const trd__program *p, const char *isa, double first)
{
    enum { SLOTS = 3, ENTRIES = 20 };
    double *found[SLOTS][2][ENTRIES];
    assert_in_range(p->slot_count, 1, SLOTS);
    for (int reference = 0; reference < 2; reference++) {
        trd__backend *backend = test_backend_isa(2, isa);
        trd__executable *executable = test_compile(backend, p, reference);
        trd__set *sets[SLOTS];
        for (int s = 0; s < p->slot_count; s++) {
            sets[s] = test_set(backend, &p->slots[s]);
            assert_in_range(sets[s]->entry_count, 1, ENTRIES);
            for (int i = 0; i < sets[s]->entry_count; i++) test_fill(backend, sets[s], i, (uint64_t)s + 1);
        }
        if (test_count(sets[p->slot_count - 1], 0) == 1)
            test_write(backend, sets[p->slot_count - 1], 0, &first);
        double *values = test_read(backend, sets[0], 0);
        values[0] = first;
        test_write(backend, sets[0], 0, values);
        trd__free(values);
        assert_int_equal(backend->table->execute(backend, executable, sets, NULL), TRD_OK);
        for (int s = 0; s < p->slot_count; s++) {
            for (int i = 0; i < sets[s]->entry_count; i++)
                found[s][reference][i] = test_read(backend, sets[s], i);
            backend->table->set_free(backend, sets[s]);
        }
        backend->table->executable_free(backend, executable);
        trd__backend_free(backend);
    }
    for (int s = 0; s < p->slot_count; s++)
        for (int i = 0; i < p->slots[s].entry_count; i++) {
            size_t bytes = (size_t)trd__shape_count(&p->slots[s].entries[i].shape) * sizeof(double);
            assert_memory_equal(found[s][0][i], found[s][1][i], bytes);
            trd__free(found[s][0][i]);
            trd__free(found[s][1][i]);
        }
}

/* Ops that share a loop, by number: two of four in either place, one for both operands of another, those with
 * a square or a root. A program with one has long tiles, with several short ones; both leave a rest. */
enum { SQUARES = 48, ROOTS = 50, PATTERNS = 52, TOGETHER = 6, FEW = 20003, MANY = 67001 };

/* A root's operands are made positive by an op each, which joins nothing. */
static trd_value join(trd_builder *b, int pattern, trd_value x, trd_value y, trd_value z, trd_value w,
                      int *loops)
{
    typedef trd_value (*binary)(trd_builder *, trd_value, trd_value);
    const binary ops[] = {trd_add, trd_sub, trd_mul, trd_div}, both[] = {trd_add, trd_mul};
    binary outer = ops[pattern / 4 % 4], inner = ops[pattern % 4];
    *loops = pattern < ROOTS ? 1 : 3;
    switch (pattern / 16) {
    case 0:
        return outer(b, inner(b, x, y), z);
    case 1:
        return outer(b, x, inner(b, y, z));
    case 2:
        return outer(b, both[pattern / 2 % 2](b, y, z), both[pattern % 2](b, w, x));
    }
    switch (pattern) {
    case SQUARES:
        return trd_mul(b, trd_square(b, y), x);
    case SQUARES + 1:
        return trd_mul(b, x, trd_square(b, y));
    case ROOTS:
        return trd_sqrt(b, trd_add(b, trd_square(b, x), trd_square(b, y)));
    default:
        return trd_sqrt(b, trd_mul(b, trd_abs(b, x), trd_abs(b, y)));
    }
}

/* `count` patterns from `first` as the results of one program. They have an operand in common, so that they
 * are one group, but no two: equal ops would become one, which has more than one reader and joins none. */
static void check_joined(int first, int count, int64_t elements)
{
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    trd__program *p;
    assert_int_equal(trd__program_create("joined", &p), TRD_OK);
    trd__entry in[1 + 3 * TOGETHER], out[TOGETHER];
    for (int i = 0; i < 1 + 3 * count; i++) in[i] = test_entry("x", TRD_F32, TRD__SHAPE(elements));
    for (int i = 0; i < count; i++) out[i] = test_entry("y", TRD_F32, TRD__SHAPE(elements));
    int slot = trd__program_slot(p, "inputs", TRD__READ, in, 1 + 3 * count), expected = 0;
    int results = trd__program_slot(p, "results", TRD__WRITE, out, count);
    for (int i = 0; i < count; i++) {
        trd_value x[4];
        int loops;
        for (int k = 0; k < 4; k++) x[k] = trd__program_input(p, slot, k ? 3 * i + k : 0);
        trd_value y = join(p->builder, (first + i) % PATTERNS, x[0], x[1], x[2], x[3], &loops);
        trd__program_output(p, results, i, y);
        expected += loops;
    }
    trd__backend *backend = test_backend(2);
    trd__executable *executable = test_compile(backend, p, false);
    assert_int_equal(loops_of(executable), expected);
    backend->table->executable_free(backend, executable);
    trd__backend_free(backend);
    for (int isa = 0; isa <= (int)trd__cpu_detect(); isa++) check_bits(p, isas[isa], 0.5);
    trd__program_free(p);
}

static void joined_ops_keep_their_bits(void **state)
{
    (void)state;
    for (int i = 0; i < PATTERNS; i++) check_joined(i, 1, FEW);
    for (int i = 0; i < PATTERNS; i += TOGETHER) check_joined(i, TOGETHER, MANY);
}

/* An update that is applied, and one whose norm is no number, so that it is not, in place in short tiles and
 * a rest that is no vector. */
static void update_keeps_its_bits(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        trd__program *p = update_program(bf16 ? TRD_BF16 : TRD_F32, TRD__SHAPE(67, 1027));
        check_bits(p, NULL, 0.01);
        check_bits(p, NULL, INFINITY);
        trd__program_free(p);
    }
}

/* Of values that a flag chooses between, one is of consequence for another result whatever the flag is. */
static void a_choice_changes_no_other_value(void **state)
{
    (void)state;
    trd_shape shape = TRD__SHAPE(5000);
    for (int flag = 0; flag < 2; flag++) {
        trd__program *p;
        assert_int_equal(trd__program_create("choice", &p), TRD_OK);
        trd_builder *b = p->builder;
        trd__entry in[] = {test_entry("x", TRD_F32, shape), test_entry("y", TRD_F32, shape)};
        trd__entry out[] = {test_entry("chosen", TRD_F32, shape), test_entry("other", TRD_F32, shape),
                            test_entry("both", TRD_F32, shape), test_entry("after", TRD_F32, shape)};
        trd__entry scalar[] = {test_entry("flag", TRD_F32, trd__shape_scalar())};
        int slot = trd__program_slot(p, "inputs", TRD__READ, in, 2);
        int results = trd__program_slot(p, "results", TRD__WRITE, out, 4);
        int flags = trd__program_slot(p, "flag", TRD__READ, scalar, 1);
        trd_value x = trd__program_input(p, slot, 0), y = trd__program_input(p, slot, 1);
        trd_value keep = trd_less(b, f32(b, 0.5), trd__program_input(p, flags, 0));
        trd_value made = trd_add(b, x, y), only = trd_mul(b, x, y);
        trd__program_output(p, results, 0, trd_select(b, keep, made, y));
        trd__program_output(p, results, 1, trd_mul(b, made, x));
        trd_value next = trd_select(b, keep, trd_sub(b, only, x), x);
        trd__program_output(p, results, 2, trd_add(b, next, trd_select(b, keep, only, y)));
        trd_value early = trd_sub(b, x, y),
                  late = trd_square(b, early); /* made of what it is chosen instead of */
        trd__program_output(p, results, 3, trd_select(b, keep, early, late));
        check_bits(p, NULL, flag);
        trd__program_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(update_is_one_pass),
                                       cmocka_unit_test(accumulation_has_no_temporary),
                                       cmocka_unit_test(bits_do_not_depend_on_the_group),
                                       cmocka_unit_test(update_has_few_loops),
                                       cmocka_unit_test(joined_ops_keep_their_bits),
                                       cmocka_unit_test(update_keeps_its_bits),
                                       cmocka_unit_test(a_choice_changes_no_other_value)};
    return cmocka_run_group_tests_name("backend/fusion", tests, NULL, NULL);
}
