/* state.json: what a checkpoint holds beside its tensors, and restoring both. Invariants: numbers are written
 * so that they read back to the bit; a restore checks everything before it changes anything. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "engine/internal.h"
#include "tokenizer/unicode.h"

enum { FORMAT = 1 };

/* As text: a JSON number holds 53 bits. */
static void write_data_hash(const trd_engine *engine, trd__json_writer *w)
{
    char text[17];
    if (!engine->data_hash) return;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)engine->data_hash);
    trd__json_put_string(w, "data_content_hash", text);
}

/* A JSON number holds 53 bits: what a larger seed has above them is folded into them. */
static int64_t saved_seed(const trd_engine *engine)
{
    uint64_t seed = engine->options.init_weights_seed;
    return (int64_t)((seed ^ seed >> 53) & TRD__MOST_WHOLE);
}

trd_status trd__state_check_text(const char *what, const char *text)
{
    size_t bytes = text ? strlen(text) : 0;
    if (!text || trd__utf8_valid((const uint8_t *)text, bytes) == bytes) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT, "%s expected text in UTF-8, found other bytes", what);
}

trd_status trd__state_write(trd_engine *engine, const char *metadata, trd__json_writer *w)
{
    char *model = NULL;
    TRD_TRY(trd__state_check_text("metadata", metadata));
    TRD_TRY(trd_model_to_json(engine->model, trd_dtype_name(engine->options.weight_dtype), &model));
    w->indent = 1; /* people read it too */
    trd__json_open_object(w);
    trd__json_put_i64(w, "format", FORMAT);
    trd__json_put_i64(w, "step", engine->step);
    trd__json_put_i64(w, "micro_step_count", engine->micro_step);
    trd__json_put_i64(w, "total_micro_steps", engine->total_micro_steps);
    if (engine->micro_step) trd__json_put_i64(w, "update_step", engine->update_step);
    trd__json_put_i64(w, "data_position", (int64_t)engine->data_position);
    write_data_hash(engine, w);
    trd__json_put_i64(w, "init_weights_seed", saved_seed(engine));
    trd__json_put_string(w, "optimizer", engine->options.optimizer.type);
    if (metadata) trd__json_put_string(w, "metadata", metadata);
    if (engine->options.fingerprint) trd__json_put_string(w, "fingerprint", engine->options.fingerprint);
    trd__json_put_string(w, "model_config", model);
    trd__state_write_metrics(engine, w);
    trd__json_close(w);
    trd__free(model);
    return trd__json_finish(w);
}

/* What a checkpoint says, read before anything is changed. */
typedef struct saved {
    int64_t step, micro_step, total_micro_steps, data_position;
    uint64_t data_hash;  /* 0: the checkpoint does not say */
    int64_t update_step; /* the last micro-batch's */
    trd__saved_metrics metrics;
} saved;

static trd_status read_counts(trd__json root, saved *s)
{
    int64_t format;
    const char *hash = "0";
    TRD_TRY(trd__json_get_i64(root, "format", &format));
    if (format != FORMAT)
        return trd__json_fail(root, TRD_UNSUPPORTED, "format expected %d, found %lld", FORMAT,
                              (long long)format);
    TRD_TRY(trd__json_get_i64(root, "step", &s->step));
    TRD_TRY(trd__json_get_i64(root, "micro_step_count", &s->micro_step));
    TRD_TRY(trd__json_get_i64(root, "total_micro_steps", &s->total_micro_steps));
    TRD_TRY(trd__json_get_i64(root, "data_position", &s->data_position));
    TRD_TRY(trd__json_opt_i64(root, "update_step", &s->update_step));
    TRD_TRY(trd__json_opt_string(root, "data_content_hash", &hash));
    s->data_hash = strtoull(hash, NULL, 16);
    return TRD_OK;
}

static trd_status check_optimizer(const trd_engine *engine, trd__json root)
{
    const char *optimizer = engine->options.optimizer.type;
    TRD_TRY(trd__json_opt_string(root, "optimizer", &optimizer));
    if (strcmp(optimizer, engine->options.optimizer.type) == 0) return TRD_OK;
    return trd__json_fail(root, TRD_INVALID_ARGUMENT,
                          "opt_type expected \"%s\" (this run's), found \"%s\"; it is fixed on resume",
                          engine->options.optimizer.type, optimizer);
}

/* Dropout goes on drawing by the seed; parameters and all else come from the checkpoint. */
static trd_status check_seed(const trd_engine *engine, trd__json root)
{
    int64_t seed = saved_seed(engine);
    TRD_TRY(trd__json_opt_i64(root, "init_weights_seed", &seed));
    if (engine->options.dropout_rate == 0 || seed == saved_seed(engine)) return TRD_OK;
    return trd__json_fail(
        root, TRD_INVALID_ARGUMENT,
        "init_weights_seed expected %lld (this run's, which dropout draws by), found %lld; it "
        "is fixed on resume",
        (long long)saved_seed(engine), (long long)seed);
}

static trd_status check_fingerprint(const trd_engine *engine, trd__json root)
{
    const trd_engine_options *o = &engine->options;
    const char *fingerprint = NULL;
    TRD_TRY(trd__json_opt_string(root, "fingerprint", &fingerprint));
    if (!fingerprint || !o->fingerprint || !o->compare_fingerprint) return TRD_OK;
    return o->compare_fingerprint(o->compare_user, fingerprint, o->fingerprint);
}

static int restored_pieces(const trd_engine *engine, const saved *s, trd__role role)
{
    return trd__saved_pieces(engine, role, s->micro_step > 0);
}

typedef struct restored {
    const trd_engine *engine;
    const trd__stored *stored;
} restored;

static const trd_array *find_saved(const void *context, trd__role role, int i)
{
    const restored *from = context;
    const char *piece = from->engine->pieces[role].items[i].name;
    char name[512];
    return trd__stored_find(from->stored, trd__saved_name(role, piece, name, sizeof name));
}

/* Tensors that do not fit, for one message: the first are named, all are counted. */
typedef struct misfits {
    char text[1400]; /* leaves room for the rest of a message */
    size_t used;
    int count, shown;
} misfits;

static void add_misfit(misfits *m, const char *name, const char *expected, const char *found)
{
    enum { SHOWN = 10 };
    size_t room = sizeof m->text - m->used;
    m->count++;
    if (m->shown == SHOWN || m->shown < m->count - 1) return; /* once one is left out, all later ones are */
    int wrote = snprintf(m->text + m->used, room, "%s%s (expected %s, found %s)", m->used ? "; " : "", name,
                         expected, found);
    if (wrote < 0 || (size_t)wrote >= room) {
        m->text[m->used] = '\0';
        return;
    }
    m->used += (size_t)wrote;
    m->shown++;
}

static const char *type_text(trd_dtype dtype, const trd_shape *shape, char *text, size_t bytes)
{
    char dims[TRD__SHAPE_TEXT];
    snprintf(text, bytes, "%s %s", trd_dtype_name(dtype), trd__shape_text(shape, dims));
    return text;
}

/* Accumulators of another grad_dtype are converted. */
static bool fits(trd__role role, const trd__piece *piece, const trd_array *array)
{
    bool float_gradient =
        role == TRD__ROLE_GRADIENTS && (array->dtype == TRD_F32 || array->dtype == TRD_BF16);
    return (array->dtype == piece->dtype || float_gradient) && trd__shape_equal(&array->shape, &piece->shape);
}

static void compare_piece(const trd_engine *engine, const trd__stored *stored, trd__role role, int i,
                          misfits *m)
{
    enum { TEXT = TRD__SHAPE_TEXT + 32 };
    const trd__piece *piece = &engine->pieces[role].items[i];
    char name[512], want[TEXT], have[TEXT];
    trd__saved_name(role, piece->name, name, sizeof name);
    const trd_array *array = trd__stored_find(stored, name);
    if (array && fits(role, piece, array)) return;
    add_misfit(m, name, type_text(piece->dtype, &piece->shape, want, sizeof want),
               array ? type_text(array->dtype, &array->shape, have, sizeof have) : "none");
}

static bool is_expected(const trd_engine *engine, const saved *s, const char *name)
{
    char expected[512];
    for (trd__role role = 0; role < TRD__STATE_ROLES; role++)
        for (int i = 0; i < restored_pieces(engine, s, role); i++)
            if (strcmp(name, trd__saved_name(role, engine->pieces[role].items[i].name, expected,
                                             sizeof expected)) == 0)
                return true;
    return false;
}

static trd_status check_tensors(const trd_engine *engine, const trd__stored *stored, const saved *s)
{
    misfits m = {.count = 0};
    size_t expected = 0;
    char have[TRD__SHAPE_TEXT + 32];
    for (trd__role role = 0; role < TRD__STATE_ROLES; role++)
        for (int i = 0; i < restored_pieces(engine, s, role); i++, expected++)
            compare_piece(engine, stored, role, i, &m);
    if (m.count == 0 && expected == trd__stored_count(stored)) return TRD_OK;
    for (size_t i = 0; i < trd__stored_count(stored); i++) {
        const trd_array *array = trd__stored_at(stored, i);
        if (!is_expected(engine, s, array->name))
            add_misfit(&m, array->name, "none", type_text(array->dtype, &array->shape, have, sizeof have));
    }
    char more[48] = "";
    if (m.count > m.shown) snprintf(more, sizeof more, "; and %d more", m.count - m.shown);
    return trd__fail(TRD_SHAPE,
                     "%d tensors do not fit: the checkpoint is of another model or optimizer: %s%s", m.count,
                     m.text, more);
}

static trd_status write_sums(trd_engine *engine, const trd__saved_metrics *s)
{
    const trd__backend_table *table = engine->backend->table;
    double nonempty = 0;
    for (int64_t i = 0; i < s->pair_count; i++) nonempty += s->pairs[i].denominator != 0.0;
    const double sums[TRD__SUM_COUNT] = {[TRD__SUM_DENOMINATOR] = s->denominator,
                                         [TRD__SUM_LOSS] = s->tally.loss,
                                         [TRD__SUM_MEANS] = s->tally.means,
                                         [TRD__SUM_NONEMPTY] = nonempty};
    for (int i = 0; i < TRD__SUM_COUNT; i++)
        TRD_TRY(table->set_write(engine->backend, engine->state[TRD__ROLE_GRADIENTS],
                                 engine->trainable_count + i, &sums[i]));
    return TRD_OK;
}

static trd_status write_sets(trd_engine *engine, const trd__stored *stored, const saved *s)
{
    if (s->micro_step) TRD_TRY(trd__engine_reserve_gradients(engine));
    const restored from = {engine, stored};
    for (trd__role role = 0; role < TRD__STATE_ROLES; role++)
        TRD_TRY(trd__pieces_write(engine, role, s->micro_step > 0, find_saved, &from));
    return s->micro_step ? write_sums(engine, &s->metrics) : TRD_OK;
}

static void warn_converted(const trd_engine *engine, const trd__stored *stored, const saved *s)
{
    if (!s->micro_step || restored_pieces(engine, s, TRD__ROLE_GRADIENTS) == 0) return;
    trd_dtype now = engine->layout[TRD__ROLE_GRADIENTS].entries[0].dtype;
    trd_dtype before = find_saved(&(restored){engine, stored}, TRD__ROLE_GRADIENTS, 0)->dtype;
    if (before != now)
        trd__log(&engine->options.log, TRD_LOG_WARNING,
                 "restoring: the gradients of the unfinished step are %s and are converted to grad_dtype %s; "
                 "results may differ in their last bits",
                 trd_dtype_name(before), trd_dtype_name(now));
}

static void restore_counts(trd_engine *engine, const saved *s)
{
    engine->step = s->step;
    engine->micro_step = s->micro_step;
    engine->total_micro_steps = s->total_micro_steps;
    engine->update_step = (trd_update_step)s->update_step;
    engine->data_position = (uint64_t)s->data_position;
    engine->data_hash = s->data_hash;
    engine->dirty = false;
    engine->finish_saved_step = s->micro_step > 0;
    for (int role = 0; role < TRD__STATE_ROLES; role++)
        if (engine->state[role]) engine->state[role]->generation++;
    engine->base_step = s->step;
    engine->base_generation = engine->state[TRD__ROLE_PARAMS]->generation;
    engine->metrics.resumed_step = s->step;
    engine->metrics.begun = false; /* sinks drop what lies past the checkpoint */
    engine->metrics.last_done_ns = 0;
    engine->current.begin_ns = trd__now_ns(); /* of a step that goes on: its earlier time is not this run's */
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
    trd__programs_drop(engine, "a checkpoint is restored");
    return TRD_OK;
}

/* What differs in the config and what differs in the tensors, both in one message. */
static trd_status check_fit(trd_engine *engine, const trd__stored *stored, trd__json root, const saved *s)
{
    char config[512] = "";
    trd_status of_config = check_fingerprint(engine, root);
    if (of_config == TRD_OK) of_config = check_optimizer(engine, root);
    if (of_config == TRD_OK) of_config = check_seed(engine, root);
    if (of_config != TRD_OK) snprintf(config, sizeof config, "%s", trd_error_message());
    trd_status of_tensors = check_tensors(engine, stored, s);
    if (of_config == TRD_OK) return of_tensors;
    if (of_tensors == TRD_OK) return trd__fail(of_config, "%s", config);
    return trd__fail_in(of_config, "%s; and", config);
}

static trd_status read_saved(trd_engine *engine, const trd__stored *stored, trd__json root, saved *s)
{
    TRD_TRY(read_counts(root, s));
    TRD_TRY(check_fit(engine, stored, root, s));
    return trd__state_read_metrics(engine, root, s->micro_step, &s->metrics);
}

/* A failure to write the sets leaves them half written, so it sticks until a restore gets through. */
static trd_status apply(trd_engine *engine, const trd__stored *stored, const saved *s)
{
    TRD_TRY(settle(engine));
    warn_converted(engine, stored, s);
    trd_status status = write_sets(engine, stored, s);
    if (status != TRD_OK) return trd__engine_fail(engine, status, "writing the restored state");
    trd__state_apply_metrics(engine, &s->metrics);
    restore_counts(engine, s);
    trd__saver_restored(engine);
    return TRD_OK;
}

static trd_status restore_from(trd_engine *engine, const trd__stored *stored, trd__json root, char **metadata)
{
    const char *text = NULL;
    char *copy = NULL;
    saved *s = trd__calloc(1, sizeof *s);
    if (!s) return TRD_NO_MEMORY;
    trd_status status = read_saved(engine, stored, root, s);
    if (status == TRD_OK) status = trd__json_opt_string(root, "metadata", &text);
    if (status == TRD_OK && metadata && text && !(copy = trd__strdup(text))) status = TRD_NO_MEMORY;
    if (status == TRD_OK) status = apply(engine, stored, s);
    trd__saved_metrics_free(&s->metrics);
    trd__free(s);
    if (status != TRD_OK)
        trd__free(copy);
    else if (metadata)
        *metadata = copy;
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
