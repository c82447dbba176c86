/* A mesh of devices: its axes, the rules by which tensors are split over them, and the processes that share
 * it. Plain data of an engine's options; docs/meshes.md is the guide. */
#ifndef TREADLE_MESH_H
#define TREADLE_MESH_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Devices along each axis of a mesh; 0 is 1. Axes from the outermost in: data (each place a part of the
 * batch), fsdp (the batch and the parameters), tensor (the parameters within a layer), expert. */
typedef struct trd_mesh_axes {
    int data;   /* parts of the batch */
    int fsdp;   /* parts of the batch and of every parameter */
    int tensor; /* parts of heads, of the MLP and of the vocabulary */
    int expert; /* parts of the experts; no model here has experts yet */
} trd_mesh_axes;
/* Dimensions named `logical` are split over the mesh axes named in `axes`, in that order, as far as they
 * divide; no axis: they are not split. docs/meshes.md lists the names and the rules there are. */
typedef struct trd_axis_rule {
    const char *logical;     /* name of the dimension, for example "embed" */
    const char *const *axes; /* "data", "fsdp", "tensor" or "expert" */
    int axis_count;          /* of axes */
} trd_axis_rule;
/* What the partitioner is told. */
typedef enum trd_shard_mode {
    TRD_SHARD_AUTO,    /* how inputs, state and results are split; the rest is its own */
    TRD_SHARD_EXPLICIT /* every named value inside, too */
} trd_shard_mode;
/* What becomes of a batch that the devices cannot share out evenly. */
typedef enum trd_indivisible_batch {
    TRD_INDIVISIBLE_ERROR,    /* no engine is made */
    TRD_INDIVISIBLE_REPLICATE /* devices do the same rows again, with a warning that says how often */
} trd_indivisible_batch;
/* A mesh of devices and how everything lies on it; zeroed: one device. */
typedef struct trd_mesh_options {
    trd_mesh_axes ici;                       /* devices of one host along each axis */
    trd_mesh_axes dcn;                       /* hosts along each axis; an axis has ici * dcn places */
    const trd_axis_rule *rules;              /* take the place of the default rules of the same names */
    int rule_count;                          /* of rules */
    trd_shard_mode shard_mode;               /* what the partitioner is told */
    trd_indivisible_batch indivisible_batch; /* rows that data x fsdp does not divide */
    bool defer_grad_reduction;               /* gradients are summed over data once, by the update */
    bool shard_optimizer_over_data;          /* optimizer state is split over data, too */
    /* Of a mesh over several processes, each of which is given the same batches: */
    int processes;                   /* how many there are; 0 or 1: one */
    int process;                     /* which this is, from 0; only 0 may write checkpoints */
    const char *coordinator_address; /* where they find one another, docs/meshes.md has the form; NULL: the
                                        backend's devices know one another */
} trd_mesh_options;

#ifdef __cplusplus
}
#endif

#endif
