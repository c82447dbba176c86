/* What a fuzz target is: one function over bytes, which aborts when a property does not hold. Built with
 * tests/fuzz/driver.c it runs mutations of its corpus under any compiler; with clang's -fsanitize=fuzzer the
 * same function is libFuzzer's (cmake -DTRD_LIBFUZZER=ON -DCMAKE_C_COMPILER=clang). */
#ifndef TRD_TESTS_FUZZ_H
#define TRD_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The bytes as a file without touching a disk: a path under /proc/self/fd. Close *fd when done. */
const char *fuzz_file(const uint8_t *data, size_t bytes, int *fd);

/* Aborts with the text when a property does not hold. */
void fuzz_require(int holds, const char *property);

#endif
