/* Every call by which a run changes files fails once, in every way: the run ends with an error that says why,
 * or with its results; the checkpoints that are there are intact; and a later run ends with the bits of one
 * that met no fault. The same for a process that dies at that call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmocka.h>

#include <treadle/report.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/store.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/failing_files.h"
#include "support/nightly.h"
#include "support/scratch.h"

enum { MICRO = 2, STEPS = 3, SINKS = 3 };

typedef struct life {
    char run[512], checkpoints[600], metrics[600], events[600], page[600];
    bool async;
    unsigned char *params, *optimizer; /* of a run that met no fault */
    long faults, told;
} life;

static trd_engine_options options_of(const life *l)
{
    trd_engine_options o = test_adamw();
    o.checkpoint_directory = l->checkpoints;
    o.checkpoint_period = 1;
    o.max_num_checkpoints_to_keep = 2;
    o.gradient_accumulation_steps = MICRO;
    o.async_checkpointing = l->async;
    return o;
}

static trd_status engine_of(const life *l, trd_engine **engine)
{
    trd_metric_sink sinks[SINKS];
    trd_engine_options o = options_of(l);
    OK(trd_report_jsonl(l->metrics, &sinks[0]));
    OK(trd_report_tensorboard(l->events, &sinks[1]));
    OK(trd_report_html(l->page, l->metrics, &sinks[2]));
    o.sinks = sinks;
    o.sink_count = SINKS;
    trd_status status = trd__engine_create_with_model(&o, test_llama(), engine);
    for (int i = 0; status && i < SINKS; i++) sinks[i].close(sinks[i].user);
    return status;
}

/* Goes on from where the engine is, up to a number of micro-batches; saves inside of steps too. */
static trd_status go_on(trd_engine *engine, int end)
{
    while (trd_engine_total_micro_steps(engine) < end || trd_engine_micro_step_count(engine) > 0) {
        test_batch b;
        int64_t i = trd_engine_total_micro_steps(engine);
        if (trd_engine_micro_step_count(engine) < MICRO)
            TRD_TRY(trd_engine_fwd_bwd(engine, test_batch_fill(&b, (uint64_t)i + 1)));
        if (trd_engine_micro_step_count(engine) == MICRO) TRD_TRY(trd_engine_update(engine));
        TRD_TRY(trd_engine_save(engine, NULL, false, NULL));
    }
    return TRD_OK;
}

/* Restores what there is and trains to the end; the first failure is returned. */
static trd_status run(const life *l, int end)
{
    trd_engine *engine = NULL;
    TRD_TRY(engine_of(l, &engine));
    trd_status status = trd_engine_restore(engine, -1, NULL);
    if (status == TRD_OK || status == TRD_NOT_FOUND) status = go_on(engine, end);
    char *message = strdup(trd_error_message());
    trd_status closed = trd_engine_close(engine);
    if (status != TRD_OK) trd__set_error_message(message);
    free(message);
    return status != TRD_OK ? status : closed;
}

static void begin_run(const life *l)
{
    files_arm(NULL, FILES_NONE, 0);
    OK(trd__remove_tree(l->run));
    OK(trd__make_directories(l->run));
    OK(run(l, MICRO)); /* step-1 is there before anything goes wrong */
}

/* Nothing that has a checkpoint's name is damaged, and something is there. */
static void expect_intact(const life *l)
{
    trd__store *store;
    trd__store_name *names;
    trd__stored *stored;
    size_t count;
    OK(trd__store_view(l->checkpoints, NULL, &store));
    OK(trd__store_list(store, &names, &count));
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        OK(trd__store_read(store, names[i], &stored));
        trd__stored_close(stored);
    }
    trd__free(names);
    trd__store_close(store);
}

static void expect_steps(const life *l)
{
    size_t bytes;
    int64_t next = 1;
    char *text = (char *)scratch_read(l->metrics, &bytes);
    for (char *at = text; (at = strstr(at, "{\"step\": ")); next++) {
        at += strlen("{\"step\": ");
        assert_int_equal(strtol(at, NULL, 10), next);
    }
    assert_int_equal(next, STEPS + 1);
    free(text);
}

/* A later run without a fault ends as if there had been none. */
static void expect_resumes(const life *l, bool all_steps)
{
    trd_engine *engine;
    files_arm(NULL, FILES_NONE, 0);
    expect_intact(l);
    OK(engine_of(l, &engine));
    OK(trd_engine_restore(engine, -1, NULL));
    assert_true(trd_engine_step(engine) >= 1);
    OK(go_on(engine, STEPS * MICRO));
    test_same_state(trd_engine_params(engine), l->params);
    test_same_state(trd_engine_optimizer_state(engine), l->optimizer);
    OK(trd_engine_close(engine));
    if (all_steps) expect_steps(l);
}

/* The number in the lock file is for people only; the lock stands without it. */
static bool is_tolerated(void)
{
    const char *end = strrchr(files.what, '/');
    return end && strcmp(end, "/lock") == 0 && strncmp(files.what, "open", 4) != 0;
}

static void fail_call(life *l, files_fault fault, long n, bool *reached)
{
    begin_run(l);
    files_arm(l->run, fault, n);
    trd_status status = run(l, STEPS * MICRO);
    *reached = files.calls >= n;
    l->faults += files.done;
    l->told += status != TRD_OK;
    const char *reason = files_kinds[fault].error ? strerror(files_kinds[fault].error) : "";
    if (status != TRD_OK && (!files.done || !*reason || !strstr(trd_error_message(), reason)))
        fail_msg("%s at call %ld: expected a message with \"%s\", found \"%s\"", files_kinds[fault].name, n,
                 reason, trd_error_message());
    if (status == TRD_OK && files.done && *reason && !is_tolerated())
        fail_msg("%s at call %ld (%s) was not told", files_kinds[fault].name, n, files.what);
    expect_resumes(l, status == TRD_OK);
}

static void die_at_call(life *l, files_fault fault, long n, bool *reached)
{
    int code;
    begin_run(l);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        files_arm(l->run, fault, n);
        _exit(run(l, STEPS * MICRO) == TRD_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    *reached = WIFSIGNALED(code) && WTERMSIG(code) == SIGKILL;
    if (!*reached && (!WIFEXITED(code) || WEXITSTATUS(code) != 0))
        fail_msg("%s at call %ld: the run failed", files_kinds[fault].name, n);
    l->faults += *reached;
    expect_resumes(l, true);
}

/* A whole run, for its bits. */
static void prepare(void **state, life *l, bool async)
{
    trd_engine_options o;
    *l = (life){.async = async};
    snprintf(l->run, sizeof l->run, "%s/run-%d", (const char *)*state, async);
    snprintf(l->checkpoints, sizeof l->checkpoints, "%s/checkpoints", l->run);
    snprintf(l->metrics, sizeof l->metrics, "%s/metrics.jsonl", l->run);
    snprintf(l->events, sizeof l->events, "%s/tensorboard", l->run);
    snprintf(l->page, sizeof l->page, "%s/report.html", l->run);
    o = options_of(l);
    o.checkpoint_directory = NULL;
    trd_engine *whole = test_engine(&o);
    OK(go_on(whole, STEPS * MICRO));
    l->params = test_state(trd_engine_params(whole), NULL);
    l->optimizer = test_state(trd_engine_optimizer_state(whole), NULL);
    OK(trd_engine_close(whole));
}

/* Every call at night, else every 41st, from another one on for each kind of fault. */
static void every_call(void **state, bool async, files_fault first, files_fault last)
{
    life l;
    const long stride = nightly() ? 1 : 41;
    prepare(state, &l, async);
    for (int fault = (int)first; fault <= (int)last; fault++) {
        bool kills = fault == FILES_KILL || fault == FILES_KILL_WITHIN, reached = true;
        long n = nightly() ? 1 : 1 + (5 * fault + 2 * async) % stride, from = l.faults;
        for (; reached; n += stride) {
            if (n > 10000) fail_msg("%s: 10000 calls and no end", files_kinds[fault].name);
            (kills ? die_at_call : fail_call)(&l, (files_fault)fault, n, &reached);
        }
        assert_true((l.faults - from) * stride > 50);
        print_message("%s, %s: %ld of about %ld calls\n", files_kinds[fault].name,
                      async ? "beside training" : "inline", l.faults - from, n - 2 * stride);
    }
    print_message("%ld faults, %ld of them ended the run with an error\n", l.faults, l.told);
    free(l.params);
    free(l.optimizer);
}

static void failures_inline(void **state)
{
    every_call(state, false, FILES_EIO, FILES_SHORT_FULL);
}
static void failures_beside_training(void **state)
{
    every_call(state, true, FILES_EIO, FILES_SHORT_FULL);
}
static void deaths_inline(void **state)
{
    every_call(state, false, FILES_KILL, FILES_KILL_WITHIN);
}
static void deaths_beside_training(void **state)
{
    every_call(state, true, FILES_KILL, FILES_KILL_WITHIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_inline),
        cmocka_unit_test(failures_beside_training),
        cmocka_unit_test(deaths_inline),
        cmocka_unit_test(deaths_beside_training),
    };
    return cmocka_run_group_tests_name("engine/write_errors", tests, scratch_create, scratch_remove);
}
