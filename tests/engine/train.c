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

/* What the hooks saw: a letter each, capital where something ends, and the step. */
typedef struct events {
    char text[1024];
    double first, last;
    int64_t stop_at;
    volatile int stop;
    const char *failing; /* letter of the hook that fails */
    trd_status ended;    /* as train_end was told */
    int evaluations;
} events;

static trd_status note(void *user, const trd_train_event *event, char letter)
{
    events *e = user;
    size_t used = strlen(e->text);
    assert_non_null(event->engine);
    snprintf(e->text + used, sizeof e->text - used, "%c%d ", letter, (int)event->step);
    assert_true((event->result != NULL) == (letter == 'E'));
    if (letter == 'E') {
        if (!e->evaluations++) e->first = event->result->loss;
        e->last = event->result->loss;
    }
    if (letter == 'D') {
        if (!event->batch) e->text[strlen(e->text) - 1] = '!'; /* the end of the data */
    } else {
        assert_null(event->batch);
    }
    if (letter == 'S' && event->step == e->stop_at) e->stop = 1;
    if (letter == 'T') e->ended = event->status;
    return e->failing && *e->failing == letter ? TRD_UNSUPPORTED : TRD_OK;
}

#define HOOKS(X)                                                                                             \
    X(train_begin, 't')                                                                                      \
    X(train_end, 'T')                                                                                        \
    X(step_begin, 's')                                                                                       \
    X(step_end, 'S')                                                                                         \
    X(eval_begin, 'e')                                                                                       \
    X(eval_end, 'E')                                                                                         \
    X(data_begin, 'd')                                                                                       \
    X(data_end, 'D')
#define DEFINE_HOOK(name, letter)                                                                            \
    static trd_status name(void *user, const trd_train_event *event)                                         \
    {                                                                                                        \
        return note(user, event, letter);                                                                    \
    }
HOOKS(DEFINE_HOOK)

static trd_train_hooks hooks_of(events *e)
{
#define SET_HOOK(name, letter) .name = name,
    return (trd_train_hooks){HOOKS(SET_HOOK).user = e};
#undef SET_HOOK
}

static void hooks_and_evaluation(void **state)
{
    trd_engine *engine = engine_in(state, NULL, 5);
    trd_loader *train = loader(state, 0), *eval = loader(state, 1);
    events e = {.stop_at = -1, .ended = TRD_INTERNAL};
    OK(trd_engine_train(engine, &(trd_train_options){.train = train,
                                                     .eval = eval,
                                                     .eval_interval = 2,
                                                     .eval_at_start = true,
                                                     .eval_at_end = true,
                                                     .hooks = hooks_of(&e)}));
    assert_string_equal(e.text, "t0 e0 E0 "
                                "d1 D1 s1 d1 D1 d1 D1 S1 d2 D2 s2 d2 D2 d2 D2 S2 e2 E2 "
                                "d3 D3 s3 d3 D3 d3 D3 S3 d4 D4 s4 d4 D4 d4 D4 S4 e4 E4 "
                                "d5 D5 s5 d5 D5 d5 D5 S5 e5 E5 T5 ");
    assert_int_equal(e.ended, TRD_OK);
    assert_true(e.last < e.first); /* it learns */
    assert_int_equal(trd_engine_total_micro_steps(engine), 15);
    trd_loader_close(train);
    trd_loader_close(eval);
    OK(trd_engine_close(engine));
}

/* Each hook in turn fails: training ends there with its status, and train_end is told. */
static void failing_hooks_end_training(void **state)
{
    static const struct {
        const char *letter, *name, *expected;
    } cases[] = {{"t", "train_begin", "t0 "},
                 {"e", "eval_begin", "t0 e0 T0 "},
                 {"E", "eval_end", "t0 e0 E0 T0 "},
                 {"d", "data_begin", "t0 e0 E0 d1 T0 "},
                 {"D", "data_end", "t0 e0 E0 d1 D1 T0 "},
                 {"s", "step_begin", "t0 e0 E0 d1 D1 s1 T0 "},
                 {"S", "step_end", "t0 e0 E0 d1 D1 s1 d1 D1 d1 D1 S1 T1 "},
                 {"T", "train_end", "t0 e0 E0 d1 D1 s1 d1 D1 d1 D1 S1 T1 "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trd_engine *engine = engine_in(state, NULL, 1);
        trd_loader *train = loader(state, 0), *eval = loader(state, 1);
        events e = {.stop_at = -1, .failing = cases[i].letter};
        const trd_train_options o = {
            .train = train, .eval = eval, .eval_at_start = true, .hooks = hooks_of(&e)};
        assert_int_equal(trd_engine_train(engine, &o), TRD_UNSUPPORTED);
        assert_string_equal(e.text, cases[i].expected);
        char said[64];
        snprintf(said, sizeof said, "training: the hook %s: not supported", cases[i].name);
        assert_ptr_equal(strstr(trd_error_message(), said), trd_error_message());
        assert_int_not_equal(trd_error_message()[strlen(trd_error_message()) - 1], ' ');
        bool told = *cases[i].letter != 't' && *cases[i].letter != 'T';
        assert_int_equal(e.ended, told ? TRD_UNSUPPORTED : TRD_OK);
        trd_loader_close(train);
        trd_loader_close(eval);
        OK(trd_engine_close(engine));
    }
}

/* Says of each payload whether the step ends with it: after 2 micro-batches, after 5, after 1, then by the
 * count. */
static trd_status choose(void *user, const trd_batch *payload, trd_batch *adapted)
{
    int *seen = user;
    int now = ++*seen;
    *adapted = *payload;
    adapted->position = 0; /* the payload's counts */
    if (now <= 8) adapted->update_step = now == 2 || now == 7 || now == 8 ? TRD_UPDATE_NOW : TRD_UPDATE_LATER;
    return TRD_OK;
}

static void payloads_choose_the_update(void **state)
{
    trd_engine *engine = engine_in(state, NULL, 4);
    trd_loader *data = loader(state, 0);
    events e = {.stop_at = -1};
    int seen = 0;
    OK(trd_engine_with_gen_model_input_fn(engine, choose, &seen));
    const trd_train_hooks hooks = {.step_end = step_end, .data_end = data_end, .user = &e};
    OK(trd_engine_train(engine, &(trd_train_options){.train = data, .hooks = hooks}));
    assert_string_equal(e.text, "D1 D1 S1 D2 D2 D2 D2 D2 S2 D3 S3 D4 D4 D4 S4 ");
    assert_int_equal(trd_engine_data_position(engine), 11 * TEST_ROWS);
    trd_loader_close(data);
    OK(trd_engine_close(engine));
}

/* A checkpoint inside a step knows that its last payload wanted more of them. */
static void a_choice_outlives_a_resume(void **state)
{
    trd_engine *engine = engine_in(state, "choice", 1);
    trd_loader *data = loader(state, 0);
    trd_batch batch;
    for (int i = 0; i < 3; i++) { /* the whole window */
        OK(trd_loader_next(data, &batch));
        batch.update_step = TRD_UPDATE_LATER;
        OK(trd_engine_fwd_bwd(engine, &batch));
    }
    OK(trd_engine_close(engine));
    engine = engine_in(state, "choice", 1);
    OK(trd_engine_restore(engine, -1, NULL));
    OK(trd_engine_train(engine, &(trd_train_options){.train = data}));
    assert_int_equal(trd_engine_step(engine), 1);
    assert_int_equal(trd_engine_total_micro_steps(engine), 4);
    trd_loader_close(data);
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
    OK(trd_engine_train(first, &(trd_train_options){.train = data, .stop = &e.stop, .hooks = hooks_of(&e)}));
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

static trd_status same_payload(void *user, const trd_batch *payload, trd_batch *adapted)
{
    (void)user;
    *adapted = *payload;
    return TRD_OK;
}

static trd_engine *engine_without_clipping(void **state, const char *name)
{
    trd_engine_options o = test_adamw();
    trd_engine *engine = NULL;
    char folder[600];
    snprintf(folder, sizeof folder, "%s/%s", (const char *)*state, name ? name : "");
    o.length = LENGTH;
    o.steps = 5;
    o.gradient_clipping_threshold = 0;
    o.skip_step_on_nonfinite = false;
    o.checkpoint_period = 2;
    o.checkpoint_directory = name ? folder : NULL;
    OK(trd__engine_create_with_model(&o, test_llama_of(BYTE_VOCAB), &engine));
    return engine;
}

static bool has_program(const trd_engine *engine, const char *name)
{
    for (int i = 0; i < trd_engine_program_count(engine); i++)
        if (strcmp(trd_engine_program(engine, i).name, name) == 0) return true;
    return false;
}

/* Steps of one micro-batch that nothing waits for are whole programs, with the bits and hooks of the pair. */
static void whole_steps_are_the_pair(void **state)
{
    trd_engine *whole = engine_without_clipping(state, "whole"), *pair = engine_without_clipping(state, NULL);
    events seen = {.stop_at = -1}, expected = {.stop_at = -1};
    OK(trd_engine_with_gen_model_input_fn(pair, same_payload, NULL));
    trd_engine *const engines[] = {whole, pair};
    events *const told[] = {&seen, &expected};
    for (int i = 0; i < 2; i++) {
        trd_loader *data = loader(state, 0);
        const trd_train_options o = {.train = data, .hooks = hooks_of(told[i])};
        OK(trd_engine_train(engines[i], &o));
        trd_loader_close(data);
    }
    assert_string_equal(seen.text, expected.text);
    test_expect_same(whole, pair);
    assert_true(has_program(whole, "train_step") && !has_program(whole, "first"));
    assert_true(has_program(pair, "first") && !has_program(pair, "train_step"));
    OK(trd_engine_restore(whole, 4, NULL));
    assert_int_equal(trd_engine_step(whole), 4);
    OK(trd_engine_close(whole));
    OK(trd_engine_close(pair));
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
    events e = {.stop_at = -1};
    OK(trd_engine_train(engine, &(trd_train_options){.train = data, .hooks = hooks_of(&e)}));
    char end[64]; /* a step without a batch does not begin */
    int last = (int)trd_engine_step(engine);
    if (batches % 3)
        snprintf(end, sizeof end, "D%d!S%d T%d ", last, last, last);
    else
        snprintf(end, sizeof end, "S%d d%d D%d!T%d ", last, last + 1, last + 1, last);
    assert_non_null(strstr(e.text, end));
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
    OK(trd_engine_close(engine));
    trd_engine_options o = test_adamw(); /* without an end, as many as the run would ever keep are counted */
    char folder[600];
    snprintf(folder, sizeof folder, "%s/endless", (const char *)*state);
    o.length = LENGTH;
    o.steps = 0;
    o.max_num_checkpoints_to_keep = INT32_MAX;
    o.checkpoint_directory = folder;
    OK(trd__engine_create_with_model(&o, test_llama_of(BYTE_VOCAB), &engine));
    assert_int_equal(trd_engine_train(engine, &(trd_train_options){.train = data}), TRD_IO);
    trd_loader_close(data);
    OK(trd_engine_close(engine));
}

/* The place of the checkpoints is taken away before the last one is written beside training. */
static trd_status spoil(void *user, const trd_train_event *event)
{
    if (event->step != 2) return TRD_OK;
    OK(trd__remove_tree(user));
    scratch_write(user, "", 0);
    return TRD_OK;
}

static trd_status keep_status(void *user, const trd_train_event *event)
{
    (void)user;
    return event->status == TRD_IO ? TRD_OK : TRD_INTERNAL;
}

/* Training that came to its end has its last checkpoint, or says that it has not. */
static void the_last_save_is_awaited(void **state)
{
    trd_engine *engine = engine_in(state, "awaited", 2);
    char *folder = (char *)(uintptr_t)scratch_path(*state, "awaited");
    trd_loader *data = loader(state, 0);
    engine->options.async_checkpointing = true;
    const trd_train_hooks hooks = {.step_end = spoil, .train_end = keep_status, .user = folder};
    assert_int_equal(trd_engine_train(engine, &(trd_train_options){.train = data, .hooks = hooks}), TRD_IO);
    expect_message("saving checkpoint step-2");
    assert_int_equal(remove(folder), 0);
    OK(trd__make_directories(folder));
    trd_loader_close(data);
    OK(trd_engine_close(engine));
    assert_true(trd__is_directory(scratch_path(folder, "step-2")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_and_evaluation),
        cmocka_unit_test(failing_hooks_end_training),
        cmocka_unit_test(whole_steps_are_the_pair),
        cmocka_unit_test(payloads_choose_the_update),
        cmocka_unit_test(a_choice_outlives_a_resume),
        cmocka_unit_test(stop_and_resume),
        cmocka_unit_test(data_ends_early),
        cmocka_unit_test(no_room_for_checkpoints),
        cmocka_unit_test(the_last_save_is_awaited),
        cmocka_unit_test(changed_data_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
