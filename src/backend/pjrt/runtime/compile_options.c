/* Writes XLA's CompileOptionsProto by hand: a few nested fields of protocol buffers, where a generated reader
 * would need XLA's whole tree of messages. Options must never be empty: the plugin ends the process then. */
#include <string.h>

#include "backend/pjrt/runtime/pjrt.h"

/* Field numbers, from xla/pjrt/proto/compile_options.proto and xla/xla_data.proto. */
enum {
    OPTIONS_BUILD = 3, /* of CompileOptionsProto */
    BUILD_DEVICE = 1,  /* of ExecutableBuildOptionsProto; -1: none in particular */
    BUILD_REPLICAS = 4,
    BUILD_PARTITIONS = 5,
    BUILD_ASSIGNMENT = 9,
    ASSIGNMENT_REPLICAS = 1, /* of DeviceAssignmentProto */
    ASSIGNMENT_COMPUTATIONS = 2,
    ASSIGNMENT_DEVICES = 3,
    DEVICES_IDS = 1 /* of its ComputationDevice */
};

typedef struct message {
    unsigned char bytes[TRD__PJRT_OPTIONS_BYTES];
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

size_t trd__pjrt_compile_options(int device, unsigned char *bytes)
{
    message devices = {0}, assignment = {0}, build = {0}, options = {0};
    put_number(&devices, DEVICES_IDS, device);
    put_number(&assignment, ASSIGNMENT_REPLICAS, 1);
    put_number(&assignment, ASSIGNMENT_COMPUTATIONS, 1);
    put_message(&assignment, ASSIGNMENT_DEVICES, &devices);
    put_number(&build, BUILD_DEVICE, -1);
    put_number(&build, BUILD_REPLICAS, 1);
    put_number(&build, BUILD_PARTITIONS, 1);
    put_message(&build, BUILD_ASSIGNMENT, &assignment);
    put_message(&options, OPTIONS_BUILD, &build);
    memcpy(bytes, options.bytes, options.size);
    return options.size;
}
