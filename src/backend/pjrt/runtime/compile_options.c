/* Writes XLA's CompileOptionsProto by hand: a few nested fields of protocol buffers, where a generated reader
 * would need XLA's whole tree of messages. Options must never be empty: the plugin ends the process then. */
#include <string.h>

#include "backend/pjrt/runtime/pjrt.h"
#include "base/alloc.h"

/* Field numbers, from xla/pjrt/proto/compile_options.proto and xla/xla_data.proto. */
enum {
    OPTIONS_BUILD = 3, /* of CompileOptionsProto */
    OPTIONS_FLAGS = 7, /* a map: flag to value */
    MAP_KEY = 1,
    MAP_VALUE = 2,
    FLAG_TEXT = 1, /* of OptionOverrideProto */
    FLAG_BOOL = 2,
    FLAG_INT = 3,
    BUILD_DEVICE = 1, /* of ExecutableBuildOptionsProto; -1: none in particular */
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

/* What any message takes at most, and what each device and each flag beside its texts adds to it. */
enum { FIXED_BYTES = 128, DEVICE_BYTES = 16, FLAG_BYTES = 32 };

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

static void put_text(message *m, int field, const char *text)
{
    message part = {.bytes = (unsigned char *)text, .size = strlen(text)};
    put_message(m, field, &part);
}

static void put_flag(message *options, const trd__xla_flag *flag, unsigned char *room)
{
    static const int fields[] = {[TRD__XLA_FLAG_BOOL] = FLAG_BOOL, [TRD__XLA_FLAG_INT] = FLAG_INT};
    size_t text = flag->kind == TRD__XLA_FLAG_TEXT ? strlen(flag->text) : 0;
    message value = {.bytes = room}, entry = {.bytes = room + text + FLAG_BYTES};
    if (flag->kind == TRD__XLA_FLAG_TEXT)
        put_text(&value, FLAG_TEXT, flag->text);
    else
        put_number(&value, fields[flag->kind], flag->number);
    put_text(&entry, MAP_KEY, flag->name);
    put_message(&entry, MAP_VALUE, &value);
    put_message(options, OPTIONS_FLAGS, &entry);
}

static size_t flag_bytes(const trd__xla_flag *flag)
{
    return FLAG_BYTES + strlen(flag->name) + (flag->text ? strlen(flag->text) : 0);
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

/* The client's flags, and those that make XLA write what it makes of the program into a folder. */
static int gather_flags(const trd__pjrt_client *c, const char *dump_folder, trd__xla_flag *flags)
{
    int count = 0;
    while (count < c->flags.count) {
        flags[count] = c->flags.flags[count];
        count++;
    }
    if (!dump_folder) return count;
    flags[count++] = (trd__xla_flag){.name = "xla_dump_to", .kind = TRD__XLA_FLAG_TEXT, .text = dump_folder};
    flags[count++] = (trd__xla_flag){.name = "xla_dump_hlo_as_text", .kind = TRD__XLA_FLAG_BOOL, .number = 1};
    return count;
}

trd_status trd__pjrt_compile_options(const trd__pjrt_client *c, const char *dump_folder,
                                     unsigned char **bytes, size_t *size)
{
    enum { DUMP_FLAGS = 2, PARTS = 4 };
    *bytes = NULL;
    trd__xla_flag *flags = trd__alloc((size_t)c->flags.count + DUMP_FLAGS, sizeof *flags);
    if (!flags) return TRD_NO_MEMORY;
    int count = gather_flags(c, dump_folder, flags);
    size_t room = FIXED_BYTES + (size_t)c->mesh_count * DEVICE_BYTES;
    for (int i = 0; i < count; i++) room += 2 * flag_bytes(&flags[i]);
    unsigned char *all = trd__alloc(PARTS, room);
    if (all) {
        message options = {.bytes = all}, build = {.bytes = all + room},
                assignment = {.bytes = all + 2 * room};
        put_all(&options, &build, &assignment, c);
        for (int i = 0; i < count; i++) put_flag(&options, &flags[i], all + 3 * room);
        *bytes = all;
        *size = options.size;
    }
    trd__free(flags);
    return all ? TRD_OK : TRD_NO_MEMORY;
}
