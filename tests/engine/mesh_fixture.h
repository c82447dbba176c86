/* What the tests of engines over meshes of four devices share: engines, payloads and comparisons with one
 * device. */
#ifndef TESTS_ENGINE_MESH_FIXTURE_H
#define TESTS_ENGINE_MESH_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/shape.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/program.h"
#include "support/scratch.h"

enum { ROWS = 8, LENGTH = TEST_LENGTH, CELLS = ROWS * LENGTH, MICRO = 3, STEPS = 2 };

typedef struct mesh {
    const char *name;
    trd_mesh_options options;
    bool scanned;
    const char *optimizer; /* NULL: adamw */
} mesh;

static const mesh one = {.name = "one device"};

static inline trd_engine *engine_on(const mesh *m, const char *folder, const char *backend)
{
    trd_engine_options o = test_options();
    o.backend = backend;
    o.rows = ROWS;
    o.gradient_clipping_threshold = 1.0;
    o.optimizer.type = m->optimizer ? m->optimizer : "adamw";
    o.optimizer.eps = 1e-3; /* so that a gradient's last bits do not decide the sign of its step */
    o.mesh = m->options;
    o.scan_layers = m->scanned;
    o.checkpoint_directory = folder;
    o.async_checkpointing = false;
    return test_engine(&o);
}

typedef struct payload {
    trd_batch batch;
    int32_t tokens[CELLS], segments[CELLS];
    float weights[CELLS];
} payload;

/* Packed rows, one of them left-padded and in number 0 of a step one that is all padding. Number 1 has no
 * weighted token, number 2 fewer rows. */
static inline const trd_batch *fill(payload *p, int step, int micro)
{
    uint64_t seed = (uint64_t)(step * MICRO + micro + 1);
    for (int i = 0; i < CELLS; i++) {
        p->tokens[i] = (int32_t)trd__rng_below(seed, 0, (uint64_t)i, TEST_VOCAB);
        int row = i / LENGTH, t = i % LENGTH;
        bool padding = (micro == 0 && row == 1) || (row == 2 && t < 3) || t >= 10 + row % 3;
        p->segments[i] = padding ? 0 : t < 5 ? 1 : 2;
        p->weights[i] = micro == 1 ? 0.0f : (float)trd__rng_below(seed, 1, (uint64_t)i, 3);
    }
    p->batch = (trd_batch){.rows = micro == 2 ? ROWS - 3 : ROWS,
                           .length = LENGTH,
                           .token_ids = p->tokens,
                           .segment_ids = p->segments,
                           .loss_weights = p->weights,
                           .position = seed};
    return &p->batch;
}

static inline void feed(trd_engine *engine, int step, int begin, int end)
{
    payload p;
    for (int i = begin; i < end; i++) OK(trd_engine_fwd_bwd(engine, fill(&p, step, i)));
}

static inline float *read_floats(trd_view view, int i, size_t *count)
{
    trd_array array = trd_view_describe(view, i);
    *count = (size_t)trd__shape_count(&array.shape);
    float *values = malloc(*count * sizeof *values + 1);
    assert_non_null(values);
    OK(trd_view_read(view, i, values));
    return values;
}

/* Relative L2 of each float32 array. */
static inline void expect_near(const char *what, trd_view expected, trd_view found, double tolerance)
{
    for (int i = 0; i < trd_view_count(expected); i++) {
        if (trd_view_describe(expected, i).dtype != TRD_F32) continue;
        size_t count;
        float *x = read_floats(expected, i, &count), *y = read_floats(found, i, &count);
        double off = 0, norm = 0;
        for (size_t k = 0; k < count; k++) {
            off += pow((double)x[k] - (double)y[k], 2);
            norm += pow((double)x[k], 2);
        }
        free(x);
        free(y);
        if (!(sqrt(off) <= tolerance * sqrt(norm)))
            fail_msg("%s: %s is off by %g of %g", what, trd_view_describe(expected, i).name, sqrt(off),
                     sqrt(norm));
    }
}

static inline void expect_metric(const char *what, trd_engine *expected, trd_engine *found, const char *name,
                                 double tolerance)
{
    double x = test_metric(expected, name), y = test_metric(found, name);
    if (!(fabs(x - y) <= tolerance * fabs(x))) fail_msg("%s: %s expected %.9g, found %.9g", what, name, x, y);
}

static inline void expect_same_step(const char *what, trd_engine *expected, trd_engine *found)
{
    expect_metric(what, expected, found, "loss", 1e-6);
    expect_metric(what, expected, found, "total_weights", 0);
    expect_metric(what, expected, found, "gradient_norm", 1e-5);
    expect_near(what, trd_engine_params(expected), trd_engine_params(found), 1e-5);
}

static inline double evaluate(trd_engine *engine)
{
    payload p;
    OK(trd_engine_eval_begin(engine));
    for (int i = 0; i < MICRO; i++) OK(trd_engine_eval_step(engine, fill(&p, STEPS, i)));
    OK(trd_engine_eval_end(engine));
    return test_eval_metric(engine, "loss");
}

static inline void agrees_with_one_device(const mesh *m)
{
    const mesh single = {.name = one.name, .optimizer = m->optimizer};
    trd_engine *expected = engine_on(&single, NULL, "pjrt"), *found = engine_on(m, NULL, "pjrt");
    payload p;
    for (int step = 0; step < STEPS; step++) {
        feed(expected, step, 0, MICRO);
        feed(found, step, 0, MICRO);
        trd_view g = trd_engine_gradients(expected), h = trd_engine_gradients(found);
        expect_near(m->name, g, h, 1e-5);
        assert_true(test_double(g, "denominator") == test_double(h, "denominator"));
        assert_true(test_double(h, "nonempty_micro_batches") == MICRO - 1);
        OK(trd_engine_update(expected));
        OK(trd_engine_update(found));
        expect_same_step(m->name, expected, found);
    }
    double loss = evaluate(expected), other = evaluate(found);
    if (!(fabs(loss - other) <= 1e-5 * fabs(loss)))
        fail_msg("%s: evaluation expected %.9g, found %.9g", m->name, loss, other);
    float x[CELLS], y[CELLS];
    const size_t bytes = sizeof(float) * (ROWS - 3) * LENGTH;
    OK(trd_engine_fwd_only(expected, trd_forward_token_logprobs, NULL, fill(&p, 9, 2), x, bytes));
    OK(trd_engine_fwd_only(found, trd_forward_token_logprobs, NULL, &p.batch, y, bytes));
    for (int i = 0; i < (ROWS - 3) * LENGTH; i++) assert_true(fabsf(x[i] - y[i]) < 1e-4f);
    OK(trd_engine_close(expected));
    OK(trd_engine_close(found));
}

#endif
