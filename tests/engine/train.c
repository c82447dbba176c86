/* The training loop on real files: hooks, evaluation, stopping, resuming where the data was, data that ends
 * early, and no room for checkpoints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { SAMPLES = 40, LENGTH = 24, BYTE_VOCAB = 260 };

static trd_tokenizer *tokenizer;

static int set_up(void **state)
{
    if (scratch_create(state) != 0) return -1;
    OK(trd_tokenizer_open("data/data/bytes", &tokenizer));
    FILE *file = fopen(scratch_path(*state, "train.jsonl"), "w");
    assert_non_null(file);
    for (int i = 0; i < SAMPLES; i++)
        fprintf(file, "{\"prompt\": \"%d+%d=\", \"completion\": \"%.*s\"}\n", i, i + 1, 3 + i % 9,
                "abcdefghijklmnop");
    return fclose(file);
}

static int tear_down(void **state)
{
    trd_tokenizer_close(tokenizer);
    return scratch_remove(state);
}

static trd_loader *loader(void **state, uint64_t epochs)
{
    const char *path = scratch_path(*state, "train.jsonl");
    trd_data_options o = {.files = &path,
                          .file_count = 1,
                          .tokenizer = tokenizer,
                          .rows = TEST_ROWS,
                          .length = LENGTH,
                          .packing = true,
                          .packing_window = 8,
                          .completion_only_loss = true,
                          .shuffle = true,
                          .seed = 5,
                          .epochs = epochs,
                          .prefetch = true};
    trd_loader *made = NULL;
    OK(trd_loader_open(&o, &made));
    return made;
}

static trd_engine *engine_in(void **state, const char *name, int64_t steps)
{
    trd_engine_options o = test_adamw();
    char folder[600];
    trd_engine *engine = NULL;
    snprintf(folder, sizeof folder, "%s/%s", (const char *)*state, name ? name : "");
    o.length = LENGTH;
    o.steps = steps;
    o.gradient_accumulation_steps = 3;
    o.checkpoint_period = 4;
    o.max_num_checkpoints_to_keep = 0;
    o.checkpoint_directory = name ? folder : NULL;
    OK(trd__engine_create_with_model(&o, test_llama_of(BYTE_VOCAB), &engine));
    return engine;
}

typedef struct events {
    char text[256];
    double first, last;
    int64_t stop_at;
    volatile int stop;
} events;

static void on_step(void *user, int64_t step)
{
    events *e = user;
    size_t used = strlen(e->text);
    snprintf(e->text + used, sizeof e->text - used, "%d ", (int)step);
    if (step == e->stop_at) e->stop = 1;
}

static void on_eval(void *user, int64_t step, double loss)
{
    events *e = user;
    size_t used = strlen(e->text);
    if (used == 0) e->first = loss;
    e->last = loss;
    snprintf(e->text + used, sizeof e->text - used, "e%d ", (int)step);
}

static void hooks_and_evaluation(void **state)
{
    trd_engine *engine = engine_in(state, NULL, 5);
    trd_loader *train = loader(state, 0), *eval = loader(state, 1);
    events e = {.stop_at = -1};
    OK(trd_engine_train(engine, &(trd_train_options){.train = train,
                                                     .eval = eval,
                                                     .eval_interval = 2,
                                                     .eval_at_start = true,
                                                     .eval_at_end = true,
                                                     .on_step = on_step,
                                                     .on_eval = on_eval,
                                                     .user = &e}));
    assert_string_equal(e.text, "e0 1 2 e2 3 4 e4 5 e5 ");
    assert_true(e.last < e.first); /* it learns */
    assert_int_equal(trd_engine_total_micro_steps(engine), 15);
    trd_loader_close(train);
    trd_loader_close(eval);
    OK(trd_engine_close(engine));
}

/* Stopped after two steps and resumed by another engine and loader: the bits of one run. */
static void stop_and_resume(void **state)
{
    trd_engine *whole = engine_in(state, NULL, 6), *first = engine_in(state, "stop", 6), *second;
    trd_loader *data = loader(state, 0);
    events e = {.stop_at = 2};
    OK(trd_engine_train(whole, &(trd_train_options){.train = data}));
    trd_loader_close(data);
    data = loader(state, 0);
    OK(trd_engine_train(
        first, &(trd_train_options){.train = data, .stop = &e.stop, .on_step = on_step, .user = &e}));
    assert_int_equal(trd_engine_step(first), 2);
    trd_loader_close(data);
    OK(trd_engine_close(first));
    second = engine_in(state, "stop", 6);
    OK(trd_engine_restore(second, -1, NULL));
    assert_int_equal(trd_engine_step(second), 2);
    data = loader(state, 0);
    OK(trd_engine_train(second, &(trd_train_options){.train = data}));
    trd_loader_close(data);
    assert_int_equal(trd_engine_step(second), 6);
    test_expect_same(whole, second);
    OK(trd_engine_close(second));
    OK(trd_engine_close(whole));
}

/* Checkpoints know what the data was: another line, and the place in it means something else. */
static void changed_data_is_refused(void **state)
{
    trd_engine *engine = engine_in(state, "changed", 2);
    trd_loader *data = loader(state, 0);
    OK(trd_engine_train(engine, &(trd_train_options){.train = data}));
    trd_loader_close(data);
    OK(trd_engine_close(engine));
    FILE *file = fopen(scratch_path(*state, "train.jsonl"), "a");
    assert_non_null(file);
    fputs("{\"text\": \"one more\"}\n", file);
    assert_int_equal(fclose(file), 0);
    engine = engine_in(state, "changed", 6);
    OK(trd_engine_restore(engine, -1, NULL));
    data = loader(state, 0);
    assert_int_equal(trd_engine_train(engine, &(trd_train_options){.train = data}), TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "the data files are not those"));
    assert_int_equal(trd_engine_step(engine), 2);
    trd_loader_close(data);
    OK(trd_engine_close(engine));
}

static void note_partial(void *user, trd_log_level level, const char *line)
{
    (void)level;
    if (strstr(line, "the data ended after")) ++*(int *)user;
}

/* One epoch that is no multiple of the window: the rest is applied and said so. */
static void data_ends_early(void **state)
{
    trd_engine *engine = engine_in(state, NULL, 1000);
    trd_loader *data = loader(state, 1);
    trd_batch batch;
    int batches = 0, partial = 0;
    while (trd_loader_next(data, &batch) == TRD_OK) batches++;
    trd_loader_close(data);
    data = loader(state, 1);
    engine->options.log = (trd_log_sink){note_partial, &partial};
    OK(trd_engine_train(engine, &(trd_train_options){.train = data}));
    assert_int_equal(trd_engine_total_micro_steps(engine), batches);
    assert_int_equal(trd_engine_step(engine), (batches + 2) / 3);
    assert_int_equal(partial, batches % 3 != 0);
    trd_loader_close(data);
    OK(trd_engine_close(engine));
}

static void no_room_for_checkpoints(void **state)
{
    trd_engine *engine = engine_in(state, "room", (int64_t)1 << 50);
    trd_loader *data = loader(state, 1);
    assert_int_equal(trd_engine_train(engine, &(trd_train_options){.train = data}), TRD_IO);
    assert_int_equal(trd_engine_total_micro_steps(engine), 0);
    assert_int_equal(trd_engine_train(engine, &(trd_train_options){.train = NULL}), TRD_INVALID_ARGUMENT);
    trd_loader_close(data);
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_and_evaluation),    cmocka_unit_test(stop_and_resume),
        cmocka_unit_test(data_ends_early),         cmocka_unit_test(no_room_for_checkpoints),
        cmocka_unit_test(changed_data_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
