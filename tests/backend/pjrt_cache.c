/* Compiled programs on disk: a second backend loads what the first compiled, with the same results; a damaged
 * file and another module are compiled anew. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/shape.h"
#include "ops/attrs.h"
#include "support/program.h"
#include "support/scratch.h"

typedef struct log_counts {
    int compiled, loaded, warnings;
} log_counts;

static void count_line(void *user, trd_log_level level, const char *line)
{
    log_counts *counts = user;
    counts->compiled += strncmp(line, "compiled ", 9) == 0;
    counts->loaded += strncmp(line, "loaded from the cache ", 22) == 0;
    counts->warnings += level == TRD_LOG_WARNING;
}

/* Adds `step` twice to a state of 1, in a backend of its own. */
static log_counts run(const char *folder, double step)
{
    log_counts counts = {0};
    trd__backend_options options = {.name = "pjrt", .cache_directory = folder, .log = {count_line, &counts}};
    trd__backend *backend;
    if (trd__backend_create(&options, &backend)) fail_msg("%s", trd_error_message());
    trd__program *p;
    assert_int_equal(trd__program_create("count", &p), TRD_OK);
    trd__entry entry = test_entry("n", TRD_F32, TRD__SHAPE(3));
    int slot = trd__program_slot(p, "state", TRD__UPDATE, &entry, 1);
    trd_value more = trd_constant_fill(p->builder, TRD_F32, TRD__SHAPE(3), step);
    trd__program_output(p, slot, 0, trd_add(p->builder, trd__program_input(p, slot, 0), more));
    trd__set *set = test_set(backend, &p->slots[0]);
    trd__executable *executable = test_compile(backend, p, false);
    test_write(backend, set, 0, (double[]){1, 1, 1});
    for (int i = 0; i < 2; i++)
        assert_int_equal(backend->table->execute(backend, executable, &set, NULL), TRD_OK);
    float found[3];
    assert_int_equal(backend->table->set_read(backend, set, 0, found), TRD_OK);
    for (int i = 0; i < 3; i++) assert_true((double)found[i] == 1 + 2 * step);
    assert_true(backend->table->memory(executable).bytes_read == sizeof found);
    backend->table->executable_free(backend, executable);
    backend->table->set_free(backend, set);
    trd__program_free(p);
    trd__backend_free(backend);
    return counts;
}

/* The least program. */
static trd_status compile(const char *flags, const char *dump_folder)
{
    trd__backend *backend;
    trd__executable *executable = NULL;
    trd__backend_options options = {.name = "pjrt", .compile_flags = flags};
    TRD_TRY(trd__backend_create(&options, &backend));
    trd__program *p;
    assert_int_equal(trd__program_create("one", &p), TRD_OK);
    trd__entry entry = test_entry("n", TRD_F32, TRD__SHAPE(3));
    int slot = trd__program_slot(p, "state", TRD__WRITE, &entry, 1);
    trd__program_output(p, slot, 0, trd_constant_fill(p->builder, TRD_F32, TRD__SHAPE(3), 1));
    trd_status status =
        backend->table->compile(backend, p, &(trd__compile_options){.dump_folder = dump_folder}, &executable);
    backend->table->executable_free(backend, executable);
    trd__program_free(p);
    trd__backend_free(backend);
    return status;
}

static bool holds(const char *folder, const char *part)
{
    bool found = false;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (struct dirent *e; (e = readdir(listing));) found = found || strstr(e->d_name, part);
    closedir(listing);
    return found;
}

/* XLA itself must take each kind of value, and say so where it has no such flag. */
static void passes_flags(void **state)
{
    test_need_plugin();
    const char *folder = scratch_path(*state, "dump");
    if (compile("--xla_cpu_enable_fast_math=false --xla_cpu_prefer_vector_width=256 --xla_cpu_max_isa=AVX2",
                folder))
        fail_msg("%s", trd_error_message());
    assert_true(holds(folder, ".one.cpu_after_optimizations.txt"));
    assert_int_not_equal(compile("--xla_tpu_scoped_vmem_limit_kib=1", NULL), TRD_OK);
    assert_non_null(strstr(trd_error_message(), "compile of \"one\": XLA: "));
    assert_non_null(strstr(trd_error_message(), "xla_tpu_scoped_vmem_limit_kib"));
    assert_int_equal(compile("--xla_no_such_flag", NULL), TRD_INVALID_ARGUMENT);
}

static void expect(log_counts found, int compiled, int loaded)
{
    assert_int_equal(found.compiled, compiled);
    assert_int_equal(found.loaded, loaded);
    assert_int_equal(found.warnings, 0);
}

/* Turns over a byte in the middle of the folder's only file. */
static void damage(const char *folder)
{
    const char *path = NULL;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    int files = 0;
    for (struct dirent *e; (e = readdir(listing));) {
        if (strncmp(e->d_name, "program-", 8) != 0) continue;
        path = scratch_path(folder, e->d_name);
        files++;
    }
    closedir(listing);
    assert_int_equal(files, 1);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 200, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, 200, SEEK_SET), 0);
    assert_int_not_equal(fputc(byte ^ 0x55, file), EOF);
    assert_int_equal(fclose(file), 0);
}

static void compiles_once(void **state)
{
    test_need_plugin();
    const char *folder = scratch_path(*state, "cache");
    expect(run(NULL, 1), 1, 0);
    expect(run(folder, 1), 1, 0);
    expect(run(folder, 1), 0, 1);
    damage(folder);
    expect(run(folder, 1), 1, 0);
    expect(run(folder, 1), 0, 1);
    expect(run(folder, 2), 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(compiles_once), cmocka_unit_test(passes_flags)};
    return cmocka_run_group_tests_name("backend/pjrt_cache", tests, scratch_create, scratch_remove);
}
