/* state.json: what a checkpoint holds beside its tensors, and restoring both. Invariants: numbers are written
 * so that they read back to the bit; a restore checks everything before it changes anything. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/name_list.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "engine/internal.h"

enum { FORMAT = 1 };

static void write_micro_batches(const trd_engine *engine, trd__json_writer *w)
{
    const trd__metrics *m = &engine->metrics;
    trd__json_put_f64(w, "accumulated_denominator", m->train.denominator);
    trd__json_put_f64(w, "loss_eps", engine->step_eps);
    trd__json_put_f64(w, "loss_min_denom", engine->step_min_denom);
    trd__json_write_key(w, "micro_batches");
    trd__json_open_array(w);
    for (int64_t i = 0; i < m->pair_count; i++) {
        trd__json_open_object(w);
        trd__json_put_f64(w, "unreduced_sum", m->pairs[i].unreduced_sum);
        trd__json_put_f64(w, "denominator", m->pairs[i].denominator);
        trd__json_close(w);
    }
    trd__json_close(w);
    trd__json_write_key(w, "aux_metrics");
    trd__json_open_array(w);
    for (int i = 0; i < m->train.aux_count; i++) {
        const trd__weighted_sum *aux = &m->train.aux[i];
        size_t prefix = engine->options.metrics_prefix ? strlen(engine->options.metrics_prefix) : 0;
        trd__json_open_object(w);
        trd__json_put_string(w, "name", aux->name + prefix);
        trd__json_put_f64(w, "sum", aux->sum);
        trd__json_put_f64(w, "denominator", aux->denominator);
        trd__json_put_f64(w, "eps", aux->eps);
        trd__json_put_f64(w, "min_denom", aux->min_denom);
        trd__json_close(w);
    }
    trd__json_close(w);
    trd__json_put_i64(w, "tokens", (int64_t)engine->current.tokens);
    trd__json_put_f64(w, "flops", engine->current.flops);
}

static void write_history(const trd_engine *engine, trd__json_writer *w)
{
    const trd__metrics *m = &engine->metrics;
    size_t prefix = engine->options.metrics_prefix ? strlen(engine->options.metrics_prefix) : 0;
    trd__json_write_key(w, "metrics_history");
    trd__json_open_array(w);
    for (int i = 0; i < m->history_count; i++) {
        const trd__metric_record *record = &m->history[(m->history_first + i) % TRD__HISTORY];
        trd__json_open_object(w);
        trd__json_put_i64(w, "step", record->step);
        trd__json_write_key(w, "metrics");
        trd__json_open_object(w);
        for (int k = 0; k < record->count; k++)
            trd__json_put_f64(w, record->metrics[k].name + prefix, record->metrics[k].value);
        trd__json_close(w);
        trd__json_close(w);
    }
    trd__json_close(w);
}

/* As text: a JSON number holds 53 bits. */
static void write_data_hash(const trd_engine *engine, trd__json_writer *w)
{
    char text[17];
    if (!engine->data_hash) return;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)engine->data_hash);
    trd__json_put_string(w, "data_content_hash", text);
}

trd_status trd__state_write(trd_engine *engine, const char *metadata, trd__json_writer *w)
{
    char *model = NULL;
    TRD_TRY(trd_model_to_json(engine->model, trd_dtype_name(engine->options.weight_dtype), &model));
    trd__json_open_object(w);
    trd__json_put_i64(w, "format", FORMAT);
    trd__json_put_i64(w, "step", engine->step);
    trd__json_put_i64(w, "micro_step_count", engine->micro_step);
    trd__json_put_i64(w, "total_micro_steps", engine->total_micro_steps);
    trd__json_put_i64(w, "data_position", (int64_t)engine->data_position);
    write_data_hash(engine, w);
    trd__json_put_i64(w, "init_weights_seed", (int64_t)(engine->options.init_weights_seed & INT64_MAX));
    trd__json_put_string(w, "optimizer", engine->options.optimizer.type);
    if (metadata) trd__json_put_string(w, "metadata", metadata);
    if (engine->options.fingerprint) trd__json_put_string(w, "fingerprint", engine->options.fingerprint);
    trd__json_put_string(w, "model_config", model);
    if (engine->micro_step) write_micro_batches(engine, w);
    write_history(engine, w);
    trd__json_close(w);
    trd__free(model);
    return trd__json_finish(w);
}

/* What a checkpoint says, read before anything is changed. */
typedef struct saved {
    int64_t step, micro_step, total_micro_steps, data_position, tokens;
    uint64_t data_hash; /* 0: the checkpoint does not say */
    double flops, denominator, eps, min_denom;
    trd__micro_pair *pairs;
    int64_t pair_count;
} saved;

static trd_status read_pairs(trd__json root, saved *s)
{
    trd__json list = trd__json_find(root, "micro_batches");
    s->pair_count = (int64_t)trd__json_count(list);
    s->pairs = trd__calloc((size_t)s->pair_count + 1, sizeof *s->pairs);
    if (!s->pairs) return TRD_NO_MEMORY;
    trd__micro_pair *pair = s->pairs;
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v), pair++) {
        pair->unreduced_sum = NAN; /* a sum that was not finite was written as null */
        TRD_TRY(trd__json_opt_f64(v, "unreduced_sum", &pair->unreduced_sum));
        TRD_TRY(trd__json_get_f64(v, "denominator", &pair->denominator));
    }
    return TRD_OK;
}

/* The denominator of the accumulated gradients, rebuilt from the micro-batches where the field is missing. */
static trd_status read_middle(trd__json root, saved *s)
{
    bool known = trd__json_exists(trd__json_find(root, "accumulated_denominator"));
    TRD_TRY(trd__json_opt_f64(root, "accumulated_denominator", &s->denominator));
    TRD_TRY(trd__json_opt_f64(root, "loss_eps", &s->eps));
    TRD_TRY(trd__json_opt_f64(root, "loss_min_denom", &s->min_denom));
    TRD_TRY(trd__json_opt_i64(root, "tokens", &s->tokens));
    TRD_TRY(trd__json_opt_f64(root, "flops", &s->flops));
    TRD_TRY(read_pairs(root, s));
    if (!known && s->pair_count != s->micro_step)
        return trd__json_fail(root, TRD_CORRUPT,
                              "inside a step, accumulated_denominator is missing and cannot be rebuilt: "
                              "expected %lld micro_batches, found %lld",
                              (long long)s->micro_step, (long long)s->pair_count);
    for (int64_t i = 0; !known && i < s->pair_count; i++) s->denominator += s->pairs[i].denominator;
    return TRD_OK;
}

static trd_status read_counts(const trd_engine *engine, trd__json root, saved *s)
{
    int64_t format;
    const char *optimizer = engine->options.optimizer.type, *hash = "0";
    TRD_TRY(trd__json_get_i64(root, "format", &format));
    if (format != FORMAT)
        return trd__json_fail(root, TRD_UNSUPPORTED, "format expected %d, found %lld", FORMAT,
                              (long long)format);
    TRD_TRY(trd__json_get_i64(root, "step", &s->step));
    TRD_TRY(trd__json_get_i64(root, "micro_step_count", &s->micro_step));
    TRD_TRY(trd__json_get_i64(root, "total_micro_steps", &s->total_micro_steps));
    TRD_TRY(trd__json_get_i64(root, "data_position", &s->data_position));
    TRD_TRY(trd__json_opt_string(root, "data_content_hash", &hash));
    s->data_hash = strtoull(hash, NULL, 16);
    TRD_TRY(trd__json_opt_string(root, "optimizer", &optimizer));
    if (strcmp(optimizer, engine->options.optimizer.type) != 0)
        return trd__json_fail(root, TRD_INVALID_ARGUMENT,
                              "opt_type expected \"%s\" (this run's), found \"%s\"; it is fixed on resume",
                              engine->options.optimizer.type, optimizer);
    return s->micro_step ? read_middle(root, s) : TRD_OK;
}

static trd_status check_fingerprint(const trd_engine *engine, trd__json root)
{
    const trd_engine_options *o = &engine->options;
    const char *fingerprint = NULL;
    TRD_TRY(trd__json_opt_string(root, "fingerprint", &fingerprint));
    if (!fingerprint || !o->fingerprint || !o->compare_fingerprint) return TRD_OK;
    return o->compare_fingerprint(o->compare_user, fingerprint, o->fingerprint);
}

static int restored_entries(const trd_engine *engine, const saved *s, int role)
{
    if (role == TRD__ROLE_GRADIENTS) return s->micro_step ? engine->trainable_count : 0;
    return engine->layout[role].count;
}

static const trd_array *find_saved(const trd_engine *engine, const trd__stored *stored, int role, int i)
{
    char name[512];
    return trd__stored_find(stored,
                            trd__saved_name(role, engine->layout[role].entries[i].name, name, sizeof name));
}

static trd_status check_tensors(const trd_engine *engine, const trd__stored *stored, const saved *s)
{
    trd__name_list missing = {.count = 0};
    size_t expected = 0;
    for (int role = 0; role < TRD__STATE_ROLES; role++)
        for (int i = 0; i < restored_entries(engine, s, role); i++, expected++) {
            const trd__entry *entry = &engine->layout[role].entries[i];
            const trd_array *array = find_saved(engine, stored, role, i);
            char want[TRD__SHAPE_TEXT], have[TRD__SHAPE_TEXT];
            if (!array) {
                trd__name_list_add(&missing, entry->name);
            } else if (array->dtype != entry->dtype || !trd__shape_equal(&array->shape, &entry->shape)) {
                return trd__fail(TRD_SHAPE, "restoring tensor %s: expected %s %s, found %s %s", array->name,
                                 trd_dtype_name(entry->dtype), trd__shape_text(&entry->shape, want),
                                 trd_dtype_name(array->dtype), trd__shape_text(&array->shape, have));
            }
        }
    char text[2 * TRD__NAME_LIST_TEXT];
    if (missing.count)
        return trd__fail(TRD_CORRUPT, "restoring: expected every tensor of the run, %s missing",
                         trd__name_list_text(&missing, text, sizeof text));
    if (trd__stored_count(stored) != expected)
        return trd__fail(TRD_CORRUPT,
                         "restoring: expected %zu tensors, found %zu: the checkpoint is of another model or "
                         "optimizer",
                         expected, trd__stored_count(stored));
    return TRD_OK;
}

static trd_status write_sets(trd_engine *engine, const trd__stored *stored, const saved *s)
{
    const trd__backend_table *table = engine->backend->table;
    for (int role = 0; role < TRD__STATE_ROLES; role++)
        for (int i = 0; i < restored_entries(engine, s, role); i++)
            TRD_TRY(table->set_write(engine->backend, engine->state[role], i,
                                     find_saved(engine, stored, role, i)->data));
    if (!s->micro_step) return TRD_OK;
    const trd__tally *tally = &engine->metrics.train;
    double nonempty = 0;
    for (int64_t i = 0; i < s->pair_count; i++) nonempty += s->pairs[i].denominator != 0.0;
    const double sums[TRD__SUM_COUNT] = {[TRD__SUM_DENOMINATOR] = s->denominator,
                                         [TRD__SUM_LOSS] = tally->loss,
                                         [TRD__SUM_MEANS] = tally->means,
                                         [TRD__SUM_NONEMPTY] = nonempty};
    for (int i = 0; i < TRD__SUM_COUNT; i++)
        TRD_TRY(table->set_write(engine->backend, engine->state[TRD__ROLE_GRADIENTS],
                                 engine->trainable_count + i, &sums[i]));
    return TRD_OK;
}

static trd_status restore_history(trd_engine *engine, trd__json root)
{
    trd__metrics *m = &engine->metrics;
    m->history_first = m->history_count = 0;
    m->history_dropped = 0;
    m->latest.step = -1;
    trd__json list = trd__json_find(root, "metrics_history");
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v)) {
        m->latest.count = 0;
        TRD_TRY(trd__json_get_i64(v, "step", &m->latest.step));
        trd__json metrics = trd__json_find(v, "metrics");
        for (trd__json x = trd__json_first(metrics); trd__json_exists(x); x = trd__json_next(x)) {
            double value = NAN;
            const char *name = trd__metrics_name(engine, trd__json_key(x));
            if (!name) return TRD_NO_MEMORY;
            if (trd__json_kind_of(x) == TRD__JSON_NUMBER) TRD_TRY(trd__json_as_f64(x, &value));
            if (m->latest.count < TRD__STEP_METRICS)
                m->latest.metrics[m->latest.count++] = (trd_metric){name, value};
        }
        trd__metrics_history_add(engine, &m->latest);
    }
    return TRD_OK;
}

/* The tally of the micro-batches that are accumulated, as it was. */
static trd_status restore_tally(trd_engine *engine, trd__json root, const saved *s)
{
    trd__metrics *m = &engine->metrics;
    const trd__loss_info info = {.eps = s->eps, .min_denom = s->min_denom};
    m->train = (trd__tally){0};
    m->pair_count = 0;
    TRD_TRY(trd__metrics_reserve(engine, s->pair_count));
    for (int64_t i = 0; i < s->pair_count; i++) {
        const double results[TRD__RESULT_COUNT] = {[TRD__RESULT_LOSS] = s->pairs[i].unreduced_sum,
                                                   [TRD__RESULT_DENOMINATOR] = s->pairs[i].denominator};
        m->pairs[m->pair_count++] = s->pairs[i];
        trd__tally_add(&m->train, &info, results);
    }
    trd__json list = trd__json_find(root, "aux_metrics");
    for (trd__json v = trd__json_first(list); trd__json_exists(v); v = trd__json_next(v)) {
        const char *name;
        trd__weighted_sum aux = {.sum = NAN};
        TRD_TRY(trd__json_get_string(v, "name", &name));
        aux.name = trd__metrics_name(engine, name);
        if (!aux.name) return TRD_NO_MEMORY;
        TRD_TRY(trd__json_opt_f64(v, "sum", &aux.sum));
        TRD_TRY(trd__json_opt_f64(v, "denominator", &aux.denominator));
        TRD_TRY(trd__json_opt_f64(v, "eps", &aux.eps));
        TRD_TRY(trd__json_opt_f64(v, "min_denom", &aux.min_denom));
        if (m->train.aux_count < TRD_MAX_AUX) m->train.aux[m->train.aux_count++] = aux;
    }
    return TRD_OK;
}

static void restore_counts(trd_engine *engine, const saved *s)
{
    engine->step = s->step;
    engine->micro_step = s->micro_step;
    engine->total_micro_steps = s->total_micro_steps;
    engine->data_position = (uint64_t)s->data_position;
    engine->data_hash = s->data_hash;
    engine->step_eps = s->eps;
    engine->step_min_denom = s->min_denom;
    memset(&engine->current, 0, sizeof engine->current);
    engine->current.tokens = (uint64_t)s->tokens;
    engine->current.flops = s->flops;
    engine->dirty = false;
    engine->finish_saved_step = s->micro_step > 0;
    for (int role = 0; role < TRD__STATE_ROLES; role++) engine->state[role]->generation++;
    engine->base_step = s->step;
    engine->base_generation = engine->state[TRD__ROLE_PARAMS]->generation;
    engine->metrics.resumed_step = s->step;
    engine->metrics.begun = false; /* sinks drop what lies past the checkpoint */
    engine->metrics.last_done_ns = 0;
}

static trd_status apply(trd_engine *engine, const trd__stored *stored, trd__json root, const saved *s)
{
    TRD_TRY(restore_tally(engine, root, s));
    TRD_TRY(restore_history(engine, root));
    TRD_TRY(write_sets(engine, stored, s));
    restore_counts(engine, s);
    return TRD_OK;
}

/* Queued results are published; after a device failure what is queued is lost, and the failure forgotten. */
static trd_status settle(trd_engine *engine)
{
    if (engine->sticky == TRD_OK) {
        TRD_TRY(trd__queue_flush(engine));
    } else {
        engine->backend->table->drain(engine->backend);
        engine->backend->table->reset(engine->backend);
        trd__queue_abandon(engine);
        engine->sticky = TRD_OK;
    }
    trd__programs_drop(engine);
    return TRD_OK;
}

static trd_status restore_from(trd_engine *engine, const trd__stored *stored, trd__json root, char **metadata)
{
    saved s = {.pairs = NULL};
    const char *text = NULL;
    trd_status status = check_fingerprint(engine, root);
    if (status == TRD_OK) status = read_counts(engine, root, &s);
    if (status == TRD_OK) status = check_tensors(engine, stored, &s);
    if (status == TRD_OK) status = trd__json_opt_string(root, "metadata", &text);
    if (status == TRD_OK) status = settle(engine);
    if (status == TRD_OK) status = apply(engine, stored, root, &s);
    trd__free(s.pairs);
    if (status == TRD_OK && metadata && text && !(*metadata = trd__strdup(text))) status = TRD_NO_MEMORY;
    return status;
}

trd_status trd_engine_restore(trd_engine *engine, int64_t step, char **metadata)
{
    trd__stored *stored = NULL;
    trd__json_doc *doc = NULL;
    size_t bytes;
    char name[TRD__STORE_NAME_TEXT];
    if (metadata) *metadata = NULL;
    TRD_TRY(trd__saver_open(engine, step, &stored));
    trd__store_name_text(trd__stored_name(stored), name);
    const char *json = trd__stored_json(stored, &bytes);
    trd_status status = trd__json_parse(json, bytes, "state.json", &doc);
    if (status == TRD_OK) status = restore_from(engine, stored, trd__json_root(doc), metadata);
    if (status != TRD_OK)
        trd__fail_in(status, "restoring checkpoint %s", name);
    else
        trd__log(&engine->options.log, TRD_LOG_INFO, "restored checkpoint %s: step %lld, %lld micro-batches",
                 name, (long long)engine->step, (long long)engine->micro_step);
    trd__json_free(doc);
    trd__stored_close(stored);
    return status;
}
