/* remat_policy and memory_limit_bytes. With auto, a program's rule is found on a ladder from none over
 * minimal and ever dearer products to full, each rung in steps of one more layer from the front: further up
 * more is computed again and less is held. A rule is judged by the program's own plan, which is exact: it is
 * traced, compiled for its report alone and dropped. Invariant: what a run holds by the plan never exceeds
 * the limit, whatever the policy. */
#include <inttypes.h>
#include <stdio.h>

#include "base/memory.h"
#include "engine/internal.h"
#include "graph/passes.h"

enum { MOST_INTENSITIES = 16, MOST_LEVELS = MOST_INTENSITIES + 3 };

static const char way_out[] =
    "raise memory_limit_bytes, or lower per_device_batch_size or max_target_length, use bfloat16 (dtype, "
    "weight_dtype, grad_dtype) or an opt_type with less state";

typedef struct ladder {
    trd_engine *engine;
    const trd__family *family;
    trd__program_kind kind;
    trd__remat_level levels[MOST_LEVELS];
    int level_count;
    int layers; /* steps from one level to the next */
    int rungs;
    uint64_t limit;
    uint64_t least; /* the smallest peak so far */
} ladder;

static uint64_t limit_of(const trd_engine_options *o)
{
    if (o->memory_limit_bytes) return o->memory_limit_bytes;
    return o->remat_policy == TRD_REMAT_AUTO ? trd__memory_limit() : UINT64_MAX;
}

/* What a run would hold with one more program: all of them share an arena and a scratch. */
static uint64_t peak_with(const trd_engine *engine, const trd__family *family, const trd__memory_report *more)
{
    uint64_t arena = engine->largest.arena_bytes, scratch = engine->largest.scratch_bytes;
    if (more->arena_bytes > arena) arena = more->arena_bytes;
    if (more->scratch_bytes > scratch) scratch = more->scratch_bytes;
    return trd__held_bytes(engine, family) + arena + scratch;
}

static trd__remat_rule rung(const ladder *l, int i)
{
    int level = i / l->layers, deeper = i % l->layers;
    trd__remat_rule rule = {.level = l->levels[level]};
    if (!deeper) return rule;
    rule.deeper = l->levels[level + 1];
    rule.deeper_layers = deeper;
    return rule;
}

/* Dear products come last: what they free costs the most. The dearest are full's. */
static void build_ladder(ladder *l, const trd__program *program)
{
    double intensities[MOST_INTENSITIES];
    int count = trd__remat_intensities(program, intensities, MOST_INTENSITIES, &l->layers);
    if (l->layers < 1) l->layers = 1; /* of one body: no layer is told from another */
    l->levels[l->level_count++].policy = TRD__REMAT_NONE;
    l->levels[l->level_count++].policy = TRD__REMAT_MINIMAL;
    for (int i = 0; i + 1 < count; i++)
        l->levels[l->level_count++] =
            (trd__remat_level){.policy = TRD__REMAT_MINIMAL, .intensity = intensities[i]};
    l->levels[l->level_count++].policy = TRD__REMAT_FULL;
    l->rungs = (l->level_count - 1) * l->layers + 1;
}

/* The update that comes after a micro-batch is what no rung changes either. */
static trd_status reserve_update(trd_engine *engine, trd__program_kind kind, const trd__loss_info *loss)
{
    const trd__compiled *update;
    if (kind == TRD__PROGRAM_TRAIN_STEP || engine->visit) return TRD_OK;
    engine->choosing = true;
    trd_status status = trd__update_get(engine, loss->eps, loss->min_denom, &update);
    engine->choosing = false;
    return status;
}

static trd_status cannot_fit(const ladder *l, const char *qualifier, uint64_t needed)
{
    return trd__fail(TRD_NO_MEMORY,
                     "remat_policy auto: expected a peak of at most %" PRIu64
                     " bytes (%s), found that %s%" PRIu64 " bytes are needed, %" PRIu64
                     " of them state and inputs; %s",
                     l->limit, l->engine->options.memory_limit_bytes ? "memory_limit_bytes" : "free memory",
                     qualifier, needed, trd__held_bytes(l->engine, l->family), way_out);
}

/* Fails where what no rung changes is too much by itself: state, inputs and the programs counted in. */
static trd_status check_rest(const ladder *l)
{
    uint64_t rest = peak_with(l->engine, l->family, &(trd__memory_report){0});
    return rest <= l->limit ? TRD_OK : cannot_fit(l, "at least ", rest);
}

static trd_status judge(ladder *l, const trd__program *program, bool *fits)
{
    const trd__backend_table *table = l->engine->backend->table;
    trd__executable *executable;
    TRD_TRY(
        table->compile(l->engine->backend, program, &(trd__compile_options){.plan_only = true}, &executable));
    trd__memory_report report = table->memory(executable);
    uint64_t peak = peak_with(l->engine, l->family, &report);
    *fits = peak <= l->limit;
    if (peak < l->least) l->least = peak;
    table->executable_free(l->engine->backend, executable);
    return TRD_OK;
}

/* Whether the program would fit by rung i. */
static trd_status fits_at(ladder *l, int i, bool *fits)
{
    trd__trace trace;
    trd__compiled traced = {.rule = rung(l, i)};
    trd_status status = trd__program_trace(l->engine, l->family, l->kind, &trace, &traced);
    if (status == TRD_OK) status = judge(l, trace.program, fits);
    trd__program_free(trace.program);
    return status;
}

/* The first rung that fits, given one below that does not and one above that does. */
static trd_status bisect(ladder *l, int below, int *above)
{
    while (*above - below > 1) {
        int middle = below + (*above - below) / 2;
        bool fits = false;
        TRD_TRY(fits_at(l, middle, &fits));
        if (fits)
            *above = middle;
        else
            below = middle;
    }
    return TRD_OK;
}

/* Where the last rung is too much, one before it may still hold less: its copies have a peak of their own.
 * Only whole levels are tried, as each try is a compilation; below the first that fits comes a bisection. */
static trd_status search_levels(ladder *l, int *chosen)
{
    bool fits = false;
    int i = 0;
    while (!fits && i + l->layers < l->rungs - 1) {
        i += l->layers;
        TRD_TRY(fits_at(l, i, &fits));
    }
    if (!fits) return cannot_fit(l, "", l->least);
    *chosen = i;
    return bisect(l, i - l->layers, chosen);
}

/* The first rung that fits, where rung 0 does not. */
static trd_status search(ladder *l, int *chosen)
{
    bool fits = false;
    *chosen = l->rungs - 1;
    TRD_TRY(fits_at(l, *chosen, &fits));
    return fits ? bisect(l, 0, chosen) : search_levels(l, chosen);
}

/* What no rule makes smaller comes first: a run must not find out at its first evaluation that it holds too
 * much. */
static trd_status reserve_others(trd_engine *engine, trd__family *family)
{
    const trd__compiled *eval;
    if (engine->visit || engine->away) return TRD_OK;
    if (engine->options.remat_policy != TRD_REMAT_AUTO && !engine->options.memory_limit_bytes) return TRD_OK;
    engine->choosing = engine->options.remat_policy == TRD_REMAT_AUTO;
    trd_status status = trd__program_get(engine, family, TRD__PROGRAM_EVAL, &eval);
    engine->choosing = false;
    return status;
}

/* Rung 0 is traced first: the others, and the update, are known from its program. */
static trd_status climb(ladder *l, trd__remat_rule *rule)
{
    bool fits = false;
    int chosen = 0;
    trd__trace trace;
    trd__compiled traced = {.rule = trd__remat_everywhere(TRD__REMAT_NONE)};
    trd_status status = trd__program_trace(l->engine, l->family, l->kind, &trace, &traced);
    if (status == TRD_OK) {
        build_ladder(l, trace.program);
        status = reserve_update(l->engine, l->kind, &traced.loss);
    }
    if (status == TRD_OK) status = check_rest(l);
    if (status == TRD_OK) status = judge(l, trace.program, &fits);
    trd__program_free(trace.program);
    if (status == TRD_OK && !fits) status = search(l, &chosen);
    if (status == TRD_OK) *rule = rung(l, chosen);
    return status;
}

trd_status trd__remat_choose(trd_engine *engine, trd__family *family, trd__program_kind kind,
                             trd__remat_rule *rule)
{
    static const trd__remat_policy policies[] = {[TRD_REMAT_NONE] = TRD__REMAT_NONE,
                                                 [TRD_REMAT_MINIMAL] = TRD__REMAT_MINIMAL,
                                                 [TRD_REMAT_FULL] = TRD__REMAT_FULL};
    const trd_engine_options *o = &engine->options;
    bool trains = kind == TRD__PROGRAM_FIRST || kind == TRD__PROGRAM_ACCUM || kind == TRD__PROGRAM_TRAIN_STEP;
    *rule = trd__remat_everywhere(o->remat_policy == TRD_REMAT_AUTO ? TRD__REMAT_NONE
                                                                    : policies[o->remat_policy]);
    if (!trains) return TRD_OK;
    TRD_TRY(reserve_others(engine, family));
    if (o->remat_policy != TRD_REMAT_AUTO) return TRD_OK;
    if (trd__mesh_placement(engine))
        return trd__fail(TRD_UNSUPPORTED,
                         "remat_policy auto: expected one device, found a mesh, whose plan is "
                         "not known before it is compiled; choose none, minimal or full");
    ladder l = {.engine = engine, .family = family, .kind = kind, .limit = limit_of(o), .least = UINT64_MAX};
    return climb(&l, rule);
}

trd_status trd__remat_admit(trd_engine *engine, const trd__family *family, const trd__compiled *compiled)
{
    const trd__memory_report *memory = &compiled->memory;
    uint64_t limit = engine->options.memory_limit_bytes, peak = peak_with(engine, family, memory);
    const char *cheaper = engine->options.remat_policy == TRD_REMAT_AUTO ? "" : "use remat_policy auto, ";
    if (limit && peak > limit && !engine->choosing)
        return trd__fail(TRD_NO_MEMORY,
                         "memory_limit_bytes: expected a peak of at most %" PRIu64 " bytes, found %" PRIu64
                         "; %s%s",
                         limit, peak, cheaper, way_out);
    if (memory->arena_bytes > engine->largest.arena_bytes) engine->largest.arena_bytes = memory->arena_bytes;
    if (memory->scratch_bytes > engine->largest.scratch_bytes)
        engine->largest.scratch_bytes = memory->scratch_bytes;
    return TRD_OK;
}

static int print_level(const trd__remat_level *level, char *text, size_t bytes)
{
    static const char *const names[] = {
        [TRD__REMAT_NONE] = "none", [TRD__REMAT_MINIMAL] = "minimal", [TRD__REMAT_FULL] = "full"};
    if (level->intensity > 0)
        return snprintf(text, bytes, "minimal and products up to %.4g FLOP a byte", level->intensity);
    return snprintf(text, bytes, "%s", names[level->policy]);
}

void trd__remat_print(const trd__remat_rule *rule, char *text, size_t bytes)
{
    char level[64], deeper[64];
    print_level(&rule->level, level, sizeof level);
    print_level(&rule->deeper, deeper, sizeof deeper);
    if (rule->deeper_layers)
        snprintf(text, bytes, "%s in the first %d layers, %s in the others", deeper, rule->deeper_layers,
                 level);
    else
        snprintf(text, bytes, "%s", level);
}
