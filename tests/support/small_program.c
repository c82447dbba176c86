/* Small programs from building to results; see the header. */
#include "support/small_program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "autodiff/autodiff.h"
#include "base/shape.h"
#include "graph/passes.h"
#include "support/mesh.h"

#include <treadle/ops.h>

void expect_ok(trd_status status, const char *doing)
{
    if (status != TRD_OK) fail_msg("%s: %s: %s", doing, trd_status_text(status), trd_error_message());
}

small_tensor small_tensor_make(const char *name, trd_dtype dtype, trd_shape shape)
{
    small_tensor t = {name, dtype, shape, NULL};
    t.data = calloc(small_tensor_bytes(&t) + 1, 1);
    assert_non_null(t.data);
    return t;
}

void small_tensor_free(small_tensor *t)
{
    free(t->data);
    t->data = NULL;
}

size_t small_tensor_count(const small_tensor *t)
{
    return (size_t)trd__shape_count(&t->shape);
}

size_t small_tensor_bytes(const small_tensor *t)
{
    return small_tensor_count(t) * trd_dtype_bytes(t->dtype);
}

static trd__entry entry_of(const small_tensor *t)
{
    trd__entry entry = {.name = t->name, .dtype = t->dtype, .shape = t->shape};
    test_mesh_axes(&entry);
    return entry;
}

static int add_slot(small_program *p, const char *name, trd__access access, const small_tensor *tensors,
                    int count)
{
    trd__entry entries[SMALL_MAX];
    for (int i = 0; i < count; i++) entries[i] = entry_of(&tensors[i]);
    return trd__program_slot(p->program, name, access, entries, count);
}

void small_program_begin(small_program *p, const small_tensor *inputs, int input_count)
{
    *p = (small_program){.input_count = input_count};
    expect_ok(trd__program_create("small", &p->program), "create a program");
    memcpy(p->inputs, inputs, (size_t)input_count * sizeof *inputs);
    int slot = add_slot(p, "inputs", TRD__READ, inputs, input_count);
    for (int i = 0; i < input_count; i++) p->values[i] = trd__program_input(p->program, slot, i);
}

trd_builder *small_program_builder(small_program *p)
{
    return p->program->builder;
}

void small_program_result(small_program *p, const char *name, trd_value v)
{
    expect_ok(trd_builder_status(p->program->builder), "build");
    assert_true(p->result_count < SMALL_MAX);
    p->results[p->result_count] = small_tensor_make(name, trd_value_dtype(v), trd_value_shape(v));
    p->outputs[p->result_count++] = v;
}

void small_program_differentiate(small_program *p, trd_value loss, const int *of, small_tensor *accumulators,
                                 int count)
{
    trd_builder *b = p->program->builder;
    trd__gradient gradients[SMALL_MAX];
    bool adds = count > 0 && accumulators[0].data;
    memcpy(p->gradients, accumulators, (size_t)count * sizeof *accumulators);
    p->gradient_count = count;
    int slot = add_slot(p, "gradients", adds ? TRD__UPDATE : TRD__WRITE, accumulators, count);
    for (int i = 0; i < count; i++) {
        if (!adds)
            p->gradients[i] = small_tensor_make("gradient", accumulators[i].dtype, accumulators[i].shape);
        trd_value accumulator = adds ? trd__program_input(p->program, slot, i)
                                     : trd_constant_fill(b, accumulators[i].dtype, accumulators[i].shape, 0);
        gradients[i] = (trd__gradient){.of = p->values[of[i]], .accumulator = accumulator};
    }
    expect_ok(trd__autodiff(b, loss, gradients, count), "differentiate");
    for (int i = 0; i < count; i++) p->accumulated[i] = gradients[i].result;
    for (int i = 0; i < p->result_count; i++) p->outputs[i] = trd__autodiff_current(b, p->outputs[i]);
}

void small_program_finish(small_program *p)
{
    bool differentiated = p->program->slot_count > 1;
    int slot = add_slot(p, "results", TRD__WRITE, p->results, p->result_count);
    for (int i = 0; i < p->result_count; i++) trd__program_output(p->program, slot, i, p->outputs[i]);
    for (int i = 0; differentiated && i < p->gradient_count; i++)
        trd__program_output(p->program, 1, i, p->accumulated[i]);
    expect_ok(trd_builder_status(p->program->builder), "build");
    expect_ok(trd__verify(p->program), "verify");
}

static trd__set *make_set(trd__backend *backend, const trd__slot *slot, const small_tensor *tensors)
{
    trd__set *set = NULL;
    expect_ok(backend->table->set_create(backend, slot->name, slot->entries, slot->entry_count, &set),
              "create a set");
    for (int i = 0; i < slot->entry_count; i++)
        expect_ok(backend->table->set_write(backend, set, i, tensors[i].data), "write a set");
    return set;
}

void small_program_run(small_program *p, trd__backend *backend, bool reference_kernels)
{
    const trd__backend_table *table = backend->table;
    trd__executable *executable = NULL;
    trd__compile_options options = {.reference_kernels = reference_kernels};
    expect_ok(table->compile(backend, p->program, &options, &executable), "compile");

    int slots = p->program->slot_count, results = slots - 1;
    small_tensor *tensors[3] = {p->inputs, p->gradients, p->gradients};
    tensors[results] = p->results;
    trd__set *sets[TRD__MAX_SLOTS] = {NULL};
    for (int i = 0; i < slots; i++) sets[i] = make_set(backend, &p->program->slots[i], tensors[i]);

    trd__event event = {0};
    expect_ok(table->execute(backend, executable, sets, &event), "execute");
    expect_ok(table->event_wait(backend, event), "run");
    for (int s = 1; s < slots; s++)
        for (int i = 0; i < p->program->slots[s].entry_count; i++)
            expect_ok(table->set_read(backend, sets[s], i, tensors[s][i].data), "read a set");

    for (int i = 0; i < slots; i++) table->set_free(backend, sets[i]);
    table->executable_free(backend, executable);
}

void small_program_end(small_program *p)
{
    for (int i = 0; i < p->input_count; i++) small_tensor_free(&p->inputs[i]);
    for (int i = 0; i < p->result_count; i++) small_tensor_free(&p->results[i]);
    for (int i = 0; i < p->gradient_count; i++) small_tensor_free(&p->gradients[i]);
    trd__program_free(p->program);
    *p = (small_program){0};
}

trd__backend *small_backend(const char *isa, int threads)
{
    trd__backend *backend = NULL;
    trd__backend_options options = {.name = "cpu", .threads = threads, .cpu_isa = isa};
    expect_ok(trd__backend_create(&options, &backend), "create a backend");
    return backend;
}

trd__backend *small_backend_pjrt(const trd__placement *placement)
{
    trd__backend *backend = NULL;
    trd__backend_options options = {.name = "pjrt", .placement = placement};
    expect_ok(trd__backend_create(&options, &backend), "create a backend");
    return backend;
}
