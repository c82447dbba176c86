/* The training loop: batches from a loader, an update every window, evaluation, checkpoints, hooks.
 * Invariants: it ends between two steps, so a stop loses nothing and a resumed run goes on where the data
 * was; a step is evaluated before it is saved, so its checkpoint never stands for a step whose evaluation is
 * missing. */
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
    TRD_TRY(trd_engine_eval_begin(engine));
    TRD_TRY(trd__profiler_watch(engine, loader, "data: evaluation"));
    trd_status status = evaluate_all(engine, loader, batches);
    trd__profiler_unwatch(engine, loader);
    if (status != TRD_OK && status != TRD_END) return trd__fail_in(status, "evaluating");
    TRD_TRY(trd_engine_eval_end(engine));
    trd__metrics_eval_result(engine, result);
    return TRD_OK;
}

static trd_status evaluate(trd_engine *engine, const trd_train_options *o)
{
    trd_eval_result result;
    if (!o->eval) return TRD_OK;
    TRD_TRY(trd_engine_evaluate(engine, o->eval, o->eval_steps, &result));
    if (o->on_eval) o->on_eval(o->user, engine->step, result.loss);
    return TRD_OK;
}

static bool wants_evaluation(const trd_engine *engine, const trd_train_options *o)
{
    if (!steps_left(engine)) return o->eval_at_end;
    return o->eval_interval > 0 && engine->step % o->eval_interval == 0 && !stopped(o);
}

static trd_status finish_step(trd_engine *engine, const trd_train_options *o, int64_t *evaluated)
{
    TRD_TRY(trd_engine_update(engine));
    if (o->on_step) o->on_step(o->user, engine->step);
    if (wants_evaluation(engine, o)) {
        TRD_TRY(evaluate(engine, o));
        *evaluated = engine->step;
    }
    return trd__saver_writes(engine) ? trd_engine_save(engine, NULL, false, NULL) : TRD_OK;
}

/* Feeds batches until the steps are done, the data ends, or a stop was asked for. A window that the data cut
 * short is applied: its gradients are divided by what was summed. *evaluated: the last step evaluated. */
static trd_status feed(trd_engine *engine, const trd_train_options *o, int64_t *evaluated)
{
    const int window = engine->options.gradient_accumulation_steps;
    trd_status status = TRD_OK;
    while (engine->micro_step > 0 || (steps_left(engine) && !stopped(o))) {
        trd_batch batch;
        bool full = engine->micro_step >= window; /* also after a restore at the end of a window */
        if (!full) {
            status = next_batch(engine, o->train, &batch);
            if (status != TRD_OK) break;
            TRD_TRY(trd_engine_fwd_bwd(engine, &batch));
            full = batch.update_step >= 0 ? batch.update_step != 0 : engine->micro_step >= window;
        }
        if (full) TRD_TRY(finish_step(engine, o, evaluated));
    }
    if (status != TRD_OK && status != TRD_END) return status;
    if (engine->micro_step > 0) {
        trd__log(
            &engine->options.log, TRD_LOG_INFO,
            "step %lld: the data ended after %lld of %d micro-batches; the update is applied, divided by "
            "what they summed",
            (long long)engine->step + 1, (long long)engine->micro_step, window);
        TRD_TRY(finish_step(engine, o, evaluated));
    }
    return TRD_OK;
}

/* Room for the checkpoints that the run will hold at a time: one more than it keeps, while one is written. */
static trd_status check_space(trd_engine *engine)
{
    const trd_engine_options *o = &engine->options;
    if (!trd__saver_writes(engine)) return TRD_OK;
    int64_t left = o->steps > engine->step ? (o->steps - engine->step) / o->checkpoint_period + 1 : 1;
    int64_t keep = o->max_num_checkpoints_to_keep;
    return trd__saver_check_space(engine, keep > 0 && keep + 1 < left ? keep + 1 : left);
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

static trd_status train(trd_engine *engine, const trd_train_options *options)
{
    TRD_TRY(check_space(engine));
    TRD_TRY(find_place(engine, options->train));
    if (options->eval_at_start && !stopped(options)) TRD_TRY(evaluate(engine, options));
    int64_t evaluated = engine->step; /* a run that finds nothing left to do is not evaluated again */
    TRD_TRY(feed(engine, options, &evaluated));
    TRD_TRY(trd__queue_flush(engine));
    bool ended = !stopped(options) || !steps_left(engine);
    if (options->eval_at_end && ended && evaluated != engine->step) TRD_TRY(evaluate(engine, options));
    if (trd__saver_writes(engine) && engine->dirty) TRD_TRY(trd_engine_save(engine, NULL, true, NULL));
    return trd__metrics_flush_sinks(engine);
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
