/* How a backend multiplies bfloat16: as it was told, or as a probe found faster, once for all its programs.
 */
#include <dirent.h>
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <treadle/status.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/shape.h"
#include "support/program.h"

enum { ROWS = 72, COLUMNS = 96, DEPTH = 128, ELEMENTS = ROWS * COLUMNS };

/* Lines that tell of the choice. */
static void count_choices(void *context, trd_log_level level, const char *line)
{
    (void)level;
    if (strstr(line, "products of bfloat16")) ++*(int *)context;
}

static trd__backend *backend_of(const char *way, const char *isa, int *choices)
{
    trd__backend *backend = NULL;
    trd__backend_options options = {
        .name = "cpu", .threads = 1, .cpu_isa = isa, .cpu_bf16 = way, .log = {count_choices, choices}};
    assert_int_equal(trd__backend_create(&options, &backend), TRD_OK);
    return backend;
}

static trd__program *product_of(trd_dtype dtype)
{
    trd__program *p;
    assert_int_equal(trd__program_create("product", &p), TRD_OK);
    trd__entry inputs[] = {test_entry("x", dtype, TRD__SHAPE(ROWS, DEPTH)),
                           test_entry("y", dtype, TRD__SHAPE(DEPTH, COLUMNS))};
    trd__entry result = test_entry("z", dtype, TRD__SHAPE(ROWS, COLUMNS));
    int slot = trd__program_slot(p, "inputs", TRD__READ, inputs, 2);
    trd_value z = trd_matmul(p->builder, trd__program_input(p, slot, 0), trd__program_input(p, slot, 1),
                             false, false, dtype);
    trd__program_output(p, trd__program_slot(p, "results", TRD__WRITE, &result, 1), 0, z);
    return p;
}

/* The kernel that a backend takes for the product; its result to z unless that is NULL. */
static const char *kernel_of(trd__backend *backend, const trd__program *p, double *z)
{
    trd__executable *executable = NULL;
    if (backend->table->compile(backend, p, NULL, &executable)) return NULL;
    const char *name = executable->steps[0].kernel->name;
    if (z) {
        trd__set *sets[] = {test_set(backend, &p->slots[0]), test_set(backend, &p->slots[1])};
        test_fill(backend, sets[0], 0, 1);
        test_fill(backend, sets[0], 1, 2);
        assert_int_equal(backend->table->execute(backend, executable, sets, NULL), TRD_OK);
        double *result = test_read(backend, sets[1], 0);
        memcpy(z, result, ELEMENTS * sizeof *z);
        trd__free(result);
        for (int i = 0; i < 2; i++) backend->table->set_free(backend, sets[i]);
    }
    backend->table->executable_free(backend, executable);
    return name;
}

static int thread_count(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* The caller's setting stays what it is, and the library starts no threads of its own in a product. */
static void openmp_is_left_alone(void **state)
{
    (void)state;
    static const trd__bf16_way ways[] = {TRD__BF16_AUTO, TRD__BF16_NATIVE};
    trd__bf16 x[DEPTH * ROWS] = {0}, y[DEPTH * COLUMNS] = {0};
    float z[ELEMENTS] = {0};
    int before = omp_get_max_threads();
    if (trd__cpu_detect() < TRD__ISA_AVX512) skip();
    omp_set_num_threads(3);
    for (int i = 0; i < 2; i++) {
        trd__bf16_product *product;
        assert_int_equal(trd__bf16_product_choose(ways[i], TRD__ISA_AVX512, NULL, &product), TRD_OK);
        assert_int_equal(omp_get_max_threads(), 3);
        int threads = thread_count();
        if (product)
            assert_true(trd__bf16_product_run(product, false, false, ROWS, COLUMNS, DEPTH, x, DEPTH, y,
                                              COLUMNS, true, z, COLUMNS));
        assert_int_equal(thread_count(), threads);
        trd__bf16_product_free(product);
        omp_set_num_threads(3); /* a product sets its thread's, which is the pool's elsewhere */
    }
    omp_set_num_threads(before);
}

static void both_ways_agree(void **state)
{
    (void)state;
    double widened[ELEMENTS], native[ELEMENTS], difference = 0, size = 0;
    int choices = 0;
    trd__program *p = product_of(TRD_BF16);
    trd__backend *widens = backend_of("widen", NULL, &choices), *asks = backend_of("native", NULL, &choices);
    assert_string_equal(kernel_of(widens, p, widened), "gemm");
    const char *name = kernel_of(asks, p, native);
    if (name || trd__cpu_detect() == TRD__ISA_AVX512) {
        assert_non_null(name);
        assert_string_equal(name, "bf16");
        for (int i = 0; i < ELEMENTS; i++) {
            difference += (widened[i] - native[i]) * (widened[i] - native[i]);
            size += widened[i] * widened[i];
        }
        assert_true(size > 0);
        assert_true(sqrt(difference / size) < 4e-3);
    } else {
        assert_non_null(strstr(trd_error_message(), "TRD_CPU_BF16=widen"));
    }
    assert_int_equal(choices, 0); /* nothing was measured */
    trd__backend_free(asks);
    trd__backend_free(widens);
    trd__program_free(p);
}

static void measures_once_and_only_for_bf16(void **state)
{
    (void)state;
    int choices = 0;
    bool can_choose = trd__cpu_has_bf16() && trd__cpu_detect() == TRD__ISA_AVX512;
    trd__program *wide = product_of(TRD_F32), *narrow = product_of(TRD_BF16);
    trd__backend *backend = backend_of("auto", NULL, &choices);
    assert_string_equal(kernel_of(backend, wide, NULL), "gemm");
    assert_int_equal(choices, 0);
    const char *first = kernel_of(backend, narrow, NULL);
    assert_true(!strcmp(first, "gemm") || (can_choose && !strcmp(first, "bf16")));
    assert_int_equal(choices, can_choose);
    assert_string_equal(kernel_of(backend, narrow, NULL), first);
    assert_int_equal(choices, can_choose);
    trd__backend_free(backend);
    choices = 0;
    backend = backend_of("auto", "baseline", &choices);
    assert_string_equal(kernel_of(backend, narrow, NULL), "gemm");
    assert_int_equal(choices, 0);
    trd__backend_free(backend);
    trd__program_free(narrow);
    trd__program_free(wide);
}

static void refuses_another_name(void **state)
{
    (void)state;
    trd__backend *backend;
    trd__backend_options options = {.name = "cpu", .cpu_bf16 = "amx"};
    assert_int_equal(trd__backend_create(&options, &backend), TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "expected auto, native or widen, found \"amx\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(openmp_is_left_alone), cmocka_unit_test(both_ways_agree),
        cmocka_unit_test(measures_once_and_only_for_bf16), cmocka_unit_test(refuses_another_name)};
    return cmocka_run_group_tests_name("backend/bf16_product", tests, NULL, NULL);
}
