#include "support/mesh.h"

#include <stdlib.h>
#include <string.h>

#define RULE(name, ...)                                                                                      \
    {                                                                                                        \
        .logical = name, .axes = {__VA_ARGS__},                                                              \
        .axis_count = (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int))                                      \
    }

static const trd__axis_rule rules[] = {
    RULE("dim0", TRD__MESH_DATA, TRD__MESH_FSDP, TRD__MESH_TENSOR),
    RULE("dim1", TRD__MESH_TENSOR, TRD__MESH_FSDP, TRD__MESH_DATA),
    RULE("dim2", TRD__MESH_FSDP, TRD__MESH_TENSOR, TRD__MESH_DATA),
    RULE("dim3", TRD__MESH_DATA, TRD__MESH_TENSOR, TRD__MESH_FSDP),
};

#define MESH(text, explicit, data, fsdp, tensor)                                                             \
    {                                                                                                        \
        .name = text, .placement = {                                                                         \
            .size = {data, fsdp, tensor, 1},                                                                 \
            .hosts = {1, 1, 1, 1},                                                                           \
            .rules = rules,                                                                                  \
            .rule_count = (int)(sizeof rules / sizeof *rules),                                               \
            .explicit_mode = explicit                                                                        \
        }                                                                                                    \
    }
#define BOTH(text, ...) MESH(text ", auto", false, __VA_ARGS__), MESH(text ", explicit", true, __VA_ARGS__)

static const test_mesh meshes[TEST_MESHES] = {BOTH("data=4", 4, 1, 1), BOTH("fsdp=4", 1, 4, 1),
                                              BOTH("data=2 fsdp=2", 2, 2, 1),
                                              BOTH("data=2 tensor=2", 2, 1, 2)};

const test_mesh *test_mesh_at(int i)
{
    return &meshes[i];
}

const trd__placement *test_placement(void)
{
    const char *name = getenv("TRD_TEST_MESH");
    for (int i = 0; name && i < TEST_MESHES; i++)
        if (strcmp(meshes[i].name, name) == 0) return &meshes[i].placement;
    return NULL;
}

void test_mesh_axes(trd__entry *entry)
{
    static const char *const names[TRD_MAX_RANK] = {"dim0", "dim1", "dim2", "dim3"};
    for (int d = 0; d < entry->shape.rank; d++) entry->axes[d] = names[d];
}
