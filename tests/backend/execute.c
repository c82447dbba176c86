/* Executing on a backend: results, updates in place, swaps, accumulators from zero, order, events, sets
 * and the sticky error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/shape.h"
#include "ops/attrs.h"
#include "support/program.h"

static trd__program *program_of(const char *name)
{
    trd__program *program;
    assert_int_equal(trd__program_create(name, &program), TRD_OK);
    return program;
}

static void expect(trd__backend *backend, trd__set *set, int entry, const double *expected)
{
    double *found = test_read(backend, set, entry);
    for (int64_t i = 0; i < test_count(set, entry); i++) assert_float_equal(found[i], expected[i], 1e-6);
    trd__free(found);
}

/* state: a, b (4) f32; a' = b, b' = a + b, then three runs in a row without waiting. */
static void swaps_state_in_order(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        trd__program *p = program_of("swap");
        trd__entry entries[2] = {test_entry("a", TRD_F32, TRD__SHAPE(2)),
                                 test_entry("b", TRD_F32, TRD__SHAPE(2))};
        int slot = trd__program_slot(p, "state", TRD__UPDATE, entries, 2);
        trd_value a = trd__program_input(p, slot, 0), b = trd__program_input(p, slot, 1);
        trd__program_output(p, slot, 0, b);
        trd__program_output(p, slot, 1, trd_add(p->builder, a, b));
        trd__backend *backend = test_backend(threads);
        trd__set *set = test_set(backend, &p->slots[slot]);
        trd__executable *executable = test_compile(backend, p, false);
        trd__program_free(p);
        test_write(backend, set, 0, (double[]){1, 10});
        test_write(backend, set, 1, (double[]){2, 20});
        trd__event event = {0};
        for (int i = 0; i < 3; i++)
            assert_int_equal(backend->table->execute(backend, executable, &set, &event), TRD_OK);
        assert_int_equal(set->generation, 3);
        assert_int_equal(backend->table->event_wait(backend, event), TRD_OK);
        assert_true(backend->table->event_ready(backend, event));
        expect(backend, set, 0, (double[]){5, 50});
        expect(backend, set, 1, (double[]){8, 80});
        backend->table->executable_free(backend, executable);
        backend->table->set_free(backend, set);
        trd__backend_free(backend);
    }
}

/* gradients: w (2, 3), table (4, 2), unused (3); first defines every element, accum adds. */
static trd__program *gradient_program(bool first)
{
    trd__program *p = program_of(first ? "first" : "accum");
    trd_builder *b = p->builder;
    trd__entry inputs[] = {test_entry("x", TRD_F32, TRD__SHAPE(5, 2)),
                           test_entry("dy", TRD_F32, TRD__SHAPE(5, 3)),
                           test_entry("ids", TRD_I32, TRD__SHAPE(5))};
    trd__entry gradients[] = {test_entry("w", TRD_F32, TRD__SHAPE(2, 3)),
                              test_entry("table", TRD_F32, TRD__SHAPE(4, 2)),
                              test_entry("unused", TRD_F32, TRD__SHAPE(30))};
    int in = trd__program_slot(p, "inputs", TRD__READ, inputs, 3);
    int out = trd__program_slot(p, "gradients", first ? TRD__WRITE : TRD__UPDATE, gradients, 3);
    trd_value x = trd__program_input(p, in, 0), dy = trd__program_input(p, in, 1);
    trd_value ids = trd__program_input(p, in, 2), accumulators[3];
    for (int i = 0; i < 3; i++)
        accumulators[i] =
            first ? trd_constant_fill(b, TRD_F32, gradients[i].shape, 0) : trd__program_input(p, out, i);
    trd_value product = trd_matmul(b, x, dy, true, false, TRD_F32);
    trd__program_output(p, out, 0, trd_accumulate(b, trd_accumulate(b, accumulators[0], product), product));
    trd__program_output(p, out, 1, trd_accumulate(b, accumulators[1], trd_scatter_add_rows(b, ids, x, 4)));
    trd__program_output(p, out, 2, accumulators[2]);
    return p;
}

static void accumulates(void **state)
{
    (void)state;
    for (int reference = 0; reference < 2; reference++) {
        trd__backend *backend = test_backend(2);
        trd__program *first = gradient_program(true), *accum = gradient_program(false);
        assert_int_equal(trd_builder_status(first->builder), TRD_OK);
        trd__set *sets[2] = {test_set(backend, &first->slots[0]), test_set(backend, &first->slots[1])};
        trd__executable *run_first = test_compile(backend, first, reference);
        trd__executable *run_accum = test_compile(backend, accum, reference);
        test_write(backend, sets[0], 0, (double[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
        test_write(backend, sets[0], 1, (double[]){1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0});
        test_write(backend, sets[0], 2, (double[]){1, 3, 1, 3, 3});
        for (int i = 0; i < 3; i++) test_fill(backend, sets[1], i, 5); /* must not matter */
        for (int run = 1; run <= 3; run++) {
            trd__executable *e = run == 1 ? run_first : run_accum;
            assert_int_equal(backend->table->execute(backend, e, sets, NULL), TRD_OK);
        }
        double w[6] = {1, 3, 5, 2, 4, 6}, table[8] = {0, 0, 6, 8, 0, 0, 19, 22}, unused[30] = {0};
        for (int i = 0; i < 6; i++) w[i] *= 6;
        for (int i = 0; i < 8; i++) table[i] *= 3;
        expect(backend, sets[1], 0, w);
        expect(backend, sets[1], 1, table);
        expect(backend, sets[1], 2, unused);
        backend->table->executable_free(backend, run_first);
        backend->table->executable_free(backend, run_accum);
        backend->table->set_free(backend, sets[0]);
        backend->table->set_free(backend, sets[1]);
        trd__program_free(first);
        trd__program_free(accum);
        trd__backend_free(backend);
    }
}

/* A row id out of range is found behind dispatch: the error names op and program and sticks until reset. */
static void keeps_the_first_error(void **state)
{
    (void)state;
    test_cpu_only();
    trd__program *p = program_of("lookup");
    trd__entry inputs[] = {test_entry("table", TRD_F32, TRD__SHAPE(4, 2)),
                           test_entry("ids", TRD_I32, TRD__SHAPE(3))};
    trd__entry results[] = {test_entry("rows", TRD_F32, TRD__SHAPE(3, 2))};
    int in = trd__program_slot(p, "inputs", TRD__READ, inputs, 2);
    int out = trd__program_slot(p, "results", TRD__WRITE, results, 1);
    trd__program_output(
        p, out, 0, trd_gather_rows(p->builder, trd__program_input(p, in, 0), trd__program_input(p, in, 1)));
    trd__backend *backend = test_backend(2);
    trd__set *sets[2] = {test_set(backend, &p->slots[0]), test_set(backend, &p->slots[1])};
    trd__executable *executable = test_compile(backend, p, false);
    test_write(backend, sets[0], 1, (double[]){0, 4, 1});
    trd__event event;
    assert_int_equal(backend->table->execute(backend, executable, sets, &event), TRD_OK);
    assert_int_equal(backend->table->event_wait(backend, event), TRD_INTERNAL);
    assert_non_null(strstr(trd_error_message(), "program \"lookup\", op gather_rows"));
    assert_non_null(strstr(trd_error_message(), "index 4 at position 1"));
    test_write(backend, sets[0], 1, (double[]){0, 3, 1});
    assert_int_equal(backend->table->execute(backend, executable, sets, &event), TRD_INTERNAL);
    assert_int_equal(backend->table->drain(backend), TRD_INTERNAL);
    backend->table->reset(backend);
    assert_int_equal(backend->table->execute(backend, executable, sets, &event), TRD_OK);
    assert_int_equal(backend->table->drain(backend), TRD_OK);
    assert_int_equal(backend->table->stats(backend).executions, 2);
    backend->table->executable_free(backend, executable);
    for (int i = 0; i < 2; i++) backend->table->set_free(backend, sets[i]);
    trd__program_free(p);
    trd__backend_free(backend);
}

/* More runs than the ring holds, queued without waiting: each sees what the one before wrote; work on another
 * set is not waited for. */
static void queues_many_runs(void **state)
{
    (void)state;
    enum { RUNS = 500 };
    trd__program *p = program_of("count");
    trd__entry entries[] = {test_entry("n", TRD_F32, TRD__SHAPE(3))};
    int slot = trd__program_slot(p, "state", TRD__UPDATE, entries, 1);
    trd_value one = trd_constant_fill(p->builder, TRD_F32, TRD__SHAPE(3), 1);
    trd__program_output(p, slot, 0, trd_add(p->builder, trd__program_input(p, slot, 0), one));
    trd__backend *backend = test_backend(2);
    trd__set *set = test_set(backend, &p->slots[0]), *idle = test_set(backend, &p->slots[0]);
    trd__executable *executable = test_compile(backend, p, false);
    trd__event events[RUNS];
    for (int i = 0; i < RUNS; i++) {
        assert_int_equal(backend->table->execute(backend, executable, &set, &events[i]), TRD_OK);
        assert_true(events[i].ticket == (i ? events[i - 1].ticket + 1 : 1));
    }
    expect(backend, idle, 0, (double[]){0, 0, 0});
    assert_int_equal(backend->table->event_wait(backend, events[10]), TRD_OK);
    for (int i = 0; i <= 10; i++) assert_true(backend->table->event_ready(backend, events[i]));
    expect(backend, set, 0, (double[]){RUNS, RUNS, RUNS});
    assert_true(backend->table->event_ready(backend, events[RUNS - 1]));
    assert_int_equal(set->generation, RUNS);
    assert_int_equal(idle->generation, 0);
    assert_int_equal(backend->table->stats(backend).executions, RUNS);
    backend->table->set_free(backend, set);
    backend->table->set_free(backend, idle);
    backend->table->executable_free(backend, executable);
    trd__program_free(p);
    trd__backend_free(backend);
}

static void count_line(void *user, trd_log_level level, const char *line)
{
    (void)level;
    *(int *)user += strstr(line, "gather_rows") || strstr(line, "compiled lookup");
}

static void explains_kernel_choice(void **state)
{
    (void)state;
    test_cpu_only();
    int lines = 0;
    trd__backend_options options = {.threads = 1, .log = {count_line, &lines}};
    trd__backend *backend;
    assert_int_equal(trd__backend_create(&options, &backend), TRD_OK);
    trd__program *p = program_of("lookup");
    trd__entry entries[] = {test_entry("table", TRD_F32, TRD__SHAPE(4, 2)),
                            test_entry("ids", TRD_I32, TRD__SHAPE(4))};
    int slot = trd__program_slot(p, "state", TRD__UPDATE, entries, 2);
    trd__program_output(
        p, slot, 0,
        trd_gather_rows(p->builder, trd__program_input(p, slot, 0), trd__program_input(p, slot, 1)));
    for (int verbose = 0; verbose < 2; verbose++) {
        trd__executable *executable;
        trd__compile_options compile_options = {.verbose = verbose};
        assert_int_equal(backend->table->compile(backend, p, &compile_options, &executable), TRD_OK);
        assert_int_equal(lines, verbose ? 3 : 1);
        backend->table->executable_free(backend, executable);
    }
    trd__program_free(p);
    trd__backend_free(backend);
}

static void refuses_what_does_not_fit(void **state)
{
    (void)state;
    trd__backend *backend;
    assert_int_equal(trd__backend_create(&(trd__backend_options){.name = "tpu"}, &backend),
                     TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "cpu"));
    assert_int_equal(trd__backend_create(&(trd__backend_options){.name = "cpu", .cpu_isa = "mmx"}, &backend),
                     TRD_INVALID_ARGUMENT);
    trd__program *p = program_of("copy");
    trd__entry entries[] = {test_entry("x", TRD_F32, TRD__SHAPE(4)), test_entry("y", TRD_F32, TRD__SHAPE(4))};
    int slot = trd__program_slot(p, "state", TRD__UPDATE, entries, 2);
    trd__program_output(p, slot, 0, trd__program_input(p, slot, 1));
    backend = test_backend(1);
    trd__executable *executable = test_compile(backend, p, false);
    trd__set *wrong;
    entries[1].dtype = TRD_BF16;
    assert_int_equal(backend->table->set_create(backend, "wrong", entries, 2, &wrong), TRD_OK);
    assert_int_equal(backend->table->execute(backend, executable, &wrong, NULL), TRD_SHAPE);
    assert_non_null(strstr(trd_error_message(), "entry \"y\""));
    backend->table->set_free(backend, wrong);
    backend->table->executable_free(backend, executable);
    trd__program_free(p);
    trd__backend_free(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swaps_state_in_order),  cmocka_unit_test(accumulates),
        cmocka_unit_test(queues_many_runs),      cmocka_unit_test(explains_kernel_choice),
        cmocka_unit_test(keeps_the_first_error), cmocka_unit_test(refuses_what_does_not_fit)};
    return cmocka_run_group_tests_name("backend/execute", tests, NULL, NULL);
}
