/* Creating, configuring and closing an engine. Invariant: an engine that create returned is whole; close
 * undoes creation in reverse order whatever happened in between. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/rng.h"
#include "engine/internal.h"

enum { MOST_INFLIGHT = 64 }; /* each costs a set of inputs */

trd_engine_options trd_engine_defaults(void)
{
    return (trd_engine_options){
        .dtype = TRD_F32,
        .weight_dtype = TRD_F32,
        .grad_dtype = TRD_F32,
        .rows = 1,
        .length = 1024,
        .gradient_accumulation_steps = 1,
        .optimizer = {.type = "adamw",
                      .b1 = 0.9,
                      .b2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .mu_dtype = TRD_F32,
                      .muon = {.beta = 0.95},
                      .adafactor = {.decay_rate = 0.8,
                                    .clipping_threshold = 1.0,
                                    .eps = 1e-30,
                                    .min_dim_size_to_factor = 128,
                                    .scale_by_parameter = true}},
        .schedule = {.type = TRD_SCHEDULE_COSINE,
                     .learning_rate = 3e-5,
                     .warmup_steps_fraction = 0.1,
                     .final_fraction = 0.1,
                     .decay_steps_fraction = 0.1},
        .gradient_clipping_threshold = 1.0,
        .skip_step_on_nonfinite = true,
        .skip_step_interval = 128,
        .skip_step_scaling_factor = 6.0,
        .max_inflight_computations = 2,
        .checkpoint_period = 1000,
        .max_num_checkpoints_to_keep = 3,
        .async_checkpointing = true,
        .profiler = {.skip_first_steps = 1, .steps = 5, .period = -1},
    };
}

trd_status trd__engine_fail(trd_engine *engine, trd_status status, const char *doing)
{
    if (engine->sticky == TRD_OK) {
        trd__fail_in(status, "step %lld: %s", (long long)engine->step + 1, doing);
        engine->sticky = status;
        snprintf(engine->sticky_message, sizeof engine->sticky_message, "%s", trd_error_message());
    }
    return trd__fail(engine->sticky, "%s", engine->sticky_message);
}

void trd__engine_defer(trd_engine *engine, trd_status status)
{
    if (status == TRD_OK || engine->deferred != TRD_OK) return;
    engine->deferred = status;
    snprintf(engine->deferred_message, sizeof engine->deferred_message, "%s", trd_error_message());
    trd__log(&engine->options.log, TRD_LOG_ERROR, "%s", engine->deferred_message);
}

trd_status trd__engine_check(trd_engine *engine)
{
    if (engine->sticky != TRD_OK) return trd__fail(engine->sticky, "%s", engine->sticky_message);
    if (engine->saver) trd__saver_poll(engine);
    if (engine->deferred == TRD_OK) return TRD_OK;
    trd_status status = engine->deferred;
    engine->deferred = TRD_OK;
    return trd__fail(status, "%s", engine->deferred_message);
}

static trd_status check_options(const trd_engine_options *o)
{
    struct {
        const char *name;
        int64_t value, least;
    } const whole[] = {{"micro_batch_size_to_train_on", o->rows, 1},
                       {"max_target_length", o->length, 1},
                       {"gradient_accumulation_steps", o->gradient_accumulation_steps, 1},
                       {"steps", o->steps, 0},
                       {"max_inflight_computations", o->max_inflight_computations, 1},
                       {"skip_step_interval", o->skip_step_on_spikes ? o->skip_step_interval : 2, 2},
                       {"checkpoint_period", o->checkpoint_directory ? o->checkpoint_period : 1, 1},
                       {"max_num_checkpoints_to_keep", o->max_num_checkpoints_to_keep, 0},
                       {"keep_period", o->keep_period, 0}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (whole[i].value < whole[i].least)
            return trd__fail(TRD_INVALID_ARGUMENT, "creating an engine: %s expected %lld or more, found %lld",
                             whole[i].name, (long long)whole[i].least, (long long)whole[i].value);
    if (o->max_inflight_computations > MOST_INFLIGHT)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "creating an engine: max_inflight_computations expected at most %d, found %d",
                         MOST_INFLIGHT, o->max_inflight_computations);
    if (!(o->gradient_clipping_threshold >= 0))
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "creating an engine: gradient_clipping_threshold expected 0 (off) or more, found %g",
                         o->gradient_clipping_threshold);
    if (!(o->dropout_rate >= 0 && o->dropout_rate < 1))
        return trd__fail(
            TRD_INVALID_ARGUMENT,
            "creating an engine: dropout_rate expected 0 (off) or more and less than 1, found %g",
            o->dropout_rate);
    const struct {
        const char *name;
        trd_dtype value;
    } dtypes[] = {{"dtype", o->dtype},
                  {"weight_dtype", o->weight_dtype},
                  {"grad_dtype", o->grad_dtype},
                  {"mu_dtype", o->optimizer.mu_dtype}};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].value != TRD_F32 && dtypes[i].value != TRD_BF16)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "creating an engine: %s expected float32 or bfloat16, found %s", dtypes[i].name,
                             trd_dtype_name(dtypes[i].value));
    return TRD_OK;
}

static trd_status copy_text(trd__arena *arena, const char **text)
{
    if (!*text) return TRD_OK;
    *text = trd__arena_strdup(arena, *text);
    return *text ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status copy_list(trd__arena *arena, const char *const **list, int count)
{
    const char **own = trd__arena_alloc(arena, (size_t)count + 1, sizeof *own);
    if (!own) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        own[i] = (*list)[i];
        TRD_TRY(copy_text(arena, &own[i]));
    }
    *list = own;
    return TRD_OK;
}

/* Takes the options over: every text and list becomes the engine's own. */
static trd_status copy_options(trd_engine *engine)
{
    trd_engine_options *o = &engine->options;
    const char **texts[] = {&o->model_name,    &o->load_parameters_path,    &o->optimizer.type,
                            &o->backend,       &o->compile_cache_directory, &o->plugin_path,
                            &o->compile_flags, &o->checkpoint_directory,    &o->metrics_prefix,
                            &o->fingerprint,   &o->profiler.directory};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) TRD_TRY(copy_text(engine->arena, texts[i]));
    size_t sinks = (size_t)o->sink_count;
    TRD_TRY(copy_list(engine->arena, &o->optimizer.mask, o->optimizer.mask_count));
    TRD_TRY(copy_list(engine->arena, &o->freeze, o->freeze_count));
    trd_metric_sink *own = trd__arena_alloc(engine->arena, sinks + 1, sizeof *own);
    if (!own) return TRD_NO_MEMORY;
    if (sinks) memcpy(own, o->sinks, sinks * sizeof *own);
    o->sinks = own;
    if (o->schedule.schedule_steps <= 0) o->schedule.schedule_steps = o->steps;
    return TRD_OK;
}

/* frozen[i], cleared at first: whether a pattern is found in the name of parameter i. */
static trd_status find_frozen(const trd_engine *engine, bool *frozen, bool *matched)
{
    const trd_engine_options *o = &engine->options;
    for (int p = 0; p < o->freeze_count; p++) {
        bool any = false;
        TRD_TRY(trd__model_match(engine->model, "freeze", o->freeze[p], matched));
        for (int i = 0; i < engine->model->parameter_count; i++) {
            frozen[i] = frozen[i] || matched[i];
            any = any || matched[i];
        }
        if (!any)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "freeze: the regular expression \"%s\" matches no parameter of the model; "
                             "parameters are called as in its files, for example %s",
                             o->freeze[p], engine->model->parameters[0].name);
    }
    return TRD_OK;
}

/* What is not frozen gets gradients, optimizer state and updates. */
static trd_status choose_trainable(trd_engine *engine)
{
    size_t count = (size_t)engine->model->parameter_count;
    bool *frozen = trd__calloc(2 * count + 1, sizeof *frozen);
    engine->trainable = trd__arena_alloc(engine->arena, count + 1, sizeof *engine->trainable);
    trd_status status = frozen && engine->trainable ? TRD_OK : TRD_NO_MEMORY;
    if (status == TRD_OK) status = find_frozen(engine, frozen, frozen + count);
    if (status == TRD_OK) status = trd__model_by_stack(engine->model, "freeze", frozen, frozen + count);
    for (int i = 0; status == TRD_OK && i < engine->model->stack_count; i++)
        if (!frozen[count + (size_t)i]) engine->trainable[engine->trainable_count++] = i;
    trd__free(frozen);
    if (status == TRD_OK && count > 0 && engine->trainable_count == 0)
        return trd__fail(TRD_INVALID_ARGUMENT, "freeze: expected parameters to train, found all %zu frozen",
                         count);
    return status;
}

static trd_status create_optimizer(trd_engine *engine)
{
    const trd_optimizer_options *o = &engine->options.optimizer;
    TRD_TRY(trd__optimizer_find(o->type, &engine->optimizer));
    if (engine->optimizer->check) TRD_TRY(engine->optimizer->check(o));
    size_t count = (size_t)engine->model->parameter_count;
    engine->decays = trd__arena_alloc(engine->arena, count + 1, sizeof *engine->decays);
    if (!engine->decays) return TRD_NO_MEMORY;
    TRD_TRY(choose_trainable(engine));
    return trd__optimizer_decays(engine->optimizer, o, engine->model, engine->decays);
}

static trd_status create_state_set(trd_engine *engine, trd__role role)
{
    static const char *const names[TRD__STATE_ROLES] = {"params", "optimizer", "gradients", "model_state"};
    const trd__layout *layout = trd__mesh_device_layout(engine, role);
    return engine->backend->table->set_create(engine->backend, names[role], layout->entries, layout->count,
                                              &engine->state[role]);
}

trd_status trd__engine_reserve_gradients(trd_engine *engine)
{
    return engine->state[TRD__ROLE_GRADIENTS] ? TRD_OK : create_state_set(engine, TRD__ROLE_GRADIENTS);
}

static trd_status create_sets(trd_engine *engine)
{
    const trd__backend_table *table = engine->backend->table;
    for (trd__role role = 0; role < TRD__STATE_ROLES; role++)
        if (role != TRD__ROLE_GRADIENTS || !trd__loop_fuses(engine)) TRD_TRY(create_state_set(engine, role));
    const trd__layout *contribution = trd__mesh_device_layout(engine, TRD__ROLE_CONTRIBUTION);
    if (engine->options.diagnostics[TRD_DIAGNOSTIC_ACCUMULATE])
        TRD_TRY(table->set_create(engine->backend, "contribution", contribution->entries, contribution->count,
                                  &engine->contribution));
    engine->flight_count = engine->max_inflight + 2;
    engine->flights = trd__arena_alloc(engine->arena, (size_t)engine->flight_count, sizeof *engine->flights);
    engine->scalar_ring =
        trd__arena_alloc(engine->arena, (size_t)engine->max_inflight + 1, sizeof *engine->scalar_ring);
    if (!engine->flights || !engine->scalar_ring) return TRD_NO_MEMORY;
    const trd__layout *results = &engine->layout[TRD__ROLE_RESULTS];
    for (int i = 0; i < engine->flight_count; i++)
        TRD_TRY(table->set_create(engine->backend, "results", results->entries, results->count,
                                  &engine->flights[i].results));
    const trd__layout *scalars = &engine->layout[TRD__ROLE_SCALARS];
    for (int i = 0; i <= engine->max_inflight; i++)
        TRD_TRY(table->set_create(engine->backend, "scalars", scalars->entries, scalars->count,
                                  &engine->scalar_ring[i]));
    return TRD_OK;
}

static trd_status create_core(trd_engine *engine, bool with_state)
{
    const trd_engine_options *o = &engine->options;
    TRD_TRY(trd__mesh_build(engine));
    TRD_TRY(trd__profiler_create(engine));
    trd__backend_options backend = {.name = o->backend,
                                    .plugin_path = o->plugin_path,
                                    .compile_flags = o->compile_flags,
                                    .cache_directory = o->compile_cache_directory,
                                    .threads = o->num_threads,
                                    .placement = trd__mesh_placement(engine),
                                    .processes = 1,
                                    .log = o->log,
                                    .recorder = trd__profiler_recorder(engine)};
    if (with_state) { /* a plan needs no peers */
        backend.processes = o->mesh.processes;
        backend.process = o->mesh.process;
        backend.coordinator_address = o->mesh.coordinator_address;
    }
    if (!engine->model) TRD_TRY(trd__weights_load_model(engine));
    if (o->scan_layers) TRD_TRY(trd__model_stack_layers(engine->model));
    if (o->dropout_rate > 0)
        TRD_TRY(trd__model_use_dropout(engine->model, o->dropout_rate,
                                       trd__rng_u64(o->init_weights_seed, trd__rng_stream("dropout"), 0)));
    TRD_TRY(create_optimizer(engine));
    TRD_TRY(trd__layout_build(engine));
    TRD_TRY(trd__mesh_layout(engine));
    trd_status status = trd__backend_create(&backend, &engine->backend);
    if (status != TRD_UNSUPPORTED || with_state || !backend.placement) return status;
    backend.placement = NULL; /* a plan is made without the devices */
    engine->away = true;
    return trd__backend_create(&backend, &engine->backend);
}

static trd_status create_state(trd_engine *engine)
{
    if (engine->options.checkpoint_directory) TRD_TRY(trd__saver_create(engine));
    TRD_TRY(create_sets(engine));
    TRD_TRY(trd__diagnostics_create(engine));
    TRD_TRY(trd__weights_fill(engine));
    TRD_TRY(trd__weights_fill_states(engine));
    return trd__saver_reserve(engine);
}

static void free_sets(trd_engine *engine)
{
    const trd__backend_table *table = engine->backend->table;
    for (int i = 0; engine->scalar_ring && i <= engine->max_inflight; i++)
        if (engine->scalar_ring[i]) table->set_free(engine->backend, engine->scalar_ring[i]);
    for (int i = 0; engine->flights && i < engine->flight_count; i++)
        if (engine->flights[i].results) table->set_free(engine->backend, engine->flights[i].results);
    if (engine->contribution) table->set_free(engine->backend, engine->contribution);
    for (int role = TRD__STATE_ROLES - 1; role >= 0; role--)
        if (engine->state[role]) table->set_free(engine->backend, engine->state[role]);
}

static void destroy(trd_engine *engine)
{
    trd__saver_free(engine);
    if (engine->backend) {
        trd__programs_drop(engine, NULL);
        free_sets(engine);
    }
    trd__backend_free(engine->backend);
    trd__profiler_free(engine);
    trd__metrics_free(engine);
    trd__weights_release(engine);
    trd_model_free(engine->model);
    trd__arena_free(engine->arena);
    trd__free(engine);
}

static trd_status create(const trd_engine_options *options, trd_model *model, bool with_state,
                         trd_engine **created)
{
    *created = NULL;
    if (!options) return trd__fail(TRD_INVALID_ARGUMENT, "creating an engine: expected options, found NULL");
    trd_engine *engine = trd__calloc(1, sizeof *engine);
    if (!engine) {
        trd_model_free(model);
        return TRD_NO_MEMORY;
    }
    engine->options = *options;
    engine->model = model;
    engine->max_inflight = options->max_inflight_computations;
    engine->loss = trd_loss_sft;
    engine->loss_user = &engine->options.sft;
    engine->arena = trd__arena_create();
    trd_status status = engine->arena ? check_options(options) : TRD_NO_MEMORY;
    if (status == TRD_OK) status = copy_options(engine);
    if (status == TRD_OK) status = create_core(engine, with_state);
    if (status == TRD_OK) status = trd__metrics_create(engine);
    if (status == TRD_OK && with_state) status = create_state(engine);
    if (status != TRD_OK) {
        destroy(engine);
        return status;
    }
    *created = engine;
    return TRD_OK;
}

trd_status trd_engine_create(const trd_engine_options *options, trd_engine **engine)
{
    return create(options, NULL, true, engine);
}

trd_status trd__engine_create_with_model(const trd_engine_options *options, trd_model *model,
                                         trd_engine **engine)
{
    return create(options, model, true, engine);
}

trd_status trd__engine_create_bare(const trd_engine_options *options, trd_engine **engine)
{
    if (!options) return trd__fail(TRD_INVALID_ARGUMENT, "creating an engine: expected options, found NULL");
    trd_engine_options bare = *options;
    bare.sink_count = 0;
    bare.checkpoint_directory = NULL;
    bare.profiler.directory = NULL;
    return create(&bare, NULL, false, engine);
}

void trd__engine_destroy_bare(trd_engine *engine)
{
    if (engine) destroy(engine);
}

typedef struct failure {
    trd_status status;
    char message[1024];
} failure;

/* The first failure is the one to tell, in its own words; what comes after it goes on. */
static void keep_first(failure *first, trd_status status)
{
    if (status == TRD_OK || first->status != TRD_OK) return;
    first->status = status;
    snprintf(first->message, sizeof first->message, "%s", trd_error_message());
}

trd_status trd_engine_close(trd_engine *engine)
{
    if (!engine) return TRD_OK;
    failure first = {.status = TRD_OK};
    if (engine->sticky == TRD_OK) {
        keep_first(&first, trd__queue_flush(engine));
        if (engine->saver) keep_first(&first, trd__saver_wait(engine));
    }
    /* What failed beside training is told here, and keeps nothing from being saved. */
    if (engine->sticky == TRD_OK) keep_first(&first, trd__engine_check(engine));
    if (engine->sticky == TRD_OK && trd__saver_writes(engine) && engine->dirty)
        keep_first(&first, trd_engine_save(engine, NULL, true, NULL));
    if (engine->saver) keep_first(&first, trd__saver_wait(engine));
    trd__profiler_close(engine);
    keep_first(&first, trd__metrics_flush_sinks(engine));
    keep_first(&first, trd__metrics_close(engine));
    if (engine->deferred != TRD_OK)
        keep_first(&first, trd__fail(engine->deferred, "%s", engine->deferred_message));
    destroy(engine);
    return first.status == TRD_OK ? TRD_OK : trd__fail(first.status, "%s", first.message);
}

/* Queued results are published first, then every program goes: the next call compiles for the new loss. */
static trd_status replace_programs(trd_engine *engine, const char *why)
{
    TRD_TRY(trd__engine_check(engine));
    TRD_TRY(trd__queue_flush(engine));
    trd__programs_drop(engine, why);
    return TRD_OK;
}

trd_status trd_engine_with_loss_fn(trd_engine *engine, trd_loss_function loss, void *user)
{
    if (!loss) return trd__fail(TRD_INVALID_ARGUMENT, "setting the loss: expected a function, found NULL");
    TRD_TRY(replace_programs(engine, "another loss is set"));
    engine->loss = loss;
    engine->loss_user = user;
    return TRD_OK;
}

trd_status trd_engine_with_eval_loss_fn(trd_engine *engine, trd_loss_function loss, void *user)
{
    TRD_TRY(replace_programs(engine, "another loss of evaluation is set"));
    engine->eval_loss = loss;
    engine->eval_loss_user = user;
    return TRD_OK;
}

trd_status trd_engine_with_gen_model_input_fn(trd_engine *engine, trd_gen_model_input_function adapter,
                                              void *user)
{
    TRD_TRY(trd__engine_check(engine));
    engine->adapter = adapter;
    engine->adapter_user = user;
    return TRD_OK;
}
