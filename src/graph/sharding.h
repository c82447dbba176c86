/* Where the parts of a tensor live: a mesh of devices, rules from logical axis names to mesh axes, and what
 * both make of one tensor. Knows no backend: a backend of one device ignores it.
 *
 * Invariants: a mesh axis splits at most one dimension of a tensor; a dimension is split only where its
 * length divides evenly; no rule, no mesh or a dimension without a name means the same on every device. */
#ifndef TRD_GRAPH_SHARDING_H
#define TRD_GRAPH_SHARDING_H

#include "graph/program.h"

/* X(NAME, name): the mesh's axes, outermost first. */
#define TRD__MESH_AXES(X)                                                                                    \
    X(DATA, "data")                                                                                          \
    X(FSDP, "fsdp")                                                                                          \
    X(TENSOR, "tensor")                                                                                      \
    X(EXPERT, "expert")
typedef enum trd__mesh_axis {
#define TRD__MESH_ENUM(name, text) TRD__MESH_##name,
    TRD__MESH_AXES(TRD__MESH_ENUM)
#undef TRD__MESH_ENUM
        TRD__MESH_AXIS_COUNT
} trd__mesh_axis;

/* One rule: dimensions named `logical` are split over the mesh axes of `axes`, in that order. */
typedef struct trd__axis_rule {
    const char *logical;
    trd__mesh_axis axes[TRD__MESH_AXIS_COUNT];
    int axis_count;
} trd__axis_rule;

/* A mesh and its rules; read-only, outlives who uses it. */
typedef struct trd__placement {
    int64_t size[TRD__MESH_AXIS_COUNT];  /* devices along each axis, at least 1 */
    int64_t hosts[TRD__MESH_AXIS_COUNT]; /* how many of size are between hosts (dcn); divides it */
    const trd__axis_rule *rules;         /* the first that names an axis and still finds a mesh axis free */
    int rule_count;
    bool explicit_mode; /* every named value is constrained, not only what goes in and out */
} trd__placement;

/* How one tensor is split: dimension d over axes[d][0 .. axis_count[d] - 1], major first. */
typedef struct trd__sharding {
    trd__mesh_axis axes[TRD_MAX_RANK][TRD__MESH_AXIS_COUNT];
    int axis_count[TRD_MAX_RANK];
} trd__sharding;

const char *trd__mesh_axis_name(trd__mesh_axis axis);
int64_t trd__mesh_devices(const trd__placement *placement); /* 1 for NULL */
/* axes: a logical name (or NULL) for each dimension. over_data: the data axis, where it is still free, also
 * splits the first dimension that it divides (an optimizer's state that every replica would hold whole), but
 * for layers, which loops go along. */
trd__sharding trd__shard(const trd__placement *placement, const trd_shape *shape, const char *const *axes,
                         bool over_data);
/* The shape of one device's part. */
trd_shape trd__shard_shape(const trd__placement *placement, const trd__sharding *sharding,
                           const trd_shape *shape);
/* Where device (in mesh order, outermost axis slowest) finds its part: the first index of each dimension. */
void trd__shard_origin(const trd__placement *placement, const trd__sharding *sharding, const trd_shape *part,
                       int64_t device, int64_t origin[TRD_MAX_RANK]);
bool trd__sharding_is_whole(const trd__sharding *sharding); /* no dimension is split */

#endif
