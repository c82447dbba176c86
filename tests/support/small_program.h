/* A small program for tests, run once and thrown away: inputs in slot 0, results in slot 1, gradients in
 * slot 2. Dimensions are named as support/mesh.h says. Every failure fails the running cmocka test with the
 * library's message. */
#ifndef TRD_TESTS_SMALL_PROGRAM_H
#define TRD_TESTS_SMALL_PROGRAM_H

#include "backend/backend.h"

enum { SMALL_MAX = 24 };

/* A host tensor; data is row-major in dtype and belongs to the struct. */
typedef struct small_tensor {
    const char *name;
    trd_dtype dtype;
    trd_shape shape;
    void *data;
} small_tensor;

/* Zeroed data; release with small_tensor_free. */
small_tensor small_tensor_make(const char *name, trd_dtype dtype, trd_shape shape);
void small_tensor_free(small_tensor *t);
size_t small_tensor_count(const small_tensor *t);
size_t small_tensor_bytes(const small_tensor *t);

typedef struct small_program {
    trd__program *program;
    small_tensor inputs[SMALL_MAX];
    trd_value values[SMALL_MAX]; /* the inputs as values */
    int input_count;
    small_tensor results[SMALL_MAX]; /* filled by small_program_run */
    trd_value outputs[SMALL_MAX];
    int result_count;
    small_tensor gradients[SMALL_MAX]; /* in: what the accumulators hold before the run; out: after it */
    trd_value accumulated[SMALL_MAX];
    int gradient_count;
} small_program;

/* Starts a program that reads inputs, whose data it takes over. */
void small_program_begin(small_program *p, const small_tensor *inputs, int input_count);
trd_builder *small_program_builder(small_program *p);
void small_program_result(small_program *p, const char *name, trd_value v);
/* Gradients of loss by input numbers `of`. accumulators[i] (data taken over) is what gradient i is added to,
 * with NULL data: a constant 0 of that dtype. Forward results follow merged ops by themselves. */
void small_program_differentiate(small_program *p, trd_value loss, const int *of, small_tensor *accumulators,
                                 int count);
/* Binds outputs: after this the graph may be rewritten by passes. */
void small_program_finish(small_program *p);
/* Compiles and runs once; may be called again after inputs or gradients changed. */
void small_program_run(small_program *p, trd__backend *backend, bool reference_kernels);
void small_program_end(small_program *p);

/* An own backend of the named instruction set (NULL: the best) and thread count. */
trd__backend *small_backend(const char *isa, int threads);
/* One of XLA, through the plugin that PJRT_PLUGIN_LIBRARY_PATH names, on a mesh; NULL: on one device. */
trd__backend *small_backend_pjrt(const trd__placement *placement);

/* Fails the test with the library's message unless status is TRD_OK. */
void expect_ok(trd_status status, const char *doing);

#endif
