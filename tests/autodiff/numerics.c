/* A small decoder with shared weights, differentiated end to end on the CPU backend: finite differences in
 * float64, the same bits under every remat policy, and accumulation on top of what is there. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/ops.h>

#include "autodiff/autodiff.h"
#include "base/alloc.h"
#include "base/shape.h"
#include "graph/passes.h"
#include "support/normal.h"
#include "support/program.h"

enum { B = 2, T = 6, V = 11, C = 8, H = 2, G = 1, D = 4, F = 12, LAYERS = 3 };
enum { EMBED, Q, K, VALUE, O, NORM1, NORM2, GATE, UP, DOWN, FINAL, PARAMS };
enum { IDS, SEGMENTS, POSITIONS, TARGETS, WEIGHTS, INPUTS };
enum { SLOT_PARAMS, SLOT_INPUTS, SLOT_GRADIENTS, SLOT_RESULTS, SLOTS };

/* How a program is built. merged: the loss is linear in the log-probabilities, so that op merges with its
 * gradient. */
typedef struct variant {
    trd_dtype dtype;
    int padding; /* token id at padding */
    bool merged, accumulate, remat, reference;
    trd__remat_policy policy;
} variant;

/* dtype of log-probabilities, weights and loss. */
static trd_dtype wide(const variant *how)
{
    return how->dtype == TRD_F64 ? TRD_F64 : TRD_F32;
}

static void parameter_entries(trd_dtype dtype, trd__entry *e)
{
    e[EMBED] = test_entry("embed", dtype, TRD__SHAPE(V, C));
    e[Q] = test_entry("q", dtype, TRD__SHAPE(H * D, C));
    e[K] = test_entry("k", dtype, TRD__SHAPE(G * D, C));
    e[VALUE] = test_entry("v", dtype, TRD__SHAPE(G * D, C));
    e[O] = test_entry("o", dtype, TRD__SHAPE(C, H * D));
    e[NORM1] = test_entry("norm1", dtype, TRD__SHAPE(C));
    e[NORM2] = test_entry("norm2", dtype, TRD__SHAPE(C));
    e[GATE] = test_entry("gate", dtype, TRD__SHAPE(F, C));
    e[UP] = test_entry("up", dtype, TRD__SHAPE(F, C));
    e[DOWN] = test_entry("down", dtype, TRD__SHAPE(C, F));
    e[FINAL] = test_entry("final", dtype, TRD__SHAPE(C));
}

static trd_value split(trd_builder *b, trd_value x, int64_t heads)
{
    return trd_reshape(b, x, TRD__SHAPE(B, T, heads, D));
}

static trd_value block(trd_builder *b, const trd_value *w, const trd_rows *rows, trd_value x)
{
    static const trd_rope_options rope = {.theta = 100};
    trd_value h = trd_rms_norm(b, x, w[NORM1], 1e-5);
    trd_value q = trd_rope(b, split(b, trd_linear(b, h, w[Q]), H), rows, &rope);
    trd_value k = trd_rope(b, split(b, trd_linear(b, h, w[K]), G), rows, &rope);
    trd_value v = split(b, trd_linear(b, h, w[VALUE]), G);
    trd_value mixed = trd_reshape(b, trd_attention(b, q, k, v, rows), TRD__SHAPE(B, T, H * D));
    x = trd_add(b, x, trd_linear(b, mixed, w[O]));
    h = trd_rms_norm(b, x, w[NORM2], 1e-5);
    trd_value fed = trd_swiglu(b, trd_linear(b, h, w[GATE]), trd_linear(b, h, w[UP]));
    return trd_layer_boundary(b, trd_add(b, x, trd_linear(b, fed, w[DOWN])));
}

static trd_value build_loss(trd_builder *b, const trd_value *w, const trd_value *in, bool merged)
{
    trd_rows rows = {.segments = in[SEGMENTS], .positions = in[POSITIONS]};
    trd_value x = trd_gather_rows(b, w[EMBED], in[IDS]);
    for (int i = 0; i < LAYERS; i++) x = block(b, w, &rows, x); /* the same weights: long chains */
    x = trd_rms_norm(b, x, w[FINAL], 1e-5);
    trd_value mask = trd_not_equal(b, in[WEIGHTS], trd_scalar(b, trd_value_dtype(in[WEIGHTS]), 0));
    trd_value logprobs = trd_token_logprobs(b, x, w[EMBED], in[TARGETS], mask, 1.0, NULL);
    if (!merged) logprobs = trd_exp(b, trd_mul(b, logprobs, trd_scalar(b, trd_value_dtype(logprobs), 0.5)));
    return trd_neg(b, trd_sum_all(b, trd_mul(b, logprobs, in[WEIGHTS])));
}

static trd__program *build(const variant *how)
{
    trd__program *p;
    trd__entry params[PARAMS], inputs[INPUTS];
    parameter_entries(how->dtype, params);
    static const char *const names[] = {"ids", "segments", "positions", "targets", "weights"};
    for (int i = 0; i < INPUTS; i++)
        inputs[i] = test_entry(names[i], i == WEIGHTS ? wide(how) : TRD_I32, TRD__SHAPE(B, T));
    trd__entry loss_entry = test_entry("loss", wide(how), trd__shape_scalar());
    assert_int_equal(trd__program_create("numerics", &p), TRD_OK);
    trd__program_slot(p, "params", TRD__READ, params, PARAMS);
    trd__program_slot(p, "inputs", TRD__READ, inputs, INPUTS);
    trd__program_slot(p, "gradients", how->accumulate ? TRD__UPDATE : TRD__WRITE, params, PARAMS);
    trd__program_slot(p, "results", TRD__WRITE, &loss_entry, 1);
    trd_value w[PARAMS], in[INPUTS];
    trd__gradient g[PARAMS];
    for (int i = 0; i < PARAMS; i++) w[i] = trd__program_input(p, SLOT_PARAMS, i);
    for (int i = 0; i < INPUTS; i++) in[i] = trd__program_input(p, SLOT_INPUTS, i);
    trd_value loss = build_loss(p->builder, w, in, how->merged);
    for (int i = 0; i < PARAMS; i++) {
        g[i].of = w[i];
        g[i].accumulator = how->accumulate ? trd__program_input(p, SLOT_GRADIENTS, i)
                                           : trd_constant_fill(p->builder, how->dtype, params[i].shape, 0);
    }
    if (trd__autodiff(p->builder, loss, g, PARAMS)) fail_msg("%s", trd_error_message());
    for (int i = 0; i < PARAMS; i++) trd__program_output(p, SLOT_GRADIENTS, i, g[i].result);
    trd__program_output(p, SLOT_RESULTS, 0, trd__autodiff_current(p->builder, loss));
    if (trd__cse(p)) fail_msg("%s", trd_error_message());
    if (how->remat && trd__remat(p, trd__remat_everywhere(how->policy))) fail_msg("%s", trd_error_message());
    if (trd__verify(p)) fail_msg("%s", trd_error_message());
    return p;
}

/* A program compiled with its sets. */
typedef struct machine {
    trd__backend *backend;
    trd__executable *executable;
    trd__set *sets[SLOTS];
} machine;

static void fill_inputs(machine *m, int padding)
{
    /* Packed segments and padding at the end; a left-padded row. */
    const double pad = padding, values[INPUTS][B * T] = {
                                    [IDS] = {1, 2, 3, 4, 5, pad, pad, pad, 6, 7, 8, 9},
                                    [SEGMENTS] = {1, 1, 1, 2, 2, 0, 0, 0, 1, 1, 1, 1},
                                    [POSITIONS] = {0, 1, 2, 0, 1, 0, 0, 0, 0, 1, 2, 3},
                                    [TARGETS] = {2, 3, 0, 5, 0, 0, 0, 0, 7, 8, 9, 0},
                                    [WEIGHTS] = {1, 0.5, 0, 2, 0, 0, 0, 0, 1, 0, 1.5, 0},
                                };
    for (int i = 0; i < INPUTS; i++) test_write(m->backend, m->sets[SLOT_INPUTS], i, values[i]);
}

static void machine_make(machine *m, const variant *how)
{
    trd__program *p = build(how);
    m->backend = test_backend(2);
    m->executable = test_compile(m->backend, p, how->reference);
    for (int s = 0; s < SLOTS; s++) m->sets[s] = test_set(m->backend, &p->slots[s]);
    trd__program_free(p);
    fill_inputs(m, how->padding);
    for (int i = 0; i < PARAMS; i++) test_fill(m->backend, m->sets[SLOT_PARAMS], i, 3);
}

static void machine_free(machine *m)
{
    m->backend->table->executable_free(m->backend, m->executable);
    for (int s = 0; s < SLOTS; s++) m->backend->table->set_free(m->backend, m->sets[s]);
    trd__backend_free(m->backend);
}

static double machine_run(machine *m)
{
    trd__event event;
    assert_int_equal(m->backend->table->execute(m->backend, m->executable, m->sets, &event), TRD_OK);
    if (m->backend->table->event_wait(m->backend, event)) fail_msg("%s", trd_error_message());
    double *loss = test_read(m->backend, m->sets[SLOT_RESULTS], 0), value = loss[0];
    trd__free(loss);
    return value;
}

/* Loss at parameter i moved by step along direction. */
static double loss_at(machine *m, int i, const double *at, const double *direction, double step)
{
    int64_t count = test_count(m->sets[SLOT_PARAMS], i);
    double *moved = trd__alloc((size_t)count, sizeof *moved);
    assert_non_null(moved);
    for (int64_t j = 0; j < count; j++) moved[j] = at[j] + step * direction[j];
    test_write(m->backend, m->sets[SLOT_PARAMS], i, moved);
    trd__free(moved);
    return machine_run(m);
}

static void check_directions(machine *m)
{
    const double h = 1e-5;
    double *gradients[PARAMS];
    machine_run(m);
    for (int i = 0; i < PARAMS; i++) gradients[i] = test_read(m->backend, m->sets[SLOT_GRADIENTS], i);
    for (int i = 0; i < PARAMS; i++) {
        int64_t count = test_count(m->sets[SLOT_PARAMS], i);
        double *at = test_read(m->backend, m->sets[SLOT_PARAMS], i),
               *direction = trd__alloc((size_t)count, 8);
        double slope = 0;
        assert_non_null(direction);
        for (int64_t j = 0; j < count; j++) {
            direction[j] = test_normal(5, (uint64_t)i, (uint64_t)j);
            slope += direction[j] * gradients[i][j];
        }
        double difference = (loss_at(m, i, at, direction, h) - loss_at(m, i, at, direction, -h)) / (2 * h);
        if (fabs(slope - difference) > 1e-6 * (1 + fabs(slope)))
            fail_msg("parameter %d: slope %.12g, finite difference %.12g", i, slope, difference);
        test_write(m->backend, m->sets[SLOT_PARAMS], i, at);
        trd__free(direction);
        trd__free(at);
    }
    for (int i = 0; i < PARAMS; i++) trd__free(gradients[i]);
}

static void finite_differences_agree(void **state)
{
    (void)state;
    for (int merged = 0; merged < 2; merged++)
        for (int reference = 0; reference < 2; reference++) {
            variant how = {.dtype = TRD_F64, .merged = merged, .reference = reference};
            machine m;
            machine_make(&m, &how);
            check_directions(&m);
            machine_free(&m);
        }
}

/* All gradients and the loss of one run, as stored bytes. */
static unsigned char *run_bytes(const variant *how, size_t *bytes)
{
    machine m;
    machine_make(&m, how);
    machine_run(&m);
    *bytes = 0;
    for (int i = 0; i < PARAMS; i++)
        *bytes += (size_t)test_count(m.sets[SLOT_GRADIENTS], i) * trd_dtype_bytes(how->dtype);
    *bytes += trd_dtype_bytes(wide(how));
    unsigned char *data = trd__calloc(1, *bytes);
    assert_non_null(data);
    size_t at = 0;
    for (int i = 0; i < PARAMS; i++) {
        m.backend->table->set_read(m.backend, m.sets[SLOT_GRADIENTS], i, data + at);
        at += (size_t)test_count(m.sets[SLOT_GRADIENTS], i) * trd_dtype_bytes(how->dtype);
    }
    m.backend->table->set_read(m.backend, m.sets[SLOT_RESULTS], 0, data + at);
    machine_free(&m);
    return data;
}

static void remat_changes_no_bit(void **state)
{
    (void)state;
    static const trd_dtype dtypes[] = {TRD_F32, TRD_BF16, TRD_F64};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (int merged = 0; merged < 2; merged++) {
            variant how = {.dtype = dtypes[d], .merged = merged};
            size_t bytes, again;
            unsigned char *base = run_bytes(&how, &bytes);
            how.remat = true;
            for (int policy = TRD__REMAT_NONE; policy <= TRD__REMAT_FULL; policy++) {
                how.policy = (trd__remat_policy)policy;
                unsigned char *data = run_bytes(&how, &again);
                assert_int_equal(bytes, again);
                assert_memory_equal(base, data, bytes);
                trd__free(data);
            }
            trd__free(base);
        }
}

static void what_padding_holds_changes_no_bit(void **state)
{
    (void)state;
    for (int reference = 0; reference < 2; reference++) {
        variant how = {.dtype = TRD_F32, .merged = true, .reference = reference}, other = how;
        other.padding = V - 1;
        size_t bytes, again;
        unsigned char *data = run_bytes(&how, &bytes), *data_of_other = run_bytes(&other, &again);
        assert_memory_equal(data, data_of_other, bytes);
        trd__free(data);
        trd__free(data_of_other);
    }
}

static void full_remat_needs_less_memory(void **state)
{
    (void)state;
    uint64_t arena[2];
    for (int i = 0; i < 2; i++) {
        variant how = {
            .dtype = TRD_F32, .merged = true, .remat = true, .policy = i ? TRD__REMAT_FULL : TRD__REMAT_NONE};
        machine m;
        machine_make(&m, &how);
        arena[i] = m.backend->table->memory(m.executable).arena_bytes;
        machine_free(&m);
    }
    assert_true(arena[1] < arena[0]);
}

static void accumulation_adds_to_what_is_there(void **state)
{
    (void)state;
    variant first = {.dtype = TRD_F64, .merged = true}, accum = first;
    accum.accumulate = true;
    machine a, b;
    machine_make(&a, &first);
    machine_make(&b, &accum);
    machine_run(&a);
    for (int i = 0; i < PARAMS; i++) test_fill(b.backend, b.sets[SLOT_GRADIENTS], i, 8);
    double *before[PARAMS];
    for (int i = 0; i < PARAMS; i++) before[i] = test_read(b.backend, b.sets[SLOT_GRADIENTS], i);
    machine_run(&b);
    for (int i = 0; i < PARAMS; i++) {
        double *one = test_read(a.backend, a.sets[SLOT_GRADIENTS], i);
        double *sum = test_read(b.backend, b.sets[SLOT_GRADIENTS], i);
        for (int64_t j = 0; j < test_count(a.sets[SLOT_PARAMS], i); j++)
            assert_true(fabs(sum[j] - before[i][j] - one[j]) < 1e-12);
        trd__free(one);
        trd__free(sum);
        trd__free(before[i]);
    }
    machine_free(&a);
    machine_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finite_differences_agree),           cmocka_unit_test(remat_changes_no_bit),
        cmocka_unit_test(what_padding_holds_changes_no_bit),  cmocka_unit_test(full_remat_needs_less_memory),
        cmocka_unit_test(accumulation_adds_to_what_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
