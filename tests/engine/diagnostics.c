/* Diagnostic switches: the slower designs wait and walk where they say, and change no bit of losses,
 * gradients, parameters and programs; those that add or clip in another order stay within rounding. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/shape.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { STEPS = 5, RESUMED = 2, MOST_PROGRAMS = 8 };

/* All that a run leaves behind. */
typedef struct outcome {
    unsigned char *gradients[STEPS], *params, *optimizer, *model_state;
    size_t gradient_bytes, params_bytes, optimizer_bytes, model_state_bytes;
    double metrics[STEPS][8]; /* what follows in a step's record is time */
    double eval_loss[STEPS];
    trd_program_info programs[MOST_PROGRAMS];
    int program_count;
} outcome;

static const trd_diagnostic of_the_host[] = {TRD_DIAGNOSTIC_PUBLISH, TRD_DIAGNOSTIC_STATE,
                                             TRD_DIAGNOSTIC_METRICS_WRITE, TRD_DIAGNOSTIC_THROTTLE_ON};
enum { HOST_SWITCHES = sizeof of_the_host / sizeof *of_the_host };

static void save_and_restore(trd_engine **engine, const trd_engine_options *o)
{
    bool wrote;
    OK(trd_engine_save(*engine, NULL, true, &wrote));
    assert_true(wrote);
    OK(trd_engine_close(*engine));
    *engine = test_engine(o);
    OK(trd_engine_restore(*engine, -1, NULL));
}

/* One step: an evaluation behind its first micro-batch, and at step RESUMED a new engine from a checkpoint.
 */
static void run_step(trd_engine **engine, const trd_engine_options *o, int step, outcome *out)
{
    test_batch b, other;
    for (int i = 0; i < o->gradient_accumulation_steps; i++) {
        OK(trd_engine_fwd_bwd(*engine, test_batch_fill(&b, (uint64_t)(10 * step + i + 1))));
        if (i > 0) continue;
        OK(trd_engine_eval_begin(*engine));
        OK(trd_engine_eval_step(*engine, test_batch_fill(&other, 99)));
        OK(trd_engine_eval_end(*engine));
        out->eval_loss[step] = test_eval_metric(*engine, "loss");
        if (step == RESUMED) save_and_restore(engine, o);
    }
    out->gradients[step] = test_state(trd_engine_gradients(*engine), &out->gradient_bytes);
    OK(trd_engine_update(*engine));
}

static void run(const trd_engine_options *options, void **state, const char *name, outcome *out)
{
    trd_engine_options o = *options;
    const trd_step_metrics *steps;
    int count;
    o.checkpoint_directory = scratch_path(*state, name);
    trd_engine *engine = test_engine(&o);
    for (int step = 0; step < STEPS; step++) run_step(&engine, &o, step, out);
    out->params = test_state(trd_engine_params(engine), &out->params_bytes);
    out->optimizer = test_state(trd_engine_optimizer_state(engine), &out->optimizer_bytes);
    out->model_state = test_state(trd_engine_model_state(engine), &out->model_state_bytes);
    assert_true(out->model_state_bytes > 0); /* the masks of dropout hang on it */
    OK(trd_engine_get_metrics_history(engine, false, &steps, &count));
    assert_int_equal(count, STEPS);
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < 8; i++) out->metrics[s][i] = steps[s].metrics[i].value;
    out->program_count = trd_engine_program_count(engine);
    assert_true(out->program_count <= MOST_PROGRAMS);
    for (int i = 0; i < out->program_count; i++) out->programs[i] = trd_engine_program(engine, i);
    OK(trd_engine_close(engine));
}

static void expect_same_bits(outcome *a, outcome *b)
{
    assert_memory_equal(a->metrics, b->metrics, sizeof a->metrics);
    assert_memory_equal(a->eval_loss, b->eval_loss, sizeof a->eval_loss);
    for (int s = 0; s < STEPS; s++) assert_memory_equal(a->gradients[s], b->gradients[s], a->gradient_bytes);
    assert_memory_equal(a->params, b->params, a->params_bytes);
    assert_memory_equal(a->optimizer, b->optimizer, a->optimizer_bytes);
    assert_memory_equal(a->model_state, b->model_state, a->model_state_bytes);
}

static void expect_same_programs(const outcome *a, const outcome *b)
{
    assert_int_equal(a->program_count, b->program_count);
    for (int i = 0; i < a->program_count; i++) {
        assert_string_equal(a->programs[i].name, b->programs[i].name);
        assert_int_equal(a->programs[i].fingerprint, b->programs[i].fingerprint);
        assert_int_equal(a->programs[i].runs, b->programs[i].runs);
    }
}

static void outcome_free(outcome *out)
{
    for (int s = 0; s < STEPS; s++) free(out->gradients[s]);
    free(out->params);
    free(out->optimizer);
    free(out->model_state);
}

static trd_engine_options arm_options(int micro_batches)
{
    trd_engine_options o = test_adamw();
    o.gradient_accumulation_steps = micro_batches;
    o.num_threads = 2;
    o.dropout_rate = 0.2;
    return o;
}

static void compare_arm(const trd_engine_options *o, void **state, const char *name, outcome *normal)
{
    outcome arm = {0};
    run(o, state, name, &arm);
    expect_same_bits(normal, &arm);
    expect_same_programs(normal, &arm);
    outcome_free(&arm);
}

static void host_switches_change_no_bit(void **state)
{
    char name[64];
    for (int micro = 1; micro <= 3; micro += 2) {
        trd_engine_options o = arm_options(micro), all = o, queue = o;
        outcome normal = {0};
        snprintf(name, sizeof name, "normal-%d", micro);
        run(&o, state, name, &normal);
        assert_true(normal.metrics[0][1] > 0 && normal.metrics[0][1] != normal.metrics[1][1]);
        for (int i = 0; i < HOST_SWITCHES; i++) {
            trd_engine_options one = o;
            one.diagnostics[of_the_host[i]] = all.diagnostics[of_the_host[i]] = true;
            snprintf(name, sizeof name, "switch-%d-%d", i, micro);
            compare_arm(&one, state, name, &normal);
        }
        snprintf(name, sizeof name, "all-%d", micro);
        compare_arm(&all, state, name, &normal);
        for (queue.max_inflight_computations = 1; queue.max_inflight_computations <= 8;
             queue.max_inflight_computations += 7) {
            snprintf(name, sizeof name, "queue-%d-%d", queue.max_inflight_computations, micro);
            compare_arm(&queue, state, name, &normal);
        }
        outcome_free(&normal);
    }
}

/* -- What each switch does -- */

static trd__backend_table counting;
static trd_status (*wait_for_event)(trd__backend *backend, trd__event event);
static int waits;

static trd_status count_wait(trd__backend *backend, trd__event event)
{
    waits++;
    return wait_for_event(backend, event);
}

static void count_waits(trd_engine *engine)
{
    counting = *engine->backend->table;
    wait_for_event = counting.event_wait;
    counting.event_wait = count_wait;
    engine->backend->table = &counting;
    waits = 0;
}

static trd_engine *engine_with(trd_diagnostic which)
{
    trd_engine_options o = test_adamw();
    o.diagnostics[which] = true;
    return test_engine(&o);
}

static int arrays_of(const trd_engine *engine)
{
    int count = 0;
    for (int role = 0; role < TRD__STATE_ROLES; role++) count += engine->layout[role].count;
    return count;
}

static void nothing_is_on_by_default(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *engine = test_engine(&o);
    assert_null(engine->diagnostics);
    assert_null(engine->contribution);
    OK(trd_engine_close(engine));
}

static void calls_wait_for_their_work(void **state)
{
    (void)state;
    test_batch b;
    trd_engine *eager = engine_with(TRD_DIAGNOSTIC_PUBLISH);
    OK(trd_engine_fwd_bwd(eager, test_batch_fill(&b, 1)));
    assert_true(eager->dispatched == 1 && eager->finished == 1 && eager->collected == 0);
    OK(trd_engine_update(eager));
    assert_true(eager->dispatched == 2 && eager->finished == 2);
    OK(trd_engine_close(eager));
    trd_engine *immediate = engine_with(TRD_DIAGNOSTIC_METRICS_WRITE);
    OK(trd_engine_fwd_bwd(immediate, &b.batch));
    assert_true(immediate->collected == 1);
    OK(trd_engine_update(immediate));
    assert_true(immediate->collected == 2 && immediate->metrics.latest.step == 1);
    OK(trd_engine_close(immediate));
}

/* Every array is looked at in every call: one that is not what the layout says stops it. */
static void split_checks_every_array(void **state)
{
    (void)state;
    test_batch b;
    trd_engine *engine = engine_with(TRD_DIAGNOSTIC_STATE);
    trd__set *optimizer = engine->state[TRD__ROLE_OPTIMIZER];
    const trd__entry *entries = optimizer->entries;
    trd__entry *other = malloc(sizeof *other * (size_t)optimizer->entry_count);
    assert_non_null(other);
    memcpy(other, entries, sizeof *other * (size_t)optimizer->entry_count);
    other[3].dtype = TRD_BF16;
    optimizer->entries = other;
    assert_int_equal(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 1)), TRD_INTERNAL);
    expect_message("another dtype or shape");
    expect_message(entries[3].name);
    optimizer->entries = entries;
    OK(trd_engine_fwd_bwd(engine, &b.batch));
    OK(trd_engine_update(engine));
    OK(trd_engine_close(engine));
    free(other);
}

static void throttle_waits_for_every_array(void **state)
{
    (void)state;
    test_batch b;
    trd_engine *engine = engine_with(TRD_DIAGNOSTIC_THROTTLE_ON);
    const trd__backend_table *table = engine->backend->table;
    count_waits(engine);
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 1)));
    test_double(trd_engine_gradients(engine), "denominator"); /* reading waits, the queue has not yet */
    OK(trd_engine_update(engine));
    OK(trd_engine_eval_begin(engine)); /* empties the queue */
    assert_true(waits >= 2 * arrays_of(engine) && waits <= 2 * arrays_of(engine) + 2);
    engine->backend->table = table;
    OK(trd_engine_close(engine));
}

/* -- Those that round otherwise -- */

static void expect_close_gradients(const outcome *a, const outcome *b, double tolerance)
{
    trd_engine_options o = test_adamw();
    trd_engine *engine = test_engine(&o);
    trd_view view = trd_engine_gradients(engine);
    bool differs = false;
    for (int s = 0; s < STEPS; s++) {
        size_t at = 0;
        for (int i = 0; i < trd_view_count(view); i++) {
            trd_array array = trd_view_describe(view, i);
            size_t bytes = (size_t)trd__shape_count(&array.shape) * trd_dtype_bytes(array.dtype);
            double off = 0, norm = 0;
            for (size_t k = 0; array.dtype == TRD_F32 && k < bytes; k += sizeof(float)) {
                float x, y;
                memcpy(&x, a->gradients[s] + at + k, sizeof x);
                memcpy(&y, b->gradients[s] + at + k, sizeof y);
                off += ((double)x - (double)y) * ((double)x - (double)y);
                norm += (double)y * (double)y;
            }
            if (array.dtype == TRD_F32) assert_true(norm > 0 && sqrt(off) < tolerance * sqrt(norm));
            if (array.dtype == TRD_F64 && s == 0)
                assert_memory_equal(a->gradients[s] + at, b->gradients[s] + at, bytes);
            differs |= off > 0;
            at += bytes;
        }
    }
    assert_true(differs); /* or nothing was done another way */
    OK(trd_engine_close(engine));
}

/* A rate of 0 keeps the parameters, so that each step's gradients are those of the same point. */
static void separate_accumulation_is_close(void **state)
{
    trd_engine_options o = arm_options(3);
    o.optimizer.type = "sgd";
    o.schedule.learning_rate = 0;
    outcome fused = {0}, separate = {0};
    run(&o, state, "fused", &fused);
    o.diagnostics[TRD_DIAGNOSTIC_ACCUMULATE] = true;
    run(&o, state, "separate", &separate);
    expect_close_gradients(&separate, &fused, 1e-6);
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < 5; i++) /* rate, losses and weights */
            assert_true(separate.metrics[s][i] == fused.metrics[s][i]);
    static const char *const names[] = {"first", "eval", "update",
                                        "add"}; /* since the resume, inside a step */
    int found = 0;
    for (int i = 0; i < separate.program_count; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            found += strcmp(separate.programs[i].name, names[k]) == 0;
    assert_int_equal(found, 4);
    assert_int_equal(separate.program_count, 5); /* and "define"; no "accum" */
    outcome_free(&fused);
    outcome_free(&separate);
}

/* A single micro-batch is copied, so nothing differs. */
static void one_separate_micro_batch_is_the_same(void **state)
{
    trd_engine_options o = arm_options(1);
    outcome fused = {0}, separate = {0};
    run(&o, state, "fused-1", &fused);
    o.diagnostics[TRD_DIAGNOSTIC_ACCUMULATE] = true;
    run(&o, state, "separate-1", &separate);
    expect_same_bits(&fused, &separate);
    outcome_free(&fused);
    outcome_free(&separate);
}

/* The norm is taken by another pass over the accumulators, and clips the same. */
static void recomputed_norm_clips_the_same(void **state)
{
    trd_engine_options o = arm_options(3);
    o.optimizer.type = "sgd";
    o.schedule.learning_rate = 0.1;
    o.gradient_clipping_threshold = 0.05;
    outcome reuse = {0}, recompute = {0};
    run(&o, state, "reuse", &reuse);
    o.diagnostics[TRD_DIAGNOSTIC_CLIP_NORM] = true;
    run(&o, state, "recompute", &recompute);
    assert_true(reuse.metrics[0][5] > 10 * o.gradient_clipping_threshold);
    assert_true(reuse.metrics[0][5] == recompute.metrics[0][5]);
    for (int s = 0; s < STEPS; s++) {
        assert_true(fabs(reuse.metrics[s][1] - recompute.metrics[s][1]) < 1e-6 * reuse.metrics[s][1]);
        assert_true(fabs(reuse.metrics[s][5] - recompute.metrics[s][5]) < 1e-5 * reuse.metrics[s][5]);
    }
    for (int i = 0; i < reuse.program_count; i++) {
        const trd_program_info *a = &reuse.programs[i], *b = &recompute.programs[i];
        assert_string_equal(a->name, b->name);
        bool update = strcmp(a->name, "update") == 0;
        assert_int_equal(a->fingerprint == b->fingerprint, !update);
        if (update) assert_true(b->bytes_read >= a->bytes_read + reuse.gradient_bytes - 64);
    }
    outcome_free(&reuse);
    outcome_free(&recompute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_switches_change_no_bit),
        cmocka_unit_test(nothing_is_on_by_default),
        cmocka_unit_test(calls_wait_for_their_work),
        cmocka_unit_test(split_checks_every_array),
        cmocka_unit_test(throttle_waits_for_every_array),
        cmocka_unit_test(separate_accumulation_is_close),
        cmocka_unit_test(one_separate_micro_batch_is_the_same),
        cmocka_unit_test(recomputed_norm_clips_the_same),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
