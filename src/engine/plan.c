/* What a run needs before anything runs: the programs of one update cycle are compiled without weights, and
 * their memory reports are exact. Invariant: nothing of a parameter's size is allocated for a plan. */
#include "engine/internal.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void add_program(const trd__compiled *compiled, trd_plan *plan, uint64_t *working)
{
    const trd__memory_report *memory = &compiled->memory;
    plan->activation_bytes = larger(plan->activation_bytes, memory->arena_bytes);
    plan->scratch_bytes = larger(plan->scratch_bytes, memory->scratch_bytes);
    *working = larger(*working, memory->arena_bytes + memory->scratch_bytes);
}

trd_status trd_engine_plan(trd_engine *engine, trd_plan *plan)
{
    const trd_engine_options *o = &engine->options;
    const trd_batch batch = {.rows = o->rows, .length = o->length};
    trd__family *family;
    const trd__compiled *first, *accum, *update;
    uint64_t working = 0;
    TRD_TRY(trd__engine_check(engine));
    TRD_TRY(trd__family_find(engine, &batch, &family));
    TRD_TRY(trd__program_get(engine, family, TRD__PROGRAM_FIRST, &first));
    TRD_TRY(trd__update_get(engine, first->loss.eps, first->loss.min_denom, &update));
    /* Each row's first token is predicted by nothing, so one row of the head's product is not paid. */
    double micro = first->flops - first->flops_per_weighted_row * o->rows;
    *plan = (trd_plan){.parameter_bytes = trd__layout_bytes(&engine->layout[TRD__ROLE_PARAMS]),
                       .optimizer_bytes = trd__layout_bytes(&engine->layout[TRD__ROLE_OPTIMIZER]),
                       .gradient_bytes = trd__layout_bytes(&engine->layout[TRD__ROLE_GRADIENTS]),
                       .flops_per_step = micro * o->gradient_accumulation_steps + update->flops,
                       .parameters = engine->model->info.parameters};
    plan->input_bytes = trd__layout_bytes(&family->inputs) * (uint64_t)(engine->max_inflight + 2);
    plan->checkpoint_bytes = plan->parameter_bytes + plan->optimizer_bytes;
    add_program(first, plan, &working);
    add_program(update, plan, &working);
    if (o->gradient_accumulation_steps > 1) {
        TRD_TRY(trd__program_get(engine, family, TRD__PROGRAM_ACCUM, &accum));
        add_program(accum, plan, &working);
    }
    plan->peak_bytes =
        plan->parameter_bytes + plan->optimizer_bytes + plan->gradient_bytes + plan->input_bytes + working;
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
