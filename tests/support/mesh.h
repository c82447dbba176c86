/* Meshes of four devices that tests run on, each in both shard modes. Dimensions are named by their number
 * ("dim0", "dim1", ...) and split over whatever divides them. */
#ifndef TRD_TESTS_SUPPORT_MESH_H
#define TRD_TESTS_SUPPORT_MESH_H

#include "graph/sharding.h"

enum { TEST_MESHES = 8 };

typedef struct test_mesh {
    const char *name; /* "data=2 fsdp=2, explicit" */
    trd__placement placement;
} test_mesh;

const test_mesh *test_mesh_at(int i);
/* The one that TRD_TEST_MESH names, for tests that run once more on it; NULL: one device. */
const trd__placement *test_placement(void);
/* Names the dimensions of an entry. */
void test_mesh_axes(trd__entry *entry);

#endif
