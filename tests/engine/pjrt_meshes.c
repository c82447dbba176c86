/* Training on meshes of four devices against one device, on the same backend: losses, gradient norms and the
 * parameters after several steps of ragged micro-batches, in both shard modes, with gradients reduced in
 * every micro-batch or once by the update, and with optimizer state split over data. By day a few of the
 * ways. */
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
#include "support/engine.h"
#include "support/nightly.h"

enum { ROWS = 4, LENGTH = 12, STEPS = 3, MICRO = 2, RUNS = STEPS * MICRO };

typedef struct way {
    const char *name;
    trd_mesh_axes ici;
    trd_shard_mode mode;
    bool defer, over_data, scan, day;
} way;

#define WAYS(text, ...)                                                                                      \
    {text ", explicit", {__VA_ARGS__}, TRD_SHARD_EXPLICIT, false, false, false, false},                      \
        {text ", auto, scanned", {__VA_ARGS__}, TRD_SHARD_AUTO, false, false, true, false},                  \
    {                                                                                                        \
        text ", explicit, scanned", {__VA_ARGS__}, TRD_SHARD_EXPLICIT, false, false, true, false             \
    }

static const way ways[] = {
    {"data=4, auto", {.data = 4}, TRD_SHARD_AUTO, false, false, false, false},
    WAYS("data=4", .data = 4),
    {"fsdp=4, auto", {.fsdp = 4}, TRD_SHARD_AUTO, false, false, false, false},
    WAYS("fsdp=4", .fsdp = 4),
    {"data=2 fsdp=2, auto", {.data = 2, .fsdp = 2}, TRD_SHARD_AUTO, false, false, false, false},
    WAYS("data=2 fsdp=2", .data = 2, .fsdp = 2),
    {"data=2 tensor=2, auto", {.data = 2, .tensor = 2}, TRD_SHARD_AUTO, false, false, false, false},
    WAYS("data=2 tensor=2", .data = 2, .tensor = 2),
    {"data=4, deferred", {.data = 4}, TRD_SHARD_AUTO, true, false, false, false},
    {"data=2 fsdp=2, deferred, explicit",
     {.data = 2, .fsdp = 2},
     TRD_SHARD_EXPLICIT,
     true,
     false,
     false,
     false},
    {"data=2 tensor=2, deferred", {.data = 2, .tensor = 2}, TRD_SHARD_AUTO, true, false, false, false},
    {"data=4, optimizer over data", {.data = 4}, TRD_SHARD_AUTO, false, true, false, false},
    {"data=2 fsdp=2, both, scanned", {.data = 2, .fsdp = 2}, TRD_SHARD_AUTO, true, true, true, true},
    {"data=2 tensor=2, both, explicit",
     {.data = 2, .tensor = 2},
     TRD_SHARD_EXPLICIT,
     true,
     true,
     false,
     false},
};
enum { WAY_COUNT = sizeof ways / sizeof *ways };

typedef struct outcome {
    double loss[STEPS], norm[STEPS], evaluation;
    float *parameters;
    size_t count;
} outcome;

typedef struct rows {
    trd_batch batch;
    int32_t tokens[ROWS * LENGTH], segments[ROWS * LENGTH];
    float weights[ROWS * LENGTH];
} rows;

/* Packed rows of several lengths, left-padded ones and, in every second batch, one that is all padding; every
 * third batch has a row less. */
static const trd_batch *fill(rows *r, uint64_t seed)
{
    for (int row = 0; row < ROWS; row++) {
        bool empty = seed % 2 && row == 1;
        int begin = row == 2 ? 3 : 0, end = LENGTH - (int)trd__rng_below(seed, 101, (uint64_t)row, 5);
        for (int t = 0; t < LENGTH; t++) {
            int i = row * LENGTH + t;
            r->tokens[i] = (int32_t)trd__rng_below(seed, 0, (uint64_t)i, TEST_VOCAB);
            r->segments[i] = empty || t < begin || t >= end ? 0 : t < 6 ? 1 : 2;
            r->weights[i] = trd__rng_below(seed, 1, (uint64_t)i, 4) ? 1.0f : 0.0f;
        }
    }
    r->batch = (trd_batch){.rows = seed % 3 ? ROWS : ROWS - 1,
                           .length = LENGTH,
                           .token_ids = r->tokens,
                           .segment_ids = r->segments,
                           .loss_weights = r->weights,
                           .position = seed};
    return &r->batch;
}

static void keep_parameters(trd_engine *engine, outcome *o)
{
    size_t bytes;
    o->parameters = (float *)(void *)test_state(trd_engine_params(engine), &bytes);
    o->count = bytes / sizeof(float);
}

static void train(const way *w, outcome *o)
{
    trd_engine_options options = test_adamw();
    options.backend = "pjrt";
    options.rows = ROWS;
    options.length = LENGTH;
    options.scan_layers = w->scan;
    options.mesh = (trd_mesh_options){.ici = w->ici,
                                      .shard_mode = w->mode,
                                      .defer_grad_reduction = w->defer,
                                      .shard_optimizer_over_data = w->over_data};
    trd_engine *engine = test_engine(&options);
    rows r;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < MICRO; i++)
            OK(trd_engine_fwd_bwd(engine, fill(&r, (uint64_t)(step * MICRO + i))));
        OK(trd_engine_update(engine));
        o->loss[step] = test_metric(engine, "loss");
        o->norm[step] = test_metric(engine, "gradient_norm");
    }
    OK(trd_engine_eval_begin(engine));
    OK(trd_engine_eval_step(engine, fill(&r, 100)));
    OK(trd_engine_eval_end(engine));
    o->evaluation = test_eval_metric(engine, "loss");
    keep_parameters(engine, o);
    OK(trd_engine_close(engine));
}

static void expect_close(const way *w, const char *what, int step, double expected, double found,
                         double limit)
{
    if (!(fabs(found - expected) <= limit * fabs(expected)))
        fail_msg("%s: %s of step %d: expected %.9g, found %.9g", w->name, what, step, expected, found);
}

static void trains_as_one_device(void **state)
{
    if (!getenv("PJRT_PLUGIN_LIBRARY_PATH")) {
        print_message("no plugin: run tools/fetch-pjrt or set PJRT_PLUGIN_LIBRARY_PATH\n");
        skip();
    }
    outcome one[2] = {{.count = 0}}; /* on one device, not scanned and scanned */
    for (int i = 0; i < WAY_COUNT; i++) {
        const way *w = &ways[i];
        outcome mesh, *expected = &one[w->scan];
        if (*state ? strcmp(*state, w->name) != 0 : !w->day && !nightly()) continue;
        print_message("%s\n", w->name);
        if (!expected->count) train(&(way){.scan = w->scan}, expected);
        train(w, &mesh);
        for (int s = 0; s < STEPS; s++) {
            expect_close(w, "loss", s, expected->loss[s], mesh.loss[s], 1e-5);
            expect_close(w, "gradient norm", s, expected->norm[s], mesh.norm[s], 1e-5);
        }
        expect_close(w, "evaluation", STEPS, expected->evaluation, mesh.evaluation, 1e-5);
        assert_int_equal(mesh.count, expected->count);
        double off = 0, norm = 0;
        for (size_t k = 0; k < mesh.count; k++) {
            off += pow((double)mesh.parameters[k] - (double)expected->parameters[k], 2);
            norm += pow((double)expected->parameters[k], 2);
        }
        expect_close(w, "parameters", STEPS, sqrt(norm), sqrt(norm) + sqrt(off), 1e-5);
        free(mesh.parameters);
    }
    for (int scan = 0; scan < 2; scan++) free(one[scan].parameters);
}

/* An argument: the name of the only way to test. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(trains_as_one_device, argc > 1 ? argv[1] : NULL)};
    return cmocka_run_group_tests_name("engine/pjrt_meshes", tests, NULL, NULL);
}
