/* From the options' mesh to a placement: sizes, rules, and what of the engine's sets lies where. Invariant:
 * engine->layout describes state as everybody but the device sees it; engine->own_gradients is the one layout
 * that differs on the device, where gradients are reduced by the update only. */
#include <string.h>

#include "base/log.h"
#include "base/nearest.h"
#include "base/shape.h"
#include "engine/internal.h"

enum { MOST_DEVICES = 1 << 16 };

static const char batch_axis[] = "activation_batch";

/* The default rules, as texts like those of the caller. */
static const struct {
    const char *logical;
    const char *axes[TRD__MESH_AXIS_COUNT];
} defaults[] = {
#define TRD_AXIS_RULE(logical, ...) {logical, {__VA_ARGS__}},
#include "nn/axis_rules.def"
#undef TRD_AXIS_RULE
};
enum { DEFAULTS = sizeof defaults / sizeof *defaults };

static trd_status set_size(trd__placement *p, trd__mesh_axis axis, int ici, int dcn)
{
    const char *name = trd__mesh_axis_name(axis);
    if (ici < 0 || dcn < 0)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "creating an engine: %s_%s_parallelism expected 1 or more, found %d",
                         ici < 0 ? "ici" : "dcn", name, ici < 0 ? ici : dcn);
    p->hosts[axis] = dcn ? dcn : 1;
    p->size[axis] = (ici ? ici : 1) * p->hosts[axis];
    return TRD_OK;
}

static trd_status set_sizes(trd_engine *engine)
{
    const trd_mesh_axes *ici = &engine->options.mesh.ici, *dcn = &engine->options.mesh.dcn;
    trd__placement *p = &engine->placement;
    TRD_TRY(set_size(p, TRD__MESH_DATA, ici->data, dcn->data));
    TRD_TRY(set_size(p, TRD__MESH_FSDP, ici->fsdp, dcn->fsdp));
    TRD_TRY(set_size(p, TRD__MESH_TENSOR, ici->tensor, dcn->tensor));
    TRD_TRY(set_size(p, TRD__MESH_EXPERT, ici->expert, dcn->expert));
    int64_t devices = 1;
    for (int a = 0; a < TRD__MESH_AXIS_COUNT && devices <= MOST_DEVICES; a++) /* no product can overflow */
        devices = p->size[a] <= MOST_DEVICES ? devices * p->size[a] : p->size[a];
    if (devices <= MOST_DEVICES) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT,
                     "creating an engine: a mesh expected at most %d devices, found more", MOST_DEVICES);
}

static trd_status find_axis(const char *logical, const char *name, trd__mesh_axis *axis)
{
    const char *names[TRD__MESH_AXIS_COUNT];
    for (int a = 0; a < TRD__MESH_AXIS_COUNT; a++) {
        names[a] = trd__mesh_axis_name((trd__mesh_axis)a);
        *axis = (trd__mesh_axis)a;
        if (strcmp(names[a], name) == 0) return TRD_OK;
    }
    const char *nearest = trd__nearest(name, names, TRD__MESH_AXIS_COUNT);
    return trd__fail(TRD_INVALID_ARGUMENT,
                     "logical_axis_rules: %s: \"%s\" is no axis of the mesh; %s%s%sthe axes are data, fsdp, "
                     "tensor and expert",
                     logical, name, nearest ? "did you mean \"" : "", nearest ? nearest : "",
                     nearest ? "\"? " : "");
}

static trd_status add_rule(trd__axis_rule *rule, const char *logical, const char *const *axes, int count)
{
    *rule = (trd__axis_rule){.logical = logical};
    if (count > TRD__MESH_AXIS_COUNT)
        return trd__fail(TRD_INVALID_ARGUMENT, "logical_axis_rules: %s: expected at most %d axes, found %d",
                         logical, TRD__MESH_AXIS_COUNT, count);
    for (int i = 0; i < count && axes[i]; i++) {
        TRD_TRY(find_axis(logical, axes[i], &rule->axes[i]));
        for (int j = 0; j < i; j++)
            if (rule->axes[j] == rule->axes[i])
                return trd__fail(TRD_INVALID_ARGUMENT,
                                 "logical_axis_rules: %s: the axis \"%s\" is named twice; name it once",
                                 logical, axes[i]);
        rule->axis_count++;
    }
    return TRD_OK;
}

static bool is_replaced(const trd_mesh_options *mesh, const char *logical)
{
    for (int i = 0; i < mesh->rule_count; i++)
        if (strcmp(mesh->rules[i].logical, logical) == 0) return true;
    return false;
}

/* The default rules without those that the caller's replace, then the caller's. */
static trd_status merge_rules(trd_engine *engine)
{
    const trd_mesh_options *mesh = &engine->options.mesh;
    trd__axis_rule *rules =
        trd__arena_alloc(engine->arena, (size_t)mesh->rule_count + DEFAULTS, sizeof *rules);
    int count = 0;
    if (!rules) return TRD_NO_MEMORY;
    for (int i = 0; i < DEFAULTS; i++)
        if (!is_replaced(mesh, defaults[i].logical))
            TRD_TRY(add_rule(&rules[count++], defaults[i].logical, defaults[i].axes, TRD__MESH_AXIS_COUNT));
    for (int i = 0; i < mesh->rule_count; i++) {
        const trd_axis_rule *rule = &mesh->rules[i];
        char *logical = trd__arena_strdup(engine->arena, rule->logical);
        if (!logical) return TRD_NO_MEMORY;
        TRD_TRY(add_rule(&rules[count++], logical, rule->axes, rule->axis_count));
    }
    engine->placement.rules = rules;
    engine->placement.rule_count = count;
    return TRD_OK;
}

static trd__sharding shard_batch(const trd_engine *engine)
{
    const char *const axes[] = {batch_axis};
    const trd_shape rows = TRD__SHAPE(engine->options.rows);
    return trd__shard(&engine->placement, &rows, axes, false);
}

static int64_t parts(const trd__placement *placement, const trd__mesh_axis *axes, int count)
{
    int64_t product = 1;
    for (int i = 0; i < count; i++) product *= placement->size[axes[i]];
    return product;
}

/* The rule of the batch, by which payloads are split; NULL: they are not. */
static const trd__axis_rule *batch_rule(const trd__placement *placement)
{
    for (int i = 0; i < placement->rule_count; i++)
        if (strcmp(placement->rules[i].logical, batch_axis) == 0) return &placement->rules[i];
    return NULL;
}

/* Whether the devices along the batch's axes can share the compiled rows. */
static trd_status check_rows(trd_engine *engine)
{
    const trd__placement *p = &engine->placement;
    const trd__axis_rule *rule = batch_rule(p);
    if (!rule || rule->axis_count == 0) return TRD_OK;
    int64_t wanted = parts(p, rule->axes, rule->axis_count), rows = engine->options.rows;
    if (rows % wanted == 0) return TRD_OK;
    char names[64] = "";
    for (int i = 0; i < rule->axis_count; i++) {
        strcat(names, i ? " x " : "");
        strcat(names, trd__mesh_axis_name(rule->axes[i]));
    }
    if (engine->options.mesh.indivisible_batch == TRD_INDIVISIBLE_ERROR)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "creating an engine: micro_batch_size_to_train_on expected a multiple of %s = %lld, "
                         "found %lld rows; change one of them, or set indivisible_batch: replicate",
                         names, (long long)wanted, (long long)rows);
    trd__sharding s = shard_batch(engine);
    int64_t found = parts(p, s.axes[0], s.axis_count[0]);
    trd__log(&engine->options.log, TRD_LOG_WARNING,
             "indivisible_batch: %lld rows are no multiple of %s = %lld: they are split %lld ways, so that "
             "each row is computed %lld times",
             (long long)rows, names, (long long)wanted, (long long)found, (long long)(wanted / found));
    return TRD_OK;
}

/* Each process must hold all of the state, which is saved and read without asking the others. */
static trd_status check_processes(const trd_engine *engine)
{
    const trd_mesh_options *mesh = &engine->options.mesh;
    int last = mesh->processes > 1 ? mesh->processes - 1 : 0;
    if (mesh->process < 0 || mesh->process > last) /* one that is not 0 writes nothing */
        return trd__fail(TRD_INVALID_ARGUMENT, "process_id: expected 0 to %d (num_processes - 1), found %d",
                         last, mesh->process);
    if (last == 0) return TRD_OK;
    for (int a = TRD__MESH_DATA + 1; a < TRD__MESH_AXIS_COUNT; a++)
        if (engine->placement.hosts[a] > 1)
            return trd__fail(TRD_UNSUPPORTED,
                             "dcn_%s_parallelism: only the data axis may lie between processes, so that each "
                             "holds all of the state; found %lld; use dcn_data_parallelism",
                             trd__mesh_axis_name((trd__mesh_axis)a), (long long)engine->placement.hosts[a]);
    if (mesh->shard_optimizer_over_data || mesh->defer_grad_reduction)
        return trd__fail(TRD_UNSUPPORTED,
                         "%s: with several processes it would leave state on other hosts, which a checkpoint "
                         "could not hold; expected false",
                         mesh->defer_grad_reduction ? "defer_grad_reduction" : "shard_optimizer_over_data");
    return TRD_OK;
}

trd_status trd__mesh_build(trd_engine *engine)
{
    TRD_TRY(set_sizes(engine));
    TRD_TRY(check_processes(engine));
    TRD_TRY(merge_rules(engine));
    engine->placement.explicit_mode = engine->options.mesh.shard_mode == TRD_SHARD_EXPLICIT;
    if (engine->placement.size[TRD__MESH_EXPERT] > 1)
        trd__log(&engine->options.log, TRD_LOG_WARNING,
                 "ici_expert_parallelism: the model has no experts, so that %lld devices along the axis do "
                 "the same work",
                 (long long)engine->placement.size[TRD__MESH_EXPERT]);
    return check_rows(engine);
}

const trd__placement *trd__mesh_placement(const trd_engine *engine)
{
    return trd__mesh_devices(&engine->placement) > 1 ? &engine->placement : NULL;
}

/* Whether a dimension may have the name: one of the default rules, or of a parameter. */
static bool is_known(const trd_engine *engine, const char *logical)
{
    const trd__layout *params = &engine->layout[TRD__ROLE_PARAMS];
    for (int i = 0; i < DEFAULTS; i++)
        if (strcmp(defaults[i].logical, logical) == 0) return true;
    for (int i = 0; i < params->count; i++)
        for (int d = 0; d < params->entries[i].shape.rank; d++)
            if (params->entries[i].axes[d] && strcmp(params->entries[i].axes[d], logical) == 0) return true;
    return false;
}

/* Says which rules look like a known name mistyped. Graphs of the caller's own, and rules written for other
 * engines, may have any other name. */
static void warn_of_unknown_rules(const trd_engine *engine)
{
    const trd_mesh_options *mesh = &engine->options.mesh;
    const char *names[DEFAULTS];
    for (int i = 0; i < DEFAULTS; i++) names[i] = defaults[i].logical;
    for (int i = 0; i < mesh->rule_count; i++) {
        const char *logical = mesh->rules[i].logical;
        const char *nearest = is_known(engine, logical) ? NULL : trd__nearest(logical, names, DEFAULTS);
        if (nearest)
            trd__log(&engine->options.log, TRD_LOG_WARNING,
                     "logical_axis_rules: no parameter has a dimension \"%s\"; did you mean \"%s\"?", logical,
                     nearest);
    }
}

static bool uses_axis(const trd__sharding *s, int rank, trd__mesh_axis axis)
{
    for (int d = 0; d < rank; d++)
        for (int i = 0; i < s->axis_count[d]; i++)
            if (s->axes[d][i] == axis) return true;
    return false;
}

/* Marks the states of the parameters, the scalars behind them stay whole. */
static void shard_optimizer(trd_engine *engine)
{
    const trd__placement *p = &engine->placement;
    trd__layout *layout = &engine->layout[TRD__ROLE_OPTIMIZER];
    int count = engine->first_state[engine->trainable_count], whole = 0;
    const char *first = NULL;
    if (p->size[TRD__MESH_DATA] == 1) {
        trd__log(&engine->options.log, TRD_LOG_WARNING,
                 "shard_optimizer_over_data: the mesh has one place along data, so there is nothing to split "
                 "the optimizer's state over");
        return;
    }
    for (int i = 0; i < count; i++) {
        trd__entry *entry = &layout->entries[i];
        entry->over_data = true;
        trd__sharding s = trd__shard(p, &entry->shape, entry->axes, true);
        if (uses_axis(&s, entry->shape.rank, TRD__MESH_DATA)) continue;
        if (!whole++) first = entry->name;
    }
    if (whole)
        trd__log(&engine->options.log, TRD_LOG_WARNING,
                 "shard_optimizer_over_data: %d of %d arrays of the optimizer's state have no dimension that "
                 "data = %lld divides and stay whole; the first is %s",
                 whole, count, (long long)p->size[TRD__MESH_DATA], first);
}

static bool splits_a_parameter(const trd_engine *engine, trd__mesh_axis axis)
{
    const trd__layout *layout = &engine->layout[TRD__ROLE_PARAMS];
    for (int i = 0; i < layout->count; i++) {
        const trd__entry *entry = &layout->entries[i];
        trd__sharding s = trd__shard(&engine->placement, &entry->shape, entry->axes, false);
        if (uses_axis(&s, entry->shape.rank, axis)) return true;
    }
    return false;
}

/* Why gradients have to be reduced with every micro-batch; NULL: they have not. */
static const char *refuse_deferral(const trd_engine *engine)
{
    const trd__placement *p = &engine->placement;
    const trd_model *model = engine->model;
    trd__sharding batch = shard_batch(engine);
    if (p->size[TRD__MESH_DATA] == 1) return "the mesh has one place along data";
    if (batch.axis_count[0] == 0 || batch.axes[0][0] != TRD__MESH_DATA)
        return "the rows of a micro-batch are not split over data before all other axes";
    if (model->state_count > 0)
        return "the model keeps a state (dropout counts micro-batches), which all rows of one have in common";
    for (int i = 0; i < model->parameter_count; i++)
        if (model->parameters[i].flags)
            return "the model has parameters that take a value instead of a gradient";
    if (splits_a_parameter(engine, TRD__MESH_DATA)) return "logical_axis_rules split parameters over data";
    return NULL;
}

/* Gradients as the device has them: one of each place along data. */
static trd_status build_own_gradients(trd_engine *engine)
{
    const trd__layout *reduced = &engine->layout[TRD__ROLE_GRADIENTS];
    trd__entry *entries = trd__arena_alloc(engine->arena, (size_t)reduced->count, sizeof *entries);
    if (!entries) return TRD_NO_MEMORY;
    for (int i = 0; i < reduced->count; i++) {
        const trd__entry *from = &reduced->entries[i];
        trd__entry *to = &entries[i];
        *to = *from;
        if (i >= engine->trainable_count) continue; /* a sum: reduced at once */
        to->replica = TRD__REPLICA_OWN;
        if (from->shape.rank == TRD_MAX_RANK)
            return trd__fail(TRD_UNSUPPORTED,
                             "defer_grad_reduction: \"%s\" has %d dimensions, one more is needed; set it to "
                             "false",
                             from->name, from->shape.rank);
        to->shape.rank = from->shape.rank + 1;
        to->shape.dim[0] = engine->placement.size[TRD__MESH_DATA];
        to->axes[0] = TRD__AXIS_REPLICA;
        for (int d = 0; d < from->shape.rank; d++) {
            to->shape.dim[d + 1] = from->shape.dim[d];
            to->axes[d + 1] = from->axes[d];
        }
    }
    engine->own_gradients = (trd__layout){entries, reduced->count};
    return TRD_OK;
}

/* fsdp and tensor are there to split parameters; where no length divides, each device would silently hold
 * all. */
static void warn_of_idle_axes(const trd_engine *engine)
{
    const trd__mesh_axis axes[] = {TRD__MESH_FSDP, TRD__MESH_TENSOR};
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        int64_t size = engine->placement.size[axes[i]];
        if (size > 1 && !splits_a_parameter(engine, axes[i]))
            trd__log(&engine->options.log, TRD_LOG_WARNING,
                     "ici_%s_parallelism: no parameter has a dimension that %lld places divide and the rules "
                     "split over %s, so that each device along it holds them whole",
                     trd__mesh_axis_name(axes[i]), (long long)size, trd__mesh_axis_name(axes[i]));
    }
}

trd_status trd__mesh_layout(trd_engine *engine)
{
    const trd_mesh_options *mesh = &engine->options.mesh;
    warn_of_idle_axes(engine);
    warn_of_unknown_rules(engine);
    if (mesh->shard_optimizer_over_data) shard_optimizer(engine);
    if (!mesh->defer_grad_reduction) return TRD_OK;
    const char *why = refuse_deferral(engine);
    if (!why) return build_own_gradients(engine);
    trd__log(&engine->options.log, TRD_LOG_WARNING,
             "defer_grad_reduction: gradients are reduced with every micro-batch: %s", why);
    return TRD_OK;
}

int64_t trd__mesh_replicas(const trd_engine *engine)
{
    return engine->own_gradients.entries ? engine->placement.size[TRD__MESH_DATA] : 1;
}

const trd__layout *trd__mesh_device_layout(const trd_engine *engine, trd__role role)
{
    bool gradients = role == TRD__ROLE_GRADIENTS || role == TRD__ROLE_CONTRIBUTION;
    return gradients && engine->own_gradients.entries ? &engine->own_gradients : &engine->layout[role];
}

int64_t trd__mesh_work_shares(const trd_engine *engine)
{
    trd__sharding batch = shard_batch(engine);
    return parts(&engine->placement, batch.axes[0], batch.axis_count[0]) *
           engine->placement.size[TRD__MESH_TENSOR];
}

uint64_t trd__mesh_bytes(const trd_engine *engine, const trd__layout *layout)
{
    uint64_t bytes = 0;
    for (int i = 0; i < layout->count; i++) {
        const trd__entry *entry = &layout->entries[i];
        trd__sharding s = trd__shard(&engine->placement, &entry->shape, entry->axes, entry->over_data);
        trd_shape part = trd__shard_shape(&engine->placement, &s, &entry->shape);
        bytes += trd__tensor_bytes(&part, entry->dtype);
    }
    return bytes;
}
