/* From typed values to the options structs of the modules, with the checks that need more than one key. */
#include <string.h>

#include "config/config.h"

static trd_dtype dtype_of(const char *name)
{
    trd_dtype dtype = TRD_F32;
    trd_dtype_parse(name, &dtype); /* the key's choices are dtype names */
    return dtype;
}

/* Number of text in a "|" list: the order of a key's choices is that of its enum. */
static int choice_of(const char *key, const char *text)
{
    int number = 0;
    size_t length = strlen(text);
    for (const char *c = trd__key_find(key)->choices; c; number++) {
        const char *bar = strchr(c, '|');
        size_t width = bar ? (size_t)(bar - c) : strlen(c);
        if (width == length && strncmp(c, text, length) == 0) break;
        c = bar ? bar + 1 : NULL;
    }
    return number;
}

static const char *or_null(const char *text)
{
    return *text ? text : NULL;
}

/* The mesh's sizes and the rows that its devices share. */
static trd_status check_mesh(trd__config_values *v)
{
    enum { MOST_ROWS = 1 << 20 };
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"ici_data_parallelism", v->ici_data_parallelism},
                 {"ici_fsdp_parallelism", v->ici_fsdp_parallelism},
                 {"ici_tensor_parallelism", v->ici_tensor_parallelism},
                 {"ici_expert_parallelism", v->ici_expert_parallelism},
                 {"dcn_data_parallelism", v->dcn_data_parallelism},
                 {"dcn_fsdp_parallelism", v->dcn_fsdp_parallelism},
                 {"dcn_tensor_parallelism", v->dcn_tensor_parallelism},
                 {"dcn_expert_parallelism", v->dcn_expert_parallelism}};
    int64_t devices = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value < 1)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "config: %s: expected 1 or more, found %lld%s; give the number", sizes[i].key,
                             (long long)sizes[i].value,
                             sizes[i].value == -1
                                 ? ": the rows of a batch follow from the mesh before the devices are counted"
                                 : "");
        devices *= sizes[i].value;
        if (devices * v->per_device_batch_size > MOST_ROWS)
            return trd__fail(
                TRD_INVALID_ARGUMENT,
                "config: per_device_batch_size %lld on the devices of the mesh makes more than %d "
                "rows",
                (long long)v->per_device_batch_size, MOST_ROWS);
    }
    int64_t rows = devices * v->per_device_batch_size;
    if (!v->micro_batch_size_to_train_on) v->micro_batch_size_to_train_on = rows;
    if (devices > 1 || v->micro_batch_size_to_train_on == rows) return TRD_OK;
    return trd__fail(
        TRD_INVALID_ARGUMENT,
        "config: micro_batch_size_to_train_on is %lld but per_device_batch_size %lld on 1 device "
        "makes %lld; leave it out",
        (long long)v->micro_batch_size_to_train_on, (long long)v->per_device_batch_size, (long long)rows);
}

static trd_status check_together(trd__config_values *v)
{
    if (!*v->model_name && !*v->load_parameters_path)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "config: model_name is missing; give a preset such as qwen3-0.6b, or "
                         "load_parameters_path");
    if (!*v->base_output_directory || !*v->run_name)
        return trd__fail(TRD_INVALID_ARGUMENT, "config: %s is empty; give the name of a folder",
                         *v->run_name ? "base_output_directory" : "run_name");
    if (v->steps && v->num_epochs)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "config: steps %lld and num_epochs %lld are both given; set one of them to 0",
                         (long long)v->steps, (long long)v->num_epochs);
    TRD_TRY(check_mesh(v));
    if (!*v->mu_dtype) v->mu_dtype = v->weight_dtype;
    if (*v->profiler && strcmp(v->profiler, "trace") != 0)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "config: profiler: expected trace or nothing, found \"%s\"; profiler: trace writes "
                         "traces that Perfetto and `treadle profile` read",
                         v->profiler);
    if (v->profile_periodically_period > 0 && v->profile_periodically_period < v->profiler_steps)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "config: profile_periodically_period %lld is less than profiler_steps %lld: traces "
                         "would overlap",
                         (long long)v->profile_periodically_period, (long long)v->profiler_steps);
    if (v->warmup_steps_fraction + v->wsd_decay_steps_fraction > 1 && !strcmp(v->lr_schedule_type, "wsd"))
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "config: warmup_steps_fraction %g and wsd_decay_steps_fraction %g are "
                         "more than the whole schedule",
                         v->warmup_steps_fraction, v->wsd_decay_steps_fraction);
    return TRD_OK;
}

static void fill_optimizer(const trd__config_values *v, trd_engine_options *e)
{
    e->optimizer = (trd_optimizer_options){.type = v->opt_type,
                                           .b1 = v->adam_b1,
                                           .b2 = v->adam_b2,
                                           .eps = v->adam_eps,
                                           .eps_root = v->adam_eps_root,
                                           .weight_decay = v->adam_weight_decay,
                                           .mask = v->adamw_mask.items,
                                           .mask_count = v->adamw_mask.count,
                                           .mu_dtype = dtype_of(v->mu_dtype)};
    e->optimizer.muon = (trd_muon_options){
        .beta = v->muon_beta, .weight_decay = v->muon_weight_decay, .consistent_rms = v->muon_consistent_rms};
    e->optimizer.adafactor =
        (trd_adafactor_options){.decay_rate = v->adafactor_decay_rate,
                                .clipping_threshold = v->adafactor_clipping_threshold,
                                .eps = v->adafactor_eps,
                                .min_dim_size_to_factor = (int)v->adafactor_min_dim_size_to_factor,
                                .scale_by_parameter = v->adafactor_multiply_by_parameter_scale,
                                .weight_decay = v->adafactor_weight_decay};
    e->freeze = v->freeze.items;
    e->freeze_count = v->freeze.count;
    trd_schedule_type type = (trd_schedule_type)choice_of("lr_schedule_type", v->lr_schedule_type);
    e->schedule = (trd_schedule_options){
        .type = type,
        .learning_rate = v->learning_rate,
        .warmup_steps_fraction = v->warmup_steps_fraction,
        .final_fraction = v->learning_rate_final_fraction,
        .decay_steps_fraction = v->wsd_decay_steps_fraction,
        .decay_style = (trd_decay_style)choice_of("wsd_decay_style", v->wsd_decay_style),
        .schedule_steps = v->learning_rate_schedule_steps > 0 ? v->learning_rate_schedule_steps : v->steps};
    e->sft.z_loss_multiplier = v->z_loss_multiplier;
    e->gradient_clipping_threshold = v->gradient_clipping_threshold;
    e->skip_step_on_nonfinite = v->skip_step_on_nonfinite;
    e->skip_step_on_spikes = v->skip_step_on_spikes;
    e->skip_step_interval = (int)v->skip_step_interval;
    e->skip_step_scaling_factor = v->skip_step_scaling_factor;
}

/* A rule is its words: the name, then the axes. */
static trd_status fill_rule(trd_config *config, const char *words, trd_axis_rule *rule)
{
    size_t most = strlen(words) / 2 + 1;
    const char **axes = trd__arena_alloc(config->arena, most, sizeof *axes);
    char *word = trd__arena_strdup(config->arena, words);
    if (!axes || !word) return TRD_NO_MEMORY;
    *rule = (trd_axis_rule){.logical = word, .axes = axes};
    while ((word = strchr(word, ' '))) {
        *word++ = '\0';
        axes[rule->axis_count++] = word;
    }
    return TRD_OK;
}

static trd_status fill_mesh(trd_config *config)
{
    const trd__config_values *v = &config->values;
    int count = v->logical_axis_rules.count;
    trd_axis_rule *rules = trd__arena_alloc(config->arena, (size_t)count + 1, sizeof *rules);
    if (!rules) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++) TRD_TRY(fill_rule(config, v->logical_axis_rules.items[i], &rules[i]));
    config->engine.mesh = (trd_mesh_options){
        .ici = {.data = (int)v->ici_data_parallelism,
                .fsdp = (int)v->ici_fsdp_parallelism,
                .tensor = (int)v->ici_tensor_parallelism,
                .expert = (int)v->ici_expert_parallelism},
        .dcn = {.data = (int)v->dcn_data_parallelism,
                .fsdp = (int)v->dcn_fsdp_parallelism,
                .tensor = (int)v->dcn_tensor_parallelism,
                .expert = (int)v->dcn_expert_parallelism},
        .rules = rules,
        .rule_count = count,
        .shard_mode = (trd_shard_mode)choice_of("shard_mode", v->shard_mode),
        .processes = (int)v->num_processes,
        .process = (int)v->process_id,
        .coordinator_address = *v->coordinator_address ? v->coordinator_address : NULL,
        .indivisible_batch = (trd_indivisible_batch)choice_of("indivisible_batch", v->indivisible_batch),
        .defer_grad_reduction = v->defer_grad_reduction,
        .shard_optimizer_over_data = v->shard_optimizer_over_data};
    return TRD_OK;
}

static trd_status fill_engine(trd_config *config)
{
    const trd__config_values *v = &config->values;
    trd_engine_options *e = &config->engine;
    *e = trd_engine_defaults();
    e->model_name = or_null(v->model_name);
    e->load_parameters_path = or_null(v->load_parameters_path);
    e->overrides = (trd_model_overrides){.layers = v->base_num_decoder_layers,
                                         .hidden = v->base_emb_dim,
                                         .intermediate = v->base_mlp_dim,
                                         .heads = v->base_num_query_heads,
                                         .kv_heads = v->base_num_kv_heads,
                                         .head_dim = v->head_dim,
                                         .vocab = v->vocab_size};
    e->init_weights_seed = (uint64_t)v->init_weights_seed;
    e->dropout_rate = v->enable_dropout ? v->dropout_rate : 0;
    e->dtype = dtype_of(v->dtype);
    e->weight_dtype = dtype_of(v->weight_dtype);
    e->grad_dtype = dtype_of(v->grad_dtype);
    e->rows = (int)v->micro_batch_size_to_train_on;
    e->length = (int)v->max_target_length;
    e->gradient_accumulation_steps = (int)v->gradient_accumulation_steps;
    e->steps = v->steps;
    fill_optimizer(v, e);
    e->remat_policy = (trd_remat_policy)choice_of("remat_policy", v->remat_policy);
    e->memory_limit_bytes = (uint64_t)v->memory_limit_bytes;
    e->scan_layers = v->scan_layers;
    e->max_inflight_computations = (int)v->max_inflight_computations;
#define FILL(name, key, normal, slow, resume, help)                                                          \
    e->diagnostics[TRD_DIAGNOSTIC_##name] = choice_of(#key, v->key) == 1;
    TRD_DIAGNOSTIC_LIST(FILL)
#undef FILL
    e->backend = v->backend;
    e->plugin_path = or_null(v->pjrt_plugin_path);
    e->compile_flags = or_null(v->compile_xla_flags);
    e->matmul_precision = (trd_matmul_precision)choice_of("matmul_precision", v->matmul_precision);
    e->compile_cache_directory = *v->jax_cache_dir ? v->jax_cache_dir
                                                   : trd__arena_format(config->arena, "%s/%s/cache",
                                                                       v->base_output_directory, v->run_name);
    if (!e->compile_cache_directory) return TRD_NO_MEMORY;
    e->num_threads = (int)v->num_threads;
    e->checkpoint_period = v->checkpoint_period;
    e->async_checkpointing = v->async_checkpointing;
    e->max_num_checkpoints_to_keep = (int)v->max_num_checkpoints_to_keep;
    e->keep_period = v->keep_period;
    e->metrics_prefix = or_null(v->metrics_prefix);
    e->profiler = (trd_profiler_options){.skip_first_steps = v->skip_first_n_steps_for_profiler,
                                         .steps = v->profiler_steps,
                                         .period = v->profile_periodically_period};
    if (*v->profiler) {
        e->profiler.directory =
            trd__arena_format(config->arena, "%s/%s/profile", v->base_output_directory, v->run_name);
        if (!e->profiler.directory) return TRD_NO_MEMORY;
    }
    e->checkpoint_directory = NULL;
    if (!v->enable_checkpointing) return TRD_OK;
    e->checkpoint_directory =
        trd__arena_format(config->arena, "%s/%s/checkpoints", v->base_output_directory, v->run_name);
    return e->checkpoint_directory ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status fill_data(trd_config *config)
{
    const trd__config_values *v = &config->values;
    const char *cache =
        trd__arena_format(config->arena, "%s/%s/cache", v->base_output_directory, v->run_name);
    if (!cache) return TRD_NO_MEMORY;
    config->train = (trd_data_options){.files = v->train_files.items,
                                       .file_count = v->train_files.count,
                                       .rows = (int)v->micro_batch_size_to_train_on,
                                       .length = (int)v->max_target_length,
                                       .packing = v->packing,
                                       .packing_window = (int)v->packing_window,
                                       .completion_only_loss = v->sft_train_on_completion_only,
                                       .shuffle = v->enable_data_shuffling,
                                       .seed = (uint64_t)v->data_shuffle_seed,
                                       .epochs = v->steps ? 0 : (uint64_t)(v->num_epochs ? v->num_epochs : 1),
                                       .too_long = (trd_too_long)choice_of("on_too_long", v->on_too_long),
                                       .bad_line = (trd_bad_line)choice_of("on_bad_line", v->on_bad_line),
                                       .prefetch = v->prefetch,
                                       .cache_directory = cache};
    config->eval = config->train;
    config->eval.files = v->eval_files.items;
    config->eval.file_count = v->eval_files.count;
    config->eval.shuffle = false;
    config->eval.epochs = 1;
    return TRD_OK;
}

trd_status trd__config_resolve(trd_config *config)
{
    TRD_TRY(check_together(&config->values));
    TRD_TRY(fill_engine(config));
    TRD_TRY(fill_mesh(config));
    return fill_data(config);
}
