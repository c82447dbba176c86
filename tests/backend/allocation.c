/* Executing allocates nothing: calls of malloc's family and mmap are counted. Products are left
 * out, since the library behind them allocates inside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/shape.h"
#include "ops/attrs.h"
#include "support/failing_heap.h"
#include "support/program.h"

enum { VOCABULARY = 50, ROWS = 64, COLUMNS = 1024, LAYERS = 3 };

/* Both matrices are too large for one thread. */
static void layer(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    out[0] = trd_mul(b, trd_rms_norm(b, in->carries[0], in->stacked[0], 1e-6), in->shared[0]);
    out[1] = in->carries[0];
}

static trd__program *step_program(void)
{
    trd__program *p;
    assert_int_equal(trd__program_create("step", &p), TRD_OK);
    trd_builder *b = p->builder;
    trd__entry inputs[] = {test_entry("ids", TRD_I32, TRD__SHAPE(ROWS))};
    trd__entry state[] = {test_entry("table", TRD_F32, TRD__SHAPE(VOCABULARY, COLUMNS)),
                          test_entry("scale", TRD_F32, TRD__SHAPE(COLUMNS)),
                          test_entry("norm", TRD_F64, trd__shape_scalar())};
    int in = trd__program_slot(p, "inputs", TRD__READ, inputs, 1);
    int slot = trd__program_slot(p, "state", TRD__UPDATE, state, 3);
    trd_value ids = trd__program_input(p, in, 0), table = trd__program_input(p, slot, 0);
    trd_value scale = trd__program_input(p, slot, 1);
    trd_value x = trd_rms_norm(b, trd_gather_rows(b, table, ids), scale, 1e-6);
    trd_value scales = trd_broadcast(b, scale, TRD__SHAPE(LAYERS, COLUMNS)), looped[2];
    trd_repeat(b,
               &(trd_repeat_options){.count = LAYERS,
                                     .carries = &x,
                                     .carry_count = 1,
                                     .shared = &scale,
                                     .shared_count = 1,
                                     .stacked = &scales,
                                     .stacked_count = 1,
                                     .made_count = 1,
                                     .body = layer},
               looped);
    x = trd_add(b, looped[0], trd_reduce_sum(b, looped[1], 1, false, TRD_F32));
    trd_value y = trd_mul(b, trd_sigmoid(b, x), trd_broadcast(b, scale, TRD__SHAPE(ROWS, COLUMNS)));
    trd__program_output(p, slot, 0, trd_accumulate(b, table, trd_scatter_add_rows(b, ids, y, VOCABULARY)));
    trd__program_output(p, slot, 1, trd_reduce_sum(b, y, 1, false, TRD_F32));
    trd__program_output(p, slot, 2, trd_sum_squares(b, y));
    return p;
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        heap_arm(LONG_MAX);
        trd__backend *backend = test_backend(threads);
        trd__program *p = step_program();
        trd__set *sets[2] = {test_set(backend, &p->slots[0]), test_set(backend, &p->slots[1])};
        trd__executable *executable = test_compile(backend, p, false);
        test_fill(backend, sets[0], 0, 1);
        test_fill(backend, sets[1], 0, 1);
        int32_t ids[ROWS];
        for (int i = 0; i < ROWS; i++) ids[i] = i % VOCABULARY;
        double norm;
        assert_true(heap.taken > 0); /* the count works */
        for (int step = 0; step < 100; step++) {
            if (step == 2) heap.taken = 0;
            assert_int_equal(backend->table->set_write(backend, sets[0], 0, ids), TRD_OK);
            assert_int_equal(backend->table->execute(backend, executable, sets, NULL), TRD_OK);
            if (step % 10 == 0)
                assert_int_equal(backend->table->set_read(backend, sets[1], 2, &norm), TRD_OK);
        }
        assert_int_equal(backend->table->drain(backend), TRD_OK);
        heap.armed = false;
        assert_int_equal(heap.taken, 0);
        backend->table->executable_free(backend, executable);
        for (int i = 0; i < 2; i++) backend->table->set_free(backend, sets[i]);
        trd__program_free(p);
        trd__backend_free(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_allocates_nothing)};
    return cmocka_run_group_tests_name("backend/allocation", tests, NULL, NULL);
}
