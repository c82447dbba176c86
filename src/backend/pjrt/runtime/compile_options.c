/* Writes XLA's CompileOptionsProto by hand: a few nested fields of protocol buffers, where a generated reader
 * would need XLA's whole tree of messages. Options must never be empty: the plugin ends the process then. */
#include <string.h>

#include "backend/pjrt/runtime/pjrt.h"
#include "base/alloc.h"

/* Field numbers, from xla/pjrt/proto/compile_options.proto and xla/xla_data.proto. */
enum {
    OPTIONS_BUILD = 3, /* of CompileOptionsProto */
    BUILD_DEVICE = 1,  /* of ExecutableBuildOptionsProto; -1: none in particular */
    BUILD_REPLICAS = 4,
    BUILD_PARTITIONS = 5,
    BUILD_USE_SPMD = 6, /* splits the program over the partitions, */
    BUILD_ASSIGNMENT = 9,
    BUILD_USE_SHARDY = 19,   /* as Shardy's words in it say */
    ASSIGNMENT_REPLICAS = 1, /* of DeviceAssignmentProto */
    ASSIGNMENT_COMPUTATIONS = 2,
    ASSIGNMENT_DEVICES = 3,
    DEVICES_IDS = 1 /* of its ComputationDevice */
};

/* What any message takes at most, and what each device adds to it. */
enum { FIXED_BYTES = 128, DEVICE_BYTES = 16 };

typedef struct message {
    unsigned char *bytes;
    size_t size;
} message;

static void put_varint(message *m, uint64_t value)
{
    for (; value >= 128; value >>= 7) m->bytes[m->size++] = (unsigned char)(value | 128);
    m->bytes[m->size++] = (unsigned char)value;
}

static void put_number(message *m, int field, int64_t value)
{
    put_varint(m, (uint64_t)field << 3);
    put_varint(m, (uint64_t)value);
}

static void put_message(message *m, int field, const message *part)
{
    put_varint(m, (uint64_t)field << 3 | 2);
    put_varint(m, part->size);
    memcpy(m->bytes + m->size, part->bytes, part->size);
    m->size += part->size;
}

/* Partition i runs on device i of the mesh. */
static void put_assignment(message *assignment, const trd__pjrt_client *c)
{
    put_number(assignment, ASSIGNMENT_REPLICAS, 1);
    put_number(assignment, ASSIGNMENT_COMPUTATIONS, c->mesh_count);
    for (int d = 0; d < c->mesh_count; d++) {
        message devices = {.bytes = (unsigned char[DEVICE_BYTES]){0}};
        put_number(&devices, DEVICES_IDS, c->mesh[d].id);
        put_message(assignment, ASSIGNMENT_DEVICES, &devices);
    }
}

static void put_all(message *options, message *build, message *assignment, const trd__pjrt_client *c)
{
    put_assignment(assignment, c);
    put_number(build, BUILD_DEVICE, -1);
    put_number(build, BUILD_REPLICAS, 1);
    put_number(build, BUILD_PARTITIONS, c->mesh_count);
    if (c->mesh_count > 1) put_number(build, BUILD_USE_SPMD, 1);
    put_message(build, BUILD_ASSIGNMENT, assignment);
    if (c->mesh_count > 1) put_number(build, BUILD_USE_SHARDY, 1);
    put_message(options, OPTIONS_BUILD, build);
}

trd_status trd__pjrt_compile_options(const trd__pjrt_client *c, unsigned char **bytes, size_t *size)
{
    size_t room = FIXED_BYTES + (size_t)c->mesh_count * DEVICE_BYTES;
    unsigned char *all = trd__alloc(3, room);
    *bytes = NULL;
    if (!all) return TRD_NO_MEMORY;
    message options = {.bytes = all}, build = {.bytes = all + room}, assignment = {.bytes = all + 2 * room};
    put_all(&options, &build, &assignment, c);
    *bytes = all;
    *size = options.size;
    return TRD_OK;
}
