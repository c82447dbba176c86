/* The training loop: batches from a loader, an update every window, evaluation, checkpoints, hooks.
 * Invariants: it ends between two steps, so a stop loses nothing and a resumed run goes on where the data
 * was; a step is evaluated before it is saved, so its checkpoint never stands for a step whose evaluation is
 * missing. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/internal.h"

static bool stopped(const trd_train_options *o)
{
    return o->stop && *o->stop;
}

static bool steps_left(const trd_engine *engine)
{
    return engine->options.steps == 0 || engine->step < engine->options.steps;
}

static trd_status next_batch(trd_engine *engine, trd_loader *loader, trd_batch *batch)
{
    uint64_t begin = trd__now_ns();
    trd_status status = trd_loader_next(loader, batch);
    trd__profiler_span(engine, TRD__SPAN_BATCH, begin);
    return status;
}

static trd_status evaluate_all(trd_engine *engine, trd_loader *loader, int64_t batches)
{
    trd_batch batch;
    trd_status status = trd_loader_seek(loader, 0);
    for (int64_t i = 0; status == TRD_OK && (batches <= 0 || i < batches); i++) {
        status = next_batch(engine, loader, &batch);
        if (status == TRD_OK) status = trd_engine_eval_step(engine, &batch);
    }
    return status;
}

trd_status trd_engine_evaluate(trd_engine *engine, trd_loader *loader, int64_t batches,
                               trd_eval_result *result)
{
    if (!loader || !result)
        return trd__fail(TRD_INVALID_ARGUMENT, "evaluating: expected a loader and room for the result, found "
                                               "NULL");
    TRD_TRY(trd_engine_eval_begin(engine));
    TRD_TRY(trd__profiler_watch(engine, loader, "data: evaluation"));
    trd_status status = evaluate_all(engine, loader, batches);
    trd__profiler_unwatch(engine, loader);
    if (status != TRD_OK && status != TRD_END) return trd__fail_in(status, "evaluating");
    TRD_TRY(trd_engine_eval_end(engine));
    trd__metrics_eval_result(engine, result);
    return TRD_OK;
}

/* One call of trd_engine_train. */
typedef struct loop {
    trd_engine *engine;
    const trd_train_options *options;
    int64_t evaluated; /* the last step evaluated */
    bool in_step;      /* step_begin was called for the step in the making */
} loop;

/* event says what the hook is told beside the engine. */
static trd_status call_hook(const loop *l, const char *name, trd_train_hook hook, trd_train_event event)
{
    if (!hook) return TRD_OK;
    event.engine = l->engine;
    trd_status status = hook(l->options->hooks.user, &event);
    if (status == TRD_OK) return TRD_OK;
    const char *text = trd_status_text(status); /* all there is to say when no call failed before */
    return *trd_error_message() ? trd__fail_in(status, "training: the hook %s: %s", name, text)
                                : trd__fail(status, "training: the hook %s: %s", name, text);
}
#define HOOK(l, name, ...) call_hook(l, #name, (l)->options->hooks.name, (trd_train_event){__VA_ARGS__})

static trd_status evaluate(loop *l)
{
    const trd_train_options *o = l->options;
    trd_engine *engine = l->engine;
    trd_eval_result result;
    l->evaluated = engine->step;
    if (!o->eval) return TRD_OK;
    TRD_TRY(HOOK(l, eval_begin, .step = engine->step));
    TRD_TRY(trd_engine_evaluate(engine, o->eval, o->eval_steps, &result));
    return HOOK(l, eval_end, .step = engine->step, .result = &result);
}

static bool wants_evaluation(const trd_engine *engine, const trd_train_options *o)
{
    if (!steps_left(engine)) return o->eval_at_end;
    return o->eval_interval > 0 && engine->step % o->eval_interval == 0 && !stopped(o);
}

static trd_status begin_step(loop *l)
{
    if (l->in_step) return TRD_OK;
    l->in_step = true;
    return HOOK(l, step_begin, .step = l->engine->step + 1);
}

/* What follows an update. */
static trd_status end_step(loop *l)
{
    trd_engine *engine = l->engine;
    l->in_step = false;
    TRD_TRY(HOOK(l, step_end, .step = engine->step));
    if (wants_evaluation(engine, l->options)) TRD_TRY(evaluate(l));
    return trd__saver_writes(engine) ? trd_engine_save(engine, NULL, false, NULL) : TRD_OK;
}

static trd_status finish_step(loop *l)
{
    TRD_TRY(begin_step(l)); /* after a restore at the end of a window, no micro-batch came */
    TRD_TRY(trd_engine_update(l->engine));
    return end_step(l);
}

/* One micro-batch, or the whole step where that saves memory and the payload does not forbid it. */
static trd_status run_batch(loop *l, const trd_batch *batch)
{
    trd_engine *engine = l->engine;
    TRD_TRY(begin_step(l));
    bool whole = engine->micro_step == 0 && batch->update_step != TRD_UPDATE_LATER && trd__loop_fuses(engine);
    if (!whole) return trd_engine_fwd_bwd(engine, batch);
    TRD_TRY(trd_engine_train_step(engine, batch));
    return end_step(l);
}

/* The next training batch; *ended instead where there is none. */
static trd_status next_training_batch(const loop *l, trd_batch *batch, bool *ended)
{
    const int64_t step = l->engine->step + 1;
    TRD_TRY(HOOK(l, data_begin, .step = step));
    trd_status status = next_batch(l->engine, l->options->train, batch);
    *ended = status == TRD_END;
    if (status != TRD_OK && !*ended) return status;
    return HOOK(l, data_end, .step = step, .batch = *ended ? NULL : batch);
}

/* The last payload decides where it has a word on it, else the count. */
static bool is_update_due(const trd_engine *engine)
{
    if (engine->micro_step == 0) return false;
    if (engine->update_step != TRD_UPDATE_BY_COUNT) return engine->update_step == TRD_UPDATE_NOW;
    return engine->micro_step >= engine->options.gradient_accumulation_steps;
}

/* Feeds batches until the steps are done, the data ends, or a stop was asked for. A window that the data cut
 * short is applied: its gradients are divided by what was summed. */
static trd_status feed(loop *l)
{
    trd_engine *engine = l->engine;
    bool ended = false;
    while (!ended && (engine->micro_step > 0 || (steps_left(engine) && !stopped(l->options)))) {
        if (!is_update_due(engine)) { /* else restored at the end of a window */
            trd_batch batch;
            TRD_TRY(next_training_batch(l, &batch, &ended));
            if (ended) break;
            TRD_TRY(run_batch(l, &batch));
        }
        if (is_update_due(engine)) TRD_TRY(finish_step(l));
    }
    if (engine->micro_step == 0) return TRD_OK;
    trd__log(&engine->options.log, TRD_LOG_INFO,
             "step %lld: the data ended after %lld of %d micro-batches; the update is applied, divided by "
             "what they summed",
             (long long)engine->step + 1, (long long)engine->micro_step,
             engine->options.gradient_accumulation_steps);
    return finish_step(l);
}

/* Room for the checkpoints that the run will hold at a time: those it keeps for ever, and one more than it
 * keeps of the others, while one is written. */
static trd_status check_space(trd_engine *engine)
{
    const trd_engine_options *o = &engine->options;
    if (!trd__saver_writes(engine)) return TRD_OK;
    bool all = o->max_num_checkpoints_to_keep == 0, endless = o->steps == 0; /* ends with the data, unknown */
    int64_t steps = o->steps > engine->step ? o->steps - engine->step : 0;
    int64_t left = endless && !all ? INT64_MAX : steps / o->checkpoint_period + 1;
    int64_t most =
        (int64_t)o->max_num_checkpoints_to_keep + 1 + (o->keep_period ? steps / o->keep_period : 0);
    return trd__saver_check_space(engine, all || left < most ? left : most);
}

/* Goes on where the engine was in the data, which must be the data it was in. */
static trd_status find_place(trd_engine *engine, trd_loader *loader)
{
    uint64_t hash = trd_loader_stats(loader).content_hash;
    if (engine->data_position > 0 && engine->data_hash && engine->data_hash != hash)
        return trd__fail(
            TRD_INVALID_ARGUMENT,
            "training: the data files are not those that the first %lld steps read (content hash "
            "expected %016llx, found %016llx); put them back, or give another run_name",
            (long long)engine->step, (unsigned long long)engine->data_hash, (unsigned long long)hash);
    engine->data_hash = hash;
    return engine->data_position > 0 ? trd_loader_seek(loader, engine->data_position) : TRD_OK;
}

static trd_status run(loop *l)
{
    const trd_train_options *o = l->options;
    trd_engine *engine = l->engine;
    if (o->eval_at_start && !stopped(o)) TRD_TRY(evaluate(l));
    l->evaluated = engine->step; /* a run that finds nothing left to do is not evaluated again */
    TRD_TRY(feed(l));
    TRD_TRY(trd__queue_flush(engine));
    bool ended = !stopped(o) || !steps_left(engine);
    if (o->eval_at_end && ended && l->evaluated != engine->step) TRD_TRY(evaluate(l));
    if (trd__saver_writes(engine) && engine->dirty) TRD_TRY(trd_engine_save(engine, NULL, true, NULL));
    if (trd__saver_writes(engine))
        TRD_TRY(trd__saver_wait(engine)); /* whoever is told "done" may rely on it */
    return trd__metrics_flush_sinks(engine);
}

/* Between the checks and the end: what the hooks of training see. */
static trd_status train(trd_engine *engine, const trd_train_options *options)
{
    loop l = {.engine = engine, .options = options};
    TRD_TRY(check_space(engine));
    TRD_TRY(find_place(engine, options->train));
    TRD_TRY(HOOK(&l, train_begin, .step = engine->step));
    trd_status status = run(&l);
    char message[1024]; /* what the hook does must not hide why training ended */
    snprintf(message, sizeof message, "%s", trd_error_message());
    trd_status last = HOOK(&l, train_end, .step = engine->step, .status = status);
    return status == TRD_OK ? last : trd__fail(status, "%s", message);
}

trd_status trd_engine_train(trd_engine *engine, const trd_train_options *options)
{
    if (!options || !options->train)
        return trd__fail(TRD_INVALID_ARGUMENT, "training: expected a loader of training data, found none");
    TRD_TRY(trd__engine_check(engine));
    TRD_TRY(trd__profiler_watch(engine, options->train, "data"));
    trd_status status = train(engine, options);
    trd__profiler_unwatch(engine, options->train);
    return status;
}
