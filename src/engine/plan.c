/* What a run needs before anything runs: its programs are compiled without weights, and their memory reports
 * are exact. Invariant: nothing of a parameter's size is allocated for a plan. */
#include "engine/internal.h"

static void add_program(const trd__compiled *compiled, trd_plan *plan)
{
    const trd__memory_report *memory = &compiled->memory;
    if (memory->arena_bytes > plan->activation_bytes) plan->activation_bytes = memory->arena_bytes;
    if (memory->scratch_bytes > plan->scratch_bytes) plan->scratch_bytes = memory->scratch_bytes;
}

/* The last one's rule is told: most micro-batches go by it. */
static void add_recomputation(const trd__compiled *compiled, int runs, trd_plan *plan)
{
    plan->recomputed_flops += compiled->recomputed_flops * runs;
    trd__remat_print(&compiled->rule, plan->recomputation, sizeof plan->recomputation);
}

/* On a mesh: what one device holds. */
static uint64_t set_bytes(const trd_engine *engine, const trd__layout *layout)
{
    if (trd__mesh_placement(engine)) return trd__mesh_bytes(engine, layout);
    return engine->backend->table->set_bytes(layout->entries, layout->count);
}

static uint64_t state_bytes(const trd_engine *engine, trd__role role)
{
    if (role != TRD__ROLE_GRADIENTS) return set_bytes(engine, &engine->layout[role]);
    if (trd__loop_fuses(engine) && !engine->state[role]) return 0;
    uint64_t bytes = set_bytes(engine, trd__mesh_device_layout(engine, role));
    return engine->options.diagnostics[TRD_DIAGNOSTIC_ACCUMULATE] ? 2 * bytes : bytes;
}

/* As many as trd__family_rings and the engine's creation make. */
static uint64_t input_bytes(const trd_engine *engine, const trd__family *family)
{
    const uint64_t runs = (uint64_t)engine->max_inflight;
    return (family ? (runs + 1) * set_bytes(engine, &family->inputs) : 0) +
           (runs + 1) * set_bytes(engine, &engine->layout[TRD__ROLE_SCALARS]) +
           (runs + 2) * set_bytes(engine, &engine->layout[TRD__ROLE_RESULTS]);
}

uint64_t trd__held_bytes(const trd_engine *engine, const trd__family *family)
{
    uint64_t bytes = input_bytes(engine, family);
    for (trd__role role = 0; role < TRD__STATE_ROLES; role++) bytes += state_bytes(engine, role);
    return bytes;
}

/* The programs of training and evaluation, and the FLOPs of one update cycle. */
static trd_status add_programs(trd_engine *engine, trd__family *family, trd_plan *plan)
{
    const trd_engine_options *o = &engine->options;
    const trd__compiled *first, *accum, *update, *eval, *fused;
    if (trd__loop_fuses(engine)) {
        TRD_TRY(trd__program_get(engine, family, TRD__PROGRAM_TRAIN_STEP, &fused));
        TRD_TRY(trd__program_get(engine, family, TRD__PROGRAM_EVAL, &eval));
        add_program(fused, plan);
        add_program(eval, plan);
        plan->flops_per_step =
            fused->flops - fused->optimizer_flops - fused->flops_per_weighted_row * o->rows;
        add_recomputation(fused, 1, plan);
        return TRD_OK;
    }
    TRD_TRY(trd__program_get(engine, family, TRD__PROGRAM_FIRST, &first));
    add_recomputation(first, 1, plan);
    TRD_TRY(trd__update_get(engine, first->loss.eps, first->loss.min_denom, &update));
    TRD_TRY(trd__program_get(engine, family, TRD__PROGRAM_EVAL, &eval));
    add_program(first, plan);
    add_program(update, plan);
    add_program(eval, plan);
    bool separate = o->diagnostics[TRD_DIAGNOSTIC_ACCUMULATE];
    for (int add = 0; separate && add < 2; add++) {
        const trd__compiled *merge;
        TRD_TRY(trd__merge_get(engine, add, &merge));
        add_program(merge, plan);
    }
    if (o->gradient_accumulation_steps > 1 && !separate) {
        TRD_TRY(trd__program_get(engine, family, TRD__PROGRAM_ACCUM, &accum));
        add_program(accum, plan);
        add_recomputation(accum, o->gradient_accumulation_steps - 1, plan);
    }
    /* Each row's first token is predicted by nothing, so one row of the head's product is not paid. */
    double micro = first->flops - first->flops_per_weighted_row * o->rows;
    plan->flops_per_step = micro * o->gradient_accumulation_steps;
    return TRD_OK;
}

trd_status trd_engine_plan(trd_engine *engine, trd_plan *plan)
{
    const trd_batch batch = {.rows = engine->options.rows, .length = engine->options.length};
    trd__family *family;
    TRD_TRY(trd__engine_check(engine));
    TRD_TRY(trd__family_find(engine, &batch, &family));
    *plan = (trd_plan){.parameter_bytes = state_bytes(engine, TRD__ROLE_PARAMS),
                       .optimizer_bytes = state_bytes(engine, TRD__ROLE_OPTIMIZER),
                       .gradient_bytes = state_bytes(engine, TRD__ROLE_GRADIENTS),
                       .model_state_bytes = state_bytes(engine, TRD__ROLE_MODEL_STATE),
                       .input_bytes = input_bytes(engine, family),
                       .parameters = engine->model->info.parameters,
                       .devices = (int)trd__mesh_devices(&engine->placement),
                       .compiled = !engine->away};
    plan->checkpoint_bytes = trd__layout_bytes(&engine->layout[TRD__ROLE_PARAMS]) +
                             trd__layout_bytes(&engine->layout[TRD__ROLE_OPTIMIZER]) +
                             trd__layout_bytes(&engine->layout[TRD__ROLE_MODEL_STATE]);
    plan->snapshot_bytes = trd__snapshot_bytes(engine);
    TRD_TRY(add_programs(engine, family, plan));
    plan->flops_per_device = plan->flops_per_step / (double)trd__mesh_work_shares(engine);
    plan->peak_bytes = plan->parameter_bytes + plan->optimizer_bytes + plan->gradient_bytes +
                       plan->model_state_bytes + plan->input_bytes + plan->activation_bytes +
                       plan->scratch_bytes;
    return TRD_OK;
}

trd_status trd_plan_options(const trd_engine_options *options, trd_plan *plan)
{
    trd_engine *engine;
    TRD_TRY(trd__engine_create_bare(options, &engine));
    trd_status status = trd_engine_plan(engine, plan);
    trd__engine_destroy_bare(engine);
    return status;
}
