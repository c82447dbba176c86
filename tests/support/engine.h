/* Small engines for tests: a llama of two layers with random weights, and a toy whose loss is plain algebra.
 * A failure fails the test with the library's message. */
#ifndef TRD_TESTS_SUPPORT_ENGINE_H
#define TRD_TESTS_SUPPORT_ENGINE_H

#include <treadle/plan.h>

#include "nn/model.h"

enum { TEST_ROWS = 2, TEST_LENGTH = 12, TEST_VOCAB = 40 };

#define OK(call) test_ok((call), #call, __FILE__, __LINE__)
void test_ok(trd_status status, const char *call, const char *file, int line);

/* Rows 2, length 12, sgd with a constant rate of 0.1, no clipping, one thread. */
trd_engine_options test_options(void);
trd_engine_options test_adamw(void);
trd_model *test_llama(void); /* the engine takes it over */
trd_model *test_llama_of(int vocab);
trd_engine *test_engine(const trd_engine_options *options); /* with test_llama */

/* A batch with its own storage, reproducible from seed: packed segments, some padding, weights 0 and 1. */
typedef struct test_batch {
    trd_batch batch;
    int32_t tokens[TEST_ROWS * TEST_LENGTH], segments[TEST_ROWS * TEST_LENGTH];
    float weights[TEST_ROWS * TEST_LENGTH];
} test_batch;
const trd_batch *test_batch_fill(test_batch *b, uint64_t seed);

/* The toy: named parameters without a forward pass of their own, and rows of inputs in the extra array "x".
 */
typedef struct test_leaf {
    const char *name;
    int64_t size;
    unsigned flags;
} test_leaf;
trd_model *test_toy(const test_leaf *leaves, int count);

/* Whole state of a view, end to end; *bytes may be NULL. Free with free. */
unsigned char *test_state(trd_view view, size_t *bytes);
void test_same_state(trd_view view, const unsigned char *expected);
void test_expect_same(trd_engine *a, trd_engine *b); /* parameters and optimizer, to the bit */
/* A metric of the newest step (or evaluation), flushing; fails when it is not there. */
double test_metric(trd_engine *engine, const char *name);
double test_eval_metric(trd_engine *engine, const char *name);
float test_float(trd_view view, const char *name, size_t i); /* element i of an f32 entry */
double test_double(trd_view view, const char *name);         /* an f64 scalar */

#endif
