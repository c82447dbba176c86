/* Steps that do the same to arrays behind one another become one, and no others do: not where the arrays have
 * a gap, where a scalar or an op differs, or where one step reads what the other writes. Joined or not, every
 * value has the bits of the plain kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/group.h"
#include "base/alloc.h"
#include "base/shape.h"
#include "support/program.h"

enum { ARRAYS = 6, COUNT = 640, ODD = 650 /* ends inside a cache line */ };

typedef enum variant { ALIKE, GAPS, OTHER_SCALAR, OTHER_OP, CHAINED } variant;

/* state[i] = keep ? state[i] - g[i] * s * s : state[i]; keep and s are the inputs' scalars. */
static trd__program *make(variant v, bool keep)
{
    trd__program *p;
    assert_int_equal(trd__program_create("update", &p), TRD_OK);
    trd_builder *b = p->builder;
    trd_shape shape = TRD__SHAPE(v == GAPS ? ODD : COUNT);
    trd__entry arrays[ARRAYS], scalars[] = {test_entry("s", TRD_F32, trd__shape_scalar()),
                                            test_entry("other", TRD_F32, trd__shape_scalar())};
    for (int i = 0; i < ARRAYS; i++) arrays[i] = test_entry("array", TRD_F32, shape);
    int in = trd__program_slot(p, "scalars", TRD__READ, scalars, 2);
    int g = trd__program_slot(p, "gradients", TRD__READ, arrays, ARRAYS);
    int state = trd__program_slot(p, "state", TRD__UPDATE, arrays, ARRAYS);
    trd_value zero = trd_scalar(b, TRD_F32, 0), result = {0};
    for (int i = 0; i < ARRAYS; i++) {
        trd_value s = trd__program_input(p, in, v == OTHER_SCALAR && i % 2);
        trd_value flag = keep ? trd_equal(b, s, s) : trd_not_equal(b, s, s);
        trd_value x = trd__program_input(p, state, i), y = trd__program_input(p, g, i);
        if (v == CHAINED && i) y = result;
        trd_value step = trd_mul(b, trd_mul(b, y, s), s);
        result = v == OTHER_OP && i % 2 ? trd_max(b, x, step) : trd_sub(b, x, step);
        result = trd_select(b, flag, result, x);
        trd__program_output(p, state, i, v == CHAINED ? trd_add(b, result, zero) : result);
    }
    return p;
}

static int passes(const trd__executable *executable)
{
    int count = 0;
    for (int s = 0; s < executable->step_count; s++) {
        const trd__group *group = executable->steps[s].state;
        count += executable->steps[s].kernel == &trd__kernel_group && group->count > 1;
    }
    return count;
}

/* Everything in the state after a run. */
static double **run(trd__backend *backend, const trd__program *p, bool reference, int *steps)
{
    trd__executable *executable = test_compile(backend, p, reference);
    trd__set *sets[3];
    for (int s = 0; s < 3; s++) {
        sets[s] = test_set(backend, &p->slots[s]);
        for (int i = 0; i < p->slots[s].entry_count; i++)
            test_fill(backend, sets[s], i, (uint64_t)(10 * s + i + 1));
    }
    assert_int_equal(backend->table->execute(backend, executable, sets, NULL), TRD_OK);
    double **state = trd__calloc(ARRAYS, sizeof *state);
    assert_non_null(state);
    for (int i = 0; i < ARRAYS; i++) state[i] = test_read(backend, sets[2], i);
    *steps = passes(executable);
    backend->table->executable_free(backend, executable);
    for (int s = 0; s < 3; s++) backend->table->set_free(backend, sets[s]);
    return state;
}

static void check(variant v, int most, int least)
{
    for (int keep = 0; keep < 2; keep++)
        for (int threads = 1; threads <= 2; threads++) {
            trd__backend *backend = test_backend(threads);
            trd__program *p = make(v, keep);
            int steps, plain, length = v == GAPS ? ODD : COUNT;
            double **found = run(backend, p, false, &steps), **expected = run(backend, p, true, &plain);
            assert_in_range(steps, least, most);
            for (int i = 0; i < ARRAYS; i++) {
                for (int k = 0; k < length; k++) assert_true(found[i][k] == expected[i][k]);
                trd__free(found[i]);
                trd__free(expected[i]);
            }
            trd__free(found);
            trd__free(expected);
            trd__program_free(p);
            trd__backend_free(backend);
        }
}

static void arrays_behind_one_another_are_one_pass(void **state)
{
    (void)state;
    check(ALIKE, 1, 1);
}

static void others_keep_their_own(void **state)
{
    (void)state;
    check(GAPS, ARRAYS, ARRAYS);
    check(OTHER_SCALAR, ARRAYS, ARRAYS);
    check(OTHER_OP, ARRAYS, ARRAYS);
    check(CHAINED, ARRAYS, 1); /* may be fused, but each in its place in the chain */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(arrays_behind_one_another_are_one_pass),
                                       cmocka_unit_test(others_keep_their_own)};
    return cmocka_run_group_tests_name("backend/adjoin", tests, NULL, NULL);
}
