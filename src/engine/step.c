/* The step path: fwd_bwd, update and their fusion, evaluation and forward graphs. Each call checks and stages
 * everything, waits for the throttler, dispatches one program and returns. Invariants: a call that fails
 * before dispatch has changed nothing; nothing here allocates or walks the parameters once a payload's
 * programs are compiled. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/shape.h"
#include "engine/internal.h"

typedef struct prepared {
    trd_batch batch; /* adapted */
    trd__family *family;
    trd__payload_counts counts;
} prepared;

static trd_status prepare(trd_engine *engine, const trd_batch *payload, prepared *p)
{
    TRD_TRY(trd__engine_check(engine));
    if (engine->adapter && payload) {
        memset(&p->batch, 0, sizeof p->batch);
        TRD_TRY(engine->adapter(engine->adapter_user, payload, &p->batch));
        p->batch.position = payload->position;
        if (p->batch.update_step == TRD_UPDATE_BY_COUNT) p->batch.update_step = payload->update_step;
        TRD_TRY(trd__payload_check(engine, &p->batch));
    } else {
        TRD_TRY(trd__payload_check(engine, payload));
        p->batch = *payload;
    }
    TRD_TRY(trd__family_find(engine, &p->batch, &p->family));
    TRD_TRY(trd__family_rings(engine, p->family));
    return trd__payload_stage(engine, &p->batch, p->family, &p->counts);
}

/* Admits one run and gives it the staged payload. */
static trd_status dispatch(trd_engine *engine, const prepared *p, const trd__compiled *compiled,
                           trd__set *scalars, trd__set *results, trd__flight **flight)
{
    trd__family *family = p->family;
    TRD_TRY(trd__queue_admit(engine));
    trd__set *inputs = family->ring[family->ring_next];
    trd_status status = trd__payload_write(engine, family, inputs);
    if (status != TRD_OK) return trd__engine_fail(engine, status, "copying the payload");
    family->ring_next = (family->ring_next + 1) % family->ring_size;
    return trd__queue_run(engine, compiled, inputs, scalars, results, flight);
}

/* The next learning-rate set, written. */
static trd_status next_scalars(trd_engine *engine, double learning_rate, trd__set **scalars)
{
    float value = (float)learning_rate;
    trd__set *set = engine->scalar_ring[engine->scalar_next];
    trd_status status = engine->backend->table->set_write(engine->backend, set, 0, &value);
    if (status != TRD_OK) return trd__engine_fail(engine, status, "writing the learning rate");
    engine->scalar_next = (engine->scalar_next + 1) % (engine->max_inflight + 1);
    *scalars = set;
    return TRD_OK;
}

/* What an accepted micro-batch changes on the host. */
static void accept(trd_engine *engine, const prepared *p, const trd__compiled *compiled, uint64_t begin_ns)
{
    trd__step_record *record = &engine->current;
    int64_t rows = (int64_t)engine->options.rows * p->family->length;
    if (engine->micro_step == 0) record->begin_ns = begin_ns;
    record->tokens += (uint64_t)p->counts.tokens;
    record->flops += compiled->flops - compiled->optimizer_flops -
                     compiled->flops_per_weighted_row * (double)(rows - p->counts.weighted_rows);
    engine->step_eps = compiled->loss.eps;
    engine->step_min_denom = compiled->loss.min_denom;
    engine->update_step = p->batch.update_step;
    engine->micro_step++;
    engine->total_micro_steps++;
    engine->data_position = p->batch.position;
    engine->dirty = true;
    engine->stats.micro_batches++;
}

/* The step's numbers leave with the flight of its update. */
static void finish_step(trd_engine *engine, trd__flight *flight, double learning_rate)
{
    flight->record = engine->current;
    flight->record.step = engine->step + 1;
    flight->record.learning_rate = learning_rate;
    memset(&engine->current, 0, sizeof engine->current);
    engine->step++;
    engine->micro_step = 0;
    engine->stats.updates++;
}

static void finish_call(trd_engine *engine, trd__span_kind kind, uint64_t begin_ns)
{
    trd__profiler_span(engine, kind, begin_ns);
    engine->stats.host_ns += trd__now_ns() - begin_ns - engine->waited_ns;
    engine->waited_ns = 0;
}

static trd_status check_bounds(const trd_engine *engine, const trd__compiled *compiled)
{
    if (engine->micro_step == 0 ||
        (compiled->loss.eps == engine->step_eps && compiled->loss.min_denom == engine->step_min_denom))
        return TRD_OK;
    return trd__fail(TRD_STATE,
                     "fwd_bwd: expected the loss's eps %g and min_denom %g of the step's earlier "
                     "micro-batches, found %g and %g; call update first",
                     engine->step_eps, engine->step_min_denom, compiled->loss.eps, compiled->loss.min_denom);
}

static trd_status merge_contribution(trd_engine *engine, const trd__compiled *merge)
{
    trd__flight *flight;
    TRD_TRY(trd__queue_admit(engine));
    return trd__queue_run(engine, merge, NULL, NULL, NULL, &flight);
}

trd_status trd_engine_fwd_bwd(trd_engine *engine, const trd_batch *batch)
{
    trd__profiler_micro_batch(engine);
    uint64_t begin = trd__now_ns();
    prepared p;
    const trd__compiled *compiled, *merge = NULL;
    trd__flight *flight;
    engine->waited_ns = 0;
    TRD_TRY(prepare(engine, batch, &p));
    bool adds = engine->micro_step && !engine->contribution;
    trd__program_kind kind = adds ? TRD__PROGRAM_ACCUM : TRD__PROGRAM_FIRST;
    TRD_TRY(trd__program_get(engine, p.family, kind, &compiled));
    TRD_TRY(check_bounds(engine, compiled));
    TRD_TRY(trd__engine_reserve_gradients(engine));
    if (engine->contribution) TRD_TRY(trd__merge_get(engine, engine->micro_step > 0, &merge));
    TRD_TRY(dispatch(engine, &p, compiled, NULL, NULL, &flight));
    if (merge) TRD_TRY(merge_contribution(engine, merge));
    accept(engine, &p, compiled, begin);
    trd_status status = trd__queue_collect_ready(engine);
    finish_call(engine, TRD__SPAN_FWD_BWD, begin);
    return status;
}

trd_status trd_engine_update(trd_engine *engine)
{
    uint64_t begin = trd__now_ns();
    const trd__compiled *compiled;
    trd__set *scalars = NULL;
    trd__flight *flight;
    engine->waited_ns = 0;
    TRD_TRY(trd__engine_check(engine));
    if (engine->micro_step == 0) return TRD_OK;
    double learning_rate = trd_schedule_value(&engine->options.schedule, engine->step);
    TRD_TRY(trd__update_get(engine, engine->step_eps, engine->step_min_denom, &compiled));
    TRD_TRY(trd__queue_admit(engine));
    TRD_TRY(next_scalars(engine, learning_rate, &scalars));
    TRD_TRY(trd__queue_run(engine, compiled, NULL, scalars, NULL, &flight));
    finish_step(engine, flight, learning_rate);
    trd_status status = trd__queue_collect_ready(engine);
    finish_call(engine, TRD__SPAN_UPDATE, begin);
    return status;
}

trd_status trd_engine_train_step(trd_engine *engine, const trd_batch *batch)
{
    trd__profiler_micro_batch(engine);
    uint64_t begin = trd__now_ns();
    prepared p;
    const trd__compiled *compiled;
    trd__set *scalars = NULL;
    trd__flight *flight;
    engine->waited_ns = 0;
    if (engine->micro_step)
        return trd__fail(TRD_STATE,
                         "train_step: expected no accumulated gradients, found those of %lld micro-batches; "
                         "call update first",
                         (long long)engine->micro_step);
    if (trd__step_is_pair(engine)) {
        TRD_TRY(trd_engine_fwd_bwd(engine, batch));
        return trd_engine_update(engine);
    }
    TRD_TRY(prepare(engine, batch, &p));
    TRD_TRY(trd__program_get(engine, p.family, TRD__PROGRAM_TRAIN_STEP, &compiled));
    if (!trd__consumes_gradients(engine)) TRD_TRY(trd__engine_reserve_gradients(engine));
    double learning_rate = trd_schedule_value(&engine->options.schedule, engine->step);
    TRD_TRY(trd__queue_admit(engine));
    TRD_TRY(next_scalars(engine, learning_rate, &scalars));
    TRD_TRY(dispatch(engine, &p, compiled, scalars, NULL, &flight));
    accept(engine, &p, compiled, begin);
    finish_step(engine, flight, learning_rate);
    trd_status status = trd__queue_collect_ready(engine);
    finish_call(engine, TRD__SPAN_TRAIN_STEP, begin);
    return status;
}

trd_status trd_engine_eval_begin(trd_engine *engine)
{
    trd__profiler_settle(engine);
    TRD_TRY(trd__engine_check(engine));
    TRD_TRY(trd__queue_flush(engine));
    engine->metrics.eval = (trd__tally){0};
    return TRD_OK;
}

trd_status trd_engine_eval_step(trd_engine *engine, const trd_batch *batch)
{
    uint64_t begin = trd__now_ns();
    prepared p;
    const trd__compiled *compiled;
    trd__flight *flight;
    TRD_TRY(prepare(engine, batch, &p));
    TRD_TRY(trd__program_get(engine, p.family, TRD__PROGRAM_EVAL, &compiled));
    TRD_TRY(dispatch(engine, &p, compiled, NULL, NULL, &flight));
    trd_status status = trd__queue_collect_ready(engine);
    trd__profiler_span(engine, TRD__SPAN_EVAL_STEP, begin);
    return status;
}

trd_status trd_engine_eval_end(trd_engine *engine)
{
    TRD_TRY(trd__engine_check(engine));
    TRD_TRY(trd__queue_flush(engine));
    trd__metrics_finish_eval(engine);
    return trd__metrics_flush_sinks(engine);
}

/* Bytes of the forward result that belong to the payload's own rows. */
static size_t given_bytes(const trd_engine *engine, const trd__entry *output, int rows, size_t *all)
{
    *all = trd__entry_bytes(output);
    bool by_row = output->shape.rank > 0 && output->shape.dim[0] == engine->options.rows;
    return by_row ? *all / (size_t)engine->options.rows * (size_t)rows : *all;
}

static trd_status read_forward(trd_engine *engine, const trd__forward *forward, void *out, size_t given,
                               size_t all)
{
    const trd__backend_table *table = engine->backend->table;
    void *whole = given == all ? out : trd__alloc(all, 1);
    if (!whole) return TRD_NO_MEMORY;
    trd_status status = table->set_read(engine->backend, forward->results, 0, whole);
    if (status != TRD_OK) status = trd__engine_fail(engine, status, "reading a forward result");
    if (whole != out) {
        if (status == TRD_OK) memcpy(out, whole, given);
        trd__free(whole);
    }
    return status;
}

trd_status trd_engine_fwd_only(trd_engine *engine, trd_forward_function build, void *user,
                               const trd_batch *batch, void *out, size_t out_bytes)
{
    prepared p;
    trd__forward *forward;
    trd__flight *flight;
    size_t all;
    if (!build || !out)
        return trd__fail(TRD_INVALID_ARGUMENT, "fwd_only: expected a function and room for its result, found "
                                               "NULL");
    TRD_TRY(prepare(engine, batch, &p));
    TRD_TRY(trd__forward_get(engine, p.family, build, user, &forward));
    size_t given = given_bytes(engine, &forward->output, p.batch.rows, &all);
    if (out_bytes != given)
        return trd__fail(TRD_SHAPE, "fwd_only: expected room for %zu bytes of result, found %zu", given,
                         out_bytes);
    TRD_TRY(dispatch(engine, &p, &forward->compiled, NULL, forward->results, &flight));
    return read_forward(engine, forward, out, given, all);
}

trd_value trd_forward_token_logprobs(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)user;
    return trd_model_token_logprobs(b, model, in, (trd_value){NULL, 0});
}

trd_status trd_engine_compile(trd_engine *engine, const trd_batch *example)
{
    prepared p;
    TRD_TRY(prepare(engine, example, &p));
    return trd__family_compile(engine, p.family);
}
