/* What a mesh and its rules make of a tensor; see the header. */
#include "graph/sharding.h"

#include <string.h>

static const char *const axis_names[] = {
#define TRD__MESH_NAME(name, text) [TRD__MESH_##name] = text,
    TRD__MESH_AXES(TRD__MESH_NAME)
#undef TRD__MESH_NAME
};

const char *trd__mesh_axis_name(trd__mesh_axis axis)
{
    return axis_names[axis];
}

int64_t trd__mesh_devices(const trd__placement *placement)
{
    int64_t devices = 1;
    for (int a = 0; placement && a < TRD__MESH_AXIS_COUNT; a++) devices *= placement->size[a];
    return devices;
}

/* What is still free while one tensor's dimensions are gone through. */
typedef struct choice {
    const trd__placement *placement;
    bool used[TRD__MESH_AXIS_COUNT];
    trd__sharding sharding;
} choice;

/* How many parts dimension d has so far. */
static int64_t parts(const choice *c, int d)
{
    int64_t product = 1;
    for (int i = 0; i < c->sharding.axis_count[d]; i++) product *= c->placement->size[c->sharding.axes[d][i]];
    return product;
}

/* Splits dimension d over axis too, if the axis is free, has devices, and divides what is left. */
static bool split(choice *c, const trd_shape *shape, int d, trd__mesh_axis axis)
{
    int64_t size = c->placement->size[axis];
    if (c->used[axis] || size == 1 || shape->dim[d] == 0 || shape->dim[d] % (parts(c, d) * size) != 0)
        return false;
    c->sharding.axes[d][c->sharding.axis_count[d]++] = axis;
    return c->used[axis] = true;
}

static bool apply_rule(choice *c, const trd_shape *shape, int d, const trd__axis_rule *rule)
{
    bool applied = false;
    for (int i = 0; i < rule->axis_count; i++) applied |= split(c, shape, d, rule->axes[i]);
    return applied;
}

trd__sharding trd__shard(const trd__placement *placement, const trd_shape *shape, const char *const *axes,
                         bool over_data)
{
    choice c = {.placement = placement};
    if (trd__mesh_devices(placement) == 1) return c.sharding;
    for (int d = 0; d < shape->rank; d++)
        if (axes[d] && strcmp(axes[d], TRD__AXIS_REPLICA) == 0) split(&c, shape, d, TRD__MESH_DATA);
    for (int d = 0; d < shape->rank; d++)
        for (int r = 0; axes[d] && r < placement->rule_count; r++)
            if (strcmp(placement->rules[r].logical, axes[d]) == 0 &&
                apply_rule(&c, shape, d, &placement->rules[r]))
                break;
    for (int d = 0; over_data && d < shape->rank; d++) {
        if (axes[d] && strcmp(axes[d], TRD__AXIS_LAYERS) == 0) continue; /* loops go along it */
        if (split(&c, shape, d, TRD__MESH_DATA)) break;
    }
    return c.sharding;
}

trd_shape trd__shard_shape(const trd__placement *placement, const trd__sharding *sharding,
                           const trd_shape *shape)
{
    trd_shape part = *shape;
    for (int d = 0; d < shape->rank; d++)
        for (int i = 0; i < sharding->axis_count[d]; i++)
            part.dim[d] /= placement->size[sharding->axes[d][i]];
    return part;
}

void trd__shard_origin(const trd__placement *placement, const trd__sharding *sharding, const trd_shape *part,
                       int64_t device, int64_t origin[TRD_MAX_RANK])
{
    int64_t place[TRD__MESH_AXIS_COUNT]; /* of the device along each axis */
    for (int a = TRD__MESH_AXIS_COUNT - 1; a >= 0; a--) {
        place[a] = device % placement->size[a];
        device /= placement->size[a];
    }
    for (int d = 0; d < part->rank; d++) {
        int64_t index = 0;
        for (int i = 0; i < sharding->axis_count[d]; i++) {
            trd__mesh_axis axis = sharding->axes[d][i];
            index = index * placement->size[axis] + place[axis];
        }
        origin[d] = index * part->dim[d];
    }
}

bool trd__sharding_is_whole(const trd__sharding *sharding)
{
    for (int d = 0; d < TRD_MAX_RANK; d++)
        if (sharding->axis_count[d]) return false;
    return true;
}
