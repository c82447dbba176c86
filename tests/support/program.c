#include "support/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "base/shape.h"
#include "support/mesh.h"

const char *test_backend_name(void)
{
    const char *name = getenv("TRD_TEST_BACKEND");
    return name && *name ? name : "cpu";
}

void test_cpu_only(void)
{
    if (strcmp(test_backend_name(), "cpu") != 0) skip();
}

void test_need_plugin(void)
{
    if (getenv("PJRT_PLUGIN_LIBRARY_PATH")) return;
    print_message("no plugin: run tools/fetch-pjrt or set PJRT_PLUGIN_LIBRARY_PATH\n");
    skip();
}

trd__backend *test_backend(int threads)
{
    return test_backend_isa(threads, NULL);
}

trd__backend *test_backend_isa(int threads, const char *isa)
{
    trd__backend *backend;
    trd__backend_options options = {
        .name = test_backend_name(), .threads = threads, .cpu_isa = isa, .placement = test_placement()};
    trd_status status = trd__backend_create(&options, &backend);
    if (status) fail_msg("backend: %s", trd_error_message());
    return backend;
}

trd__executable *test_compile(trd__backend *backend, const trd__program *program, bool reference)
{
    trd__executable *executable;
    trd__compile_options options = {.reference_kernels = reference};
    trd_status status = backend->table->compile(backend, program, &options, &executable);
    if (status) fail_msg("compile: %s", trd_error_message());
    return executable;
}

trd__set *test_set(trd__backend *backend, const trd__slot *slot)
{
    trd__set *set;
    trd_status status =
        backend->table->set_create(backend, slot->name, slot->entries, slot->entry_count, &set);
    if (status) fail_msg("set: %s", trd_error_message());
    return set;
}

trd__entry test_entry(const char *name, trd_dtype dtype, trd_shape shape)
{
    trd__entry entry = {.name = name, .dtype = dtype, .shape = shape};
    if (test_placement()) test_mesh_axes(&entry);
    return entry;
}

int64_t test_count(const trd__set *set, int entry)
{
    return trd__shape_count(&set->entries[entry].shape);
}

void test_write(trd__backend *backend, trd__set *set, int entry, const double *values)
{
    trd_dtype dtype = set->entries[entry].dtype;
    size_t count = (size_t)test_count(set, entry);
    void *data = trd__alloc(count + 1, trd_dtype_bytes(dtype));
    assert_non_null(data);
    for (size_t i = 0; i < count; i++) trd__store(dtype, data, i, values[i]);
    assert_int_equal(backend->table->set_write(backend, set, entry, data), TRD_OK);
    trd__free(data);
}

void test_fill(trd__backend *backend, trd__set *set, int entry, uint64_t seed)
{
    size_t count = (size_t)test_count(set, entry);
    double *values = trd__alloc(count + 1, sizeof *values);
    assert_non_null(values);
    bool number = trd__dtype_is_float(set->entries[entry].dtype);
    for (size_t i = 0; i < count; i++) {
        double u = trd__rng_uniform(seed, (uint64_t)entry, i);
        values[i] = number ? 2 * u - 1 : (double)(int)(set->entries[entry].dtype == TRD_BOOL ? 2 * u : 4 * u);
    }
    test_write(backend, set, entry, values);
    trd__free(values);
}

double *test_read(trd__backend *backend, trd__set *set, int entry)
{
    trd_dtype dtype = set->entries[entry].dtype;
    size_t count = (size_t)test_count(set, entry);
    void *data = trd__alloc(count + 1, trd_dtype_bytes(dtype));
    double *values = trd__alloc(count + 1, sizeof *values);
    assert_true(data && values);
    if (backend->table->set_read(backend, set, entry, data)) fail_msg("read: %s", trd_error_message());
    for (size_t i = 0; i < count; i++) values[i] = trd__load(dtype, data, i);
    trd__free(data);
    return values;
}
