/* The bytes that a program's report says its kernels move: ops by index touch rows, not tables; what fusion
 * keeps in registers moves nothing; accumulators are read only where they are added to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/shape.h"
#include "ops/attrs.h"
#include "support/program.h"

typedef struct fixture {
    trd__program *p;
    trd__entry entries[4];
    int slot;
    trd_value table, ids, x; /* f32 (100, 8), i32 (5), f32 (5, 8) */
} fixture;

enum { TABLE = 100 * 8 * 4, IDS = 5 * 4, ROWS = 5 * 8 * 4 };

static fixture begin(void)
{
    fixture f = {.entries = {test_entry("table", TRD_F32, TRD__SHAPE(100, 8)),
                             test_entry("ids", TRD_I32, TRD__SHAPE(5)),
                             test_entry("x", TRD_F32, TRD__SHAPE(5, 8)),
                             test_entry("y", TRD_F32, TRD__SHAPE(5, 8))}};
    assert_int_equal(trd__program_create("traffic", &f.p), TRD_OK);
    f.slot = trd__program_slot(f.p, "state", TRD__UPDATE, f.entries, 4);
    f.table = trd__program_input(f.p, f.slot, 0);
    f.ids = trd__program_input(f.p, f.slot, 1);
    f.x = trd__program_input(f.p, f.slot, 2);
    return f;
}

static void expect_traffic(fixture *f, int entry, trd_value value, uint64_t read, uint64_t written)
{
    trd__program_output(f->p, f->slot, entry, value);
    trd__backend *backend = test_backend(2);
    trd__executable *executable = test_compile(backend, f->p, false);
    trd__memory_report report = backend->table->memory(executable);
    assert_int_equal(report.bytes_read, read);
    assert_int_equal(report.bytes_written, written);
    backend->table->executable_free(backend, executable);
    trd__backend_free(backend);
    trd__program_free(f->p);
}

static void rows_by_index(void **state)
{
    (void)state;
    fixture f = begin();
    expect_traffic(&f, 3, trd_gather_rows(f.p->builder, f.table, f.ids), ROWS + IDS, ROWS);
    f = begin(); /* a table from zero: all of it is written */
    expect_traffic(&f, 0, trd_scatter_add_rows(f.p->builder, f.ids, f.x, 100), ROWS + IDS, TABLE);
    f = begin(); /* added in place: only its rows */
    trd_value more = trd_scatter_add_rows(f.p->builder, f.ids, f.x, 100);
    expect_traffic(&f, 0, trd_accumulate(f.p->builder, f.table, more), 2 * ROWS + IDS, ROWS);
}

static void parts_and_groups(void **state)
{
    (void)state;
    fixture f = begin();
    trd_value part = trd_slice(f.p->builder, f.table, 1, 2, 5); /* no view: columns */
    expect_traffic(&f, 3, trd_pad(f.p->builder, trd_slice(f.p->builder, part, 0, 0, 5), 1, 0, 5, 0),
                   100 * 3 * 4 + 5 * 3 * 4, 100 * 3 * 4 + ROWS);
    f = begin(); /* one pass: x is read once however often it is used */
    trd_value twice = trd_add(f.p->builder, f.x, f.x);
    expect_traffic(&f, 3, trd_mul(f.p->builder, trd_exp(f.p->builder, twice), f.x), ROWS, ROWS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_by_index), cmocka_unit_test(parts_and_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
