/* Checkpoints: a run that is interrupted anywhere and resumed has the bits of one that was not; what a
 * checkpoint lacks or what does not fit is an error that changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { MICRO = 3, STEPS = 4 };

static trd_engine_options options_in(void **state, const char *name)
{
    static char paths[8][600];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", (const char *)*state, name);
    trd_engine_options o = test_adamw();
    o.checkpoint_directory = path;
    o.checkpoint_period = 2;
    o.gradient_accumulation_steps = MICRO;
    o.skip_step_on_spikes = true;
    o.skip_step_interval = 4;
    return o;
}

/* Feeds micro-batches begin to end of the run's fixed stream, updating after every third. */
static void feed(trd_engine *engine, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        test_batch b;
        OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, (uint64_t)i + 1)));
        if (i % MICRO == MICRO - 1) OK(trd_engine_update(engine));
    }
}

static void compare_histories(trd_engine *a, trd_engine *b)
{
    const trd_step_metrics *x, *y;
    int count_x, count_y;
    OK(trd_engine_get_metrics_history(a, false, &x, &count_x));
    OK(trd_engine_get_metrics_history(b, false, &y, &count_y));
    assert_int_equal(count_x, STEPS);
    assert_int_equal(count_y, STEPS);
    for (int s = 0; s < STEPS; s++) {
        assert_int_equal(x[s].step, s + 1);
        assert_int_equal(y[s].step, s + 1);
        for (int i = 0; i < 8; i++) /* what follows is time */
            assert_true(x[s].metrics[i].value == y[s].metrics[i].value);
    }
}

/* Interrupts after `cut` micro-batches, resumes in a new engine, and compares with the whole run. */
static void interrupt_at(void **state, int cut, bool async, trd_dtype dtype)
{
    char name[32];
    snprintf(name, sizeof name, "cut-%d-%d-%d", cut, async, (int)dtype);
    trd_engine_options o = options_in(state, name), plain = test_adamw();
    o.async_checkpointing = async;
    o.dtype = o.weight_dtype = o.grad_dtype = dtype;
    plain = o;
    plain.checkpoint_directory = NULL;
    trd_engine *whole = test_engine(&plain), *first = test_engine(&o), *second;
    bool wrote;
    char *metadata;
    feed(whole, 0, STEPS * MICRO);
    feed(first, 0, cut);
    OK(trd_engine_save(first, "hello", true, &wrote));
    assert_true(wrote);
    OK(trd_engine_close(first));
    o.init_weights_seed = 99; /* what restore must replace */
    second = test_engine(&o);
    OK(trd_engine_restore(second, -1, &metadata));
    assert_string_equal(metadata, "hello");
    free(metadata);
    assert_int_equal(trd_engine_step(second), cut / MICRO);
    assert_int_equal(trd_engine_micro_step_count(second), cut % MICRO);
    assert_int_equal(trd_engine_total_micro_steps(second), cut);
    assert_int_equal(trd_engine_data_position(second), cut);
    feed(second, cut, STEPS * MICRO);
    test_expect_same(whole, second);
    compare_histories(whole, second);
    OK(trd_engine_close(second));
    OK(trd_engine_close(whole));
}

static void resumes_to_the_bit(void **state)
{
    for (int cut = 1; cut < STEPS * MICRO; cut++) interrupt_at(state, cut, cut % 2, TRD_F32);
    interrupt_at(state, 5, true, TRD_BF16);
}

static char last_line[512];

static void keep_line(void *user, trd_log_level level, const char *line)
{
    (void)user;
    (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void saves_when_due(void **state)
{
    trd_engine_options o = options_in(state, "due"), off = test_options();
    off.log = (trd_log_sink){.write = keep_line};
    trd_engine *engine = test_engine(&o), *without = test_engine(&off);
    bool wrote;
    feed(engine, 0, MICRO);
    OK(trd_engine_save(engine, NULL, false, &wrote)); /* step 1 of period 2 */
    assert_false(wrote);
    feed(engine, MICRO, 2 * MICRO);
    OK(trd_engine_save(engine, NULL, false, &wrote));
    assert_true(wrote);
    feed(engine, 2 * MICRO, 2 * MICRO + 1);
    OK(trd_engine_save(engine, NULL, false, &wrote)); /* inside a step: always */
    assert_true(wrote);
    feed(engine, 2 * MICRO + 1, 3 * MICRO);
    OK(trd_engine_save(engine, NULL, false, &wrote)); /* and its end replaces it, though step 3 is off */
    assert_true(wrote);
    OK(trd_engine_close(engine));
    assert_true(trd__is_directory(scratch_path(o.checkpoint_directory, "step-2")));
    assert_true(trd__is_directory(scratch_path(o.checkpoint_directory, "step-3")));
    assert_false(trd__is_directory(scratch_path(o.checkpoint_directory, "step-3.m1")));
    OK(trd_engine_save(without, NULL, true, &wrote));
    assert_false(wrote);
    assert_string_equal(last_line, "save: checkpointing is off, nothing was written");
    assert_int_equal(trd_engine_restore(without, -1, NULL), TRD_NOT_FOUND);
    OK(trd_engine_close(without));
}

/* Saves that follow each other at once hold their own step each, though their snapshots share memory. */
static void saves_beside_training(void **state)
{
    trd_engine_options o = options_in(state, "beside"), inline_o = options_in(state, "inline");
    trd_engine *engines[2];
    inline_o.async_checkpointing = false;
    o.checkpoint_period = inline_o.checkpoint_period = 1;
    o.max_num_checkpoints_to_keep = inline_o.max_num_checkpoints_to_keep = 0;
    engines[0] = test_engine(&o);
    engines[1] = test_engine(&inline_o);
    for (int e = 0; e < 2; e++) {
        for (int step = 0; step < STEPS; step++) {
            feed(engines[e], step * MICRO, (step + 1) * MICRO);
            OK(trd_engine_save(engines[e], NULL, false, NULL));
        }
        assert_int_equal(trd_engine_get_stats(engines[e]).saves, STEPS);
        OK(trd_engine_close(engines[e]));
    }
    for (int step = 1; step <= STEPS; step++) {
        size_t sizes[2];
        char file[64];
        snprintf(file, sizeof file, "step-%d/tensors.safetensors", step);
        unsigned char *beside = scratch_read(scratch_path(o.checkpoint_directory, file), &sizes[0]);
        unsigned char *in_line = scratch_read(scratch_path(inline_o.checkpoint_directory, file), &sizes[1]);
        assert_int_equal(sizes[0], sizes[1]);
        assert_memory_equal(beside, in_line, sizes[0]);
        free(beside);
        free(in_line);
    }
}

static void close_saves_the_last_state(void **state)
{
    trd_engine_options o = options_in(state, "close");
    trd_engine *engine = test_engine(&o), *again, *reader;
    feed(engine, 0, MICRO + 1);
    OK(trd_engine_close(engine));
    again = test_engine(&o);
    OK(trd_engine_restore(again, -1, NULL));
    assert_int_equal(trd_engine_step(again), 1);
    assert_int_equal(trd_engine_micro_step_count(again), 1);
    assert_int_equal(trd_engine_restore(again, 7, NULL), TRD_NOT_FOUND);
    expect_message("step 7");
    assert_int_equal(trd_engine_restore(again, 2, NULL), TRD_OK); /* step-2.m1 is inside step 2 */
    OK(trd_engine_close(again));
    o = options_in(state, "empty");
    reader = test_engine(&o);
    assert_int_equal(trd_engine_restore(reader, -1, NULL), TRD_NOT_FOUND);
    OK(trd_engine_close(reader)); /* nothing happened: nothing is saved */
    assert_false(trd__is_directory(scratch_path(o.checkpoint_directory, "step-0")));
}

static void one_engine_per_folder(void **state)
{
    trd_engine_options o = options_in(state, "lock");
    trd_engine *engine = test_engine(&o), *second = NULL;
    assert_int_equal(trd__engine_create_with_model(&o, test_llama(), &second), TRD_BUSY);
    expect_message("in use by another engine");
    OK(trd_engine_close(engine));
    OK(trd__engine_create_with_model(&o, test_llama(), &second));
    OK(trd_engine_close(second));
}

/* A reader beside the engine that has the folder: it restores, and leaves no trace. */
static void a_reader_beside_the_writer(void **state)
{
    trd_engine_options o = options_in(state, "shared"), reading = o;
    test_batch b;
    bool wrote = true;
    const char *leftover = scratch_path(o.checkpoint_directory, ".tmp-save-step-9.1");
    reading.read_only_checkpoints = true;
    trd_engine *reader = test_engine(&reading);
    assert_int_equal(trd_engine_restore(reader, -1, NULL), TRD_NOT_FOUND);
    OK(trd_engine_close(reader));
    assert_false(trd__is_directory(o.checkpoint_directory));
    trd_engine *writer = test_engine(&o);
    feed(writer, 0, 2 * MICRO);
    OK(trd_engine_save(writer, NULL, true, NULL));
    OK(trd_engine_wait(writer));
    feed(writer, 2 * MICRO, 2 * MICRO + 1);
    OK(trd_engine_save(writer, NULL, true, NULL)); /* waits for the first one */
    OK(trd__make_directories(leftover));
    reader = test_engine(&reading);
    OK(trd_engine_restore(reader, 2, NULL));
    assert_int_equal(trd_engine_step(reader), 2);
    OK(trd_engine_fwd_bwd(reader, test_batch_fill(&b, 1)));
    OK(trd_engine_update(reader));
    OK(trd_engine_save(reader, NULL, true, &wrote));
    assert_false(wrote);
    OK(trd_engine_close(reader));
    assert_true(trd__is_directory(leftover));
    OK(trd_engine_close(writer));
    assert_false(trd__is_directory(scratch_path(o.checkpoint_directory, "step-3")));
}

/* Rewrites a checkpoint's state.json by cutting what lies between two texts, through the store itself. */
static void cut_field(const char *folder, const char *from, const char *to)
{
    trd__store *store;
    trd__stored *stored;
    size_t bytes;
    OK(trd__store_open(folder, NULL, &store));
    OK(trd__store_read_newest(store, &stored));
    char *json = strdup(trd__stored_json(stored, &bytes));
    char *begin = strstr(json, from);
    assert_non_null(begin);
    char *end = strstr(begin, to);
    assert_non_null(end);
    memmove(begin, end, strlen(end) + 1);
    trd_array *arrays = calloc(trd__stored_count(stored), sizeof *arrays);
    for (size_t i = 0; i < trd__stored_count(stored); i++) arrays[i] = *trd__stored_at(stored, i);
    OK(trd__store_save(store, trd__stored_name(stored), arrays, trd__stored_count(stored), json, strlen(json),
                       NULL));
    free(arrays);
    free(json);
    trd__stored_close(stored);
    trd__store_close(store);
}

static void missing_denominator_is_rebuilt(void **state)
{
    trd_engine_options o = options_in(state, "denominator"), plain = o;
    plain.checkpoint_directory = NULL;
    trd_engine *whole = test_engine(&plain), *engine = test_engine(&o);
    feed(whole, 0, STEPS * MICRO);
    feed(engine, 0, MICRO + 2);
    OK(trd_engine_close(engine));
    cut_field(o.checkpoint_directory, "\"accumulated_denominator\"", "\"loss_eps\"");
    engine = test_engine(&o);
    OK(trd_engine_restore(engine, -1, NULL));
    feed(engine, MICRO + 2, STEPS * MICRO);
    test_expect_same(whole, engine);
    OK(trd_engine_restore(engine, 2, NULL));
    OK(trd_engine_close(engine));
    cut_field(o.checkpoint_directory, "\"micro_batches\"", "\"aux_metrics\"");
    engine = test_engine(&o);
    assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_CORRUPT);
    expect_message("accumulated_denominator");
    assert_int_equal(trd_engine_step(engine), 0);
    OK(trd_engine_close(engine));
    OK(trd_engine_close(whole));
}

/* A state that cannot be understood to its end is refused before anything of it is taken over. */
static void a_bad_state_changes_nothing(void **state)
{
    trd_engine_options o = options_in(state, "bad");
    trd_step_metrics metrics;
    trd_engine *engine = test_engine(&o);
    feed(engine, 0, MICRO + 2);
    OK(trd_engine_close(engine));
    cut_field(o.checkpoint_directory, "\"step\": 1, \"metrics\"",
              "\"metrics\""); /* of the history's record */
    engine = test_engine(&o);
    unsigned char *params = test_state(trd_engine_params(engine), NULL);
    assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_CORRUPT);
    expect_message("metrics_history");
    assert_int_equal(trd_engine_step(engine), 0);
    assert_int_equal(trd_engine_micro_step_count(engine), 0);
    test_same_state(trd_engine_params(engine), params);
    OK(trd_engine_get_metrics(engine, false, &metrics));
    assert_int_equal(metrics.step, -1);
    free(params);
    OK(trd_engine_close(engine));
}

static trd_status fixed_key(void *user, const char *saved, const char *current)
{
    (void)user;
    if (strcmp(saved, current) == 0) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT, "max_target_length is fixed on resume");
}

/* What does not fit is refused with its name, and the state stays as it was. */
static void what_does_not_fit(void **state)
{
    trd_engine_options o = options_in(state, "fit");
    o.fingerprint = "length=12";
    o.compare_fingerprint = fixed_key;
    trd_engine *engine = test_engine(&o);
    feed(engine, 0, MICRO);
    OK(trd_engine_close(engine));
    o.fingerprint = "length=13";
    engine = test_engine(&o);
    unsigned char *before = test_state(trd_engine_params(engine), NULL);
    assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_INVALID_ARGUMENT);
    expect_message("max_target_length");
    test_same_state(trd_engine_params(engine), before);
    free(before);
    OK(trd_engine_close(engine));
    o.fingerprint = "length=12";
    o.weight_dtype = TRD_BF16;
    engine = test_engine(&o);
    assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_SHAPE);
    expect_message("expected bfloat16 (40, 16), found float32 (40, 16)");
    OK(trd_engine_close(engine));
    o.weight_dtype = TRD_F32;
    o.optimizer.type = "sgd";
    engine = test_engine(&o);
    assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_INVALID_ARGUMENT);
    expect_message("opt_type");
    OK(trd_engine_close(engine));
}

static void handles_die_on_restore(void **state)
{
    trd_engine_options o = options_in(state, "handles");
    trd_engine *engine = test_engine(&o);
    float value[16];
    feed(engine, 0, 2 * MICRO);
    OK(trd_engine_save(engine, NULL, true, NULL));
    trd_view params = trd_engine_params(engine);
    int norm = trd_view_find(params, "model.norm.weight");
    trd_handle handle = trd_view_handle(params, norm);
    OK(trd_engine_restore(engine, -1, NULL));
    assert_int_equal(trd_handle_read(handle, value), TRD_DELETED);
    handle = trd_view_handle(params, norm);
    feed(engine, 0, MICRO);
    assert_int_equal(trd_handle_read(handle, value), TRD_DELETED);
    expect_message("update of step 3");
    OK(trd_engine_close(engine));
}

/* A save that fails beside training is told by the next call, and close tries again. */
static void failed_save_is_loud(void **state)
{
    trd_engine_options o = options_in(state, "failing");
    bool wrote;
    o.async_checkpointing = true;
    trd_engine *engine = test_engine(&o);
    feed(engine, 0, MICRO);
    OK(trd__remove_tree(o.checkpoint_directory));
    scratch_write(o.checkpoint_directory, "", 0);    /* a file where the folder was */
    OK(trd_engine_save(engine, NULL, true, &wrote)); /* started */
    assert_int_equal(trd_engine_save(engine, NULL, true, &wrote), TRD_IO);
    expect_message("saving checkpoint step-1");
    assert_false(wrote);
    assert_int_equal(remove(o.checkpoint_directory), 0);
    OK(trd__make_directories(o.checkpoint_directory));
    OK(trd_engine_close(engine));
    assert_true(trd__is_directory(scratch_path(o.checkpoint_directory, "step-1")));
}

static trd_status refuse_write(void *user, trd_metric_mode mode, int64_t step, const trd_metric *metrics,
                               int count)
{
    (void)user, (void)mode, (void)step, (void)metrics, (void)count;
    return trd__fail(TRD_IO, "writing metrics: refused");
}

static trd_status refuse_flush(void *user)
{
    (void)user;
    return trd__fail(TRD_IO, "flushing metrics: refused");
}

/* Whatever close finds to have failed, the state is saved and the first failure told. */
static void close_saves_after_failures(void **state)
{
    trd_metric_sink sinks[] = {{.write = refuse_write}, {.flush = refuse_flush}};
    const char *const messages[] = {"writing metrics: refused", "flushing metrics: refused"};
    for (int i = 0; i < 2; i++) {
        char name[16];
        snprintf(name, sizeof name, "close-%d", i);
        trd_engine_options o = options_in(state, name);
        o.sinks = &sinks[i];
        o.sink_count = 1;
        trd_engine *engine = test_engine(&o);
        feed(engine, 0, MICRO);
        assert_int_equal(trd_engine_close(engine), TRD_IO);
        expect_message(messages[i]);
        assert_true(trd__is_directory(scratch_path(o.checkpoint_directory, "step-1")));
    }
}

static trd_loss_output wild_gather(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    trd_loss_output output = trd_loss_sft(b, model, in, user);
    trd_value table = trd_constant_fill(b, TRD_F32, TRD__SHAPE(2, 1), 1);
    trd_value rows = trd_gather_rows(b, table, trd_inputs_get(b, in, "token_ids"));
    output.primary_loss.unreduced_sum = trd_add(b, output.primary_loss.unreduced_sum, trd_sum_all(b, rows));
    return output;
}

/* A restore forgets a device failure and what was queued behind it. */
static void restore_clears_a_failure(void **state)
{
    trd_engine_options o = options_in(state, "fault"), plain = o;
    plain.checkpoint_directory = NULL;
    trd_engine *whole = test_engine(&plain), *engine = test_engine(&o);
    trd_step_metrics metrics;
    test_batch b;
    feed(whole, 0, STEPS * MICRO);
    feed(engine, 0, MICRO);
    OK(trd_engine_save(engine, NULL, true, NULL));
    OK(trd_engine_with_loss_fn(engine, wild_gather, NULL));
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 1)));
    assert_int_not_equal(trd_engine_get_metrics(engine, false, &metrics), TRD_OK);
    assert_int_not_equal(trd_engine_fwd_bwd(engine, &b.batch), TRD_OK);
    OK(trd_engine_restore(engine, -1, NULL));
    OK(trd_engine_with_loss_fn(engine, trd_loss_sft, NULL));
    feed(engine, MICRO, STEPS * MICRO);
    test_expect_same(whole, engine);
    OK(trd_engine_close(engine));
    OK(trd_engine_close(whole));
}

/* Weights travel: export, load the folder, and the parameters are the same bits. */
static void export_and_load(void **state)
{
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o), *loaded = NULL;
    feed(engine, 0, MICRO);
    const char *folder = scratch_path(*state, "hub");
    OK(trd_engine_export(engine, folder, TRD_F32));
    o.load_parameters_path = folder;
    OK(trd_engine_create(&o, &loaded));
    unsigned char *params = test_state(trd_engine_params(engine), NULL);
    test_same_state(trd_engine_params(loaded), params);
    free(params);
    OK(trd_engine_close(loaded));
    o.overrides.layers = 1;
    assert_int_equal(trd_engine_create(&o, &loaded), TRD_INVALID_ARGUMENT);
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumes_to_the_bit),
        cmocka_unit_test(saves_when_due),
        cmocka_unit_test(saves_beside_training),
        cmocka_unit_test(close_saves_the_last_state),
        cmocka_unit_test(one_engine_per_folder),
        cmocka_unit_test(a_reader_beside_the_writer),
        cmocka_unit_test(missing_denominator_is_rebuilt),
        cmocka_unit_test(a_bad_state_changes_nothing),
        cmocka_unit_test(what_does_not_fit),
        cmocka_unit_test(handles_die_on_restore),
        cmocka_unit_test(failed_save_is_loud),
        cmocka_unit_test(close_saves_after_failures),
        cmocka_unit_test(restore_clears_a_failure),
        cmocka_unit_test(export_and_load),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
