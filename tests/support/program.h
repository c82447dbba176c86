/* Running small programs in tests: one slot of inputs, one of results, a backend of a chosen kind. */
#ifndef TESTS_SUPPORT_PROGRAM_H
#define TESTS_SUPPORT_PROGRAM_H

#include "backend/backend.h"

/* The backend that the environment's TRD_TEST_BACKEND names, "cpu" when it names none. */
const char *test_backend_name(void);
/* Skips the running test, which is of the CPU backend's own ways, under another backend. */
void test_cpu_only(void);
/* Skips the running test where PJRT_PLUGIN_LIBRARY_PATH names no plugin. */
void test_need_plugin(void);
/* That backend with `threads` workers; fails the test when it cannot be made. */
trd__backend *test_backend(int threads);
trd__backend *test_backend_isa(int threads, const char *isa); /* NULL: the best */
trd__executable *test_compile(trd__backend *backend, const trd__program *program, bool reference);
trd__set *test_set(trd__backend *backend, const trd__slot *slot);
/* An entry by its members; axes are left out but on a mesh. */
trd__entry test_entry(const char *name, trd_dtype dtype, trd_shape shape);
/* Fills entry with reproducible values between -1 and 1 (floats), or below 4 (integers and bool). */
void test_fill(trd__backend *backend, trd__set *set, int entry, uint64_t seed);
/* Reads an entry as doubles; free with trd__free. */
double *test_read(trd__backend *backend, trd__set *set, int entry);
void test_write(trd__backend *backend, trd__set *set, int entry, const double *values);
int64_t test_count(const trd__set *set, int entry);

#endif
