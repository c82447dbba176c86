/* Programs of many small steps are compiled for one thread, however many there are: waiting for each other
 * would cost more than the second one saves. Long steps are shared, and so are those of short programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "base/shape.h"
#include "support/program.h"

/* A swiglu of SMALLEST elements is the least that workers share; LARGE ones take longer than the grain. */
enum { SMALLEST = 1 << 13, LARGE = 1 << 16, MANY = 300, FEW = 20 };

/* Steps that workers share, of a chain of so many swiglu. */
static int shared_steps(int nodes, int64_t elements)
{
    trd__backend *backend = test_backend(2);
    trd__program *p;
    int shared = 0;
    assert_int_equal(trd__program_create("chain", &p), TRD_OK);
    trd__entry x = test_entry("x", TRD_F32, TRD__SHAPE(elements));
    trd_value in = trd__program_input(p, trd__program_slot(p, "inputs", TRD__READ, &x, 1), 0), y = in;
    for (int i = 0; i < nodes; i++) y = trd_swiglu(p->builder, y, in);
    trd__program_output(p, trd__program_slot(p, "results", TRD__WRITE, &x, 1), 0, y);
    trd__executable *executable = test_compile(backend, p, false);
    assert_true(executable->step_count >= nodes);
    for (int s = 0; s < executable->step_count; s++) shared += executable->steps[s].workers != 1;
    backend->table->executable_free(backend, executable);
    trd__program_free(p);
    trd__backend_free(backend);
    return shared;
}

static void many_small_steps_run_on_one_thread(void **state)
{
    (void)state;
    assert_int_equal(shared_steps(MANY, SMALLEST), 0);
}

static void other_steps_are_shared(void **state)
{
    (void)state;
    assert_int_equal(shared_steps(MANY, LARGE), MANY);
    assert_int_equal(shared_steps(FEW, SMALLEST), FEW);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_small_steps_run_on_one_thread),
                                       cmocka_unit_test(other_steps_are_shared)};
    return cmocka_run_group_tests_name("backend/one_thread", tests, NULL, NULL);
}
