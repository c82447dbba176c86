/* A PJRT plugin that is broken as TRD_FAKE_PLUGIN says: "old" speaks a version before what the backend needs,
 * "no_client" refuses to create a client, "no_device" has no device, "one_device" one that can do nothing;
 * and one that is not: "nodes" finds the other processes as plugins for accelerators do, each with two
 * devices, but runs nothing. Compiled with TRD_NO_ENTRY it is a library that is no plugin at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_error.h"

static PJRT_Error refused = {"the fake device is on fire", PJRT_Error_Code_RESOURCE_EXHAUSTED};

static int is(const char *kind)
{
    const char *wanted = getenv("TRD_FAKE_PLUGIN");
    return wanted && strcmp(wanted, kind) == 0;
}

/* What the backend's callbacks fail with. */
static PJRT_Error last;
static char last_message[512];

static PJRT_Error *make_error(PJRT_Error_Code code, const char *message, size_t message_size)
{
    snprintf(last_message, sizeof last_message, "%.*s", (int)message_size, message);
    last = (PJRT_Error){last_message, code};
    return &last;
}
static PJRT_CallbackError callback_error = make_error;

/* Two of each node. */
struct PJRT_Device {
    int id;
};
enum { MOST = 16 };
static PJRT_Device all[MOST];
static PJRT_Device *list[MOST];
static int node, nodes;

static int64_t option(const PJRT_Client_Create_Args *args, const char *name)
{
    for (size_t i = 0; i < args->num_options; i++)
        if (strncmp(args->create_options[i].name, name, args->create_options[i].name_size) == 0)
            return args->create_options[i].int64_value;
    return -1;
}

/* Puts its own key and waits for everyone's. A key that nobody puts must not be found. */
static PJRT_Error *meet(PJRT_Client_Create_Args *args)
{
    static PJRT_Error made;
    static char message[256];
    char key[32], value[32];
    node = (int)option(args, "node_id");
    nodes = (int)option(args, "num_nodes");
    int key_size = snprintf(key, sizeof key, "node/%d", node);
    int value_size = snprintf(value, sizeof value, "devices of %d", node);
    PJRT_KeyValuePutCallback_Args put = {.key = key,
                                         .key_size = (size_t)key_size,
                                         .value = value,
                                         .value_size = (size_t)value_size,
                                         .callback_error = &callback_error,
                                         .user_arg = args->kv_put_user_arg};
    PJRT_Error *error = args->kv_put_callback(&put);
    for (int i = 0; !error && i < nodes; i++) {
        key_size = snprintf(key, sizeof key, "node/%d", i);
        value_size = snprintf(value, sizeof value, "devices of %d", i);
        PJRT_KeyValueGetCallback_Args get = {.key = key,
                                             .key_size = (size_t)key_size,
                                             .timeout_in_ms = 20000,
                                             .callback_error = &callback_error,
                                             .user_arg = args->kv_get_user_arg};
        error = args->kv_get_callback(&get);
        if (error) break;
        if (get.value_size != (size_t)value_size || memcmp(get.value, value, get.value_size) != 0) {
            snprintf(message, sizeof message, "node %d put something else", i);
            made = (PJRT_Error){message, PJRT_Error_Code_INTERNAL};
            error = &made;
        }
        get.value_deleter_callback(get.value);
    }
    PJRT_KeyValueTryGetCallback_Args look = {.key = "nobody",
                                             .key_size = 6,
                                             .callback_error = &callback_error,
                                             .user_arg = args->kv_try_get_user_arg};
    return error                                                                                 ? error
           : args->kv_try_get_callback(&look) == &last && last.code == PJRT_Error_Code_NOT_FOUND ? NULL
                                                                                                 : &refused;
}

static PJRT_Error *client_create(PJRT_Client_Create_Args *args)
{
    args->client = (PJRT_Client *)&refused; /* never looked into */
    if (is("nodes")) return meet(args);
    return is("no_client") ? &refused : NULL;
}

static PJRT_Error *client_destroy(PJRT_Client_Destroy_Args *args)
{
    (void)args;
    return NULL;
}

static PJRT_Error *platform_name(PJRT_Client_PlatformName_Args *args)
{
    args->platform_name = "fake";
    args->platform_name_size = 4;
    return NULL;
}

static PJRT_Error *platform_version(PJRT_Client_PlatformVersion_Args *args)
{
    args->platform_version = "1";
    args->platform_version_size = 1;
    return NULL;
}

static PJRT_Error *devices(PJRT_Client_Devices_Args *args)
{
    args->devices = list;
    args->num_devices = is("nodes") ? 2 * (size_t)nodes : (size_t)is("one_device");
    for (size_t i = 0; i < args->num_devices; i++) {
        all[i].id = (int)i;
        list[i] = &all[i];
    }
    return NULL;
}

static PJRT_Error *description(PJRT_Device_GetDescription_Args *args)
{
    args->device_description = (PJRT_DeviceDescription *)args->device;
    return NULL;
}

static PJRT_Error *device_id(PJRT_DeviceDescription_Id_Args *args)
{
    args->id = ((PJRT_Device *)args->device_description)->id;
    return NULL;
}

static PJRT_Error *device_process(PJRT_DeviceDescription_ProcessIndex_Args *args)
{
    args->process_index = ((PJRT_Device *)args->device_description)->id / 2;
    return NULL;
}

static PJRT_Error *device_is_local(PJRT_Device_IsAddressable_Args *args)
{
    args->is_addressable = args->device->id / 2 == node;
    return NULL;
}

static PJRT_Error *memory_stats(PJRT_Device_MemoryStats_Args *args)
{
    (void)args;
    return &refused;
}

#ifdef TRD_NO_ENTRY
#define ENTRY GetNothing
#else
#define ENTRY GetPjrtApi
#endif

const PJRT_Api *ENTRY(void);
const PJRT_Api *ENTRY(void)
{
    static PJRT_Api api;
    api = (PJRT_Api){.struct_size = is("old") ? offsetof(PJRT_Api, PJRT_Client_Create) : sizeof(PJRT_Api),
                     .pjrt_api_version = {.major_version = 0, .minor_version = is("old") ? 7 : 81},
                     .PJRT_Error_Destroy = error_destroy,
                     .PJRT_Error_Message = error_message,
                     .PJRT_Error_GetCode = error_code,
                     .PJRT_Client_Create = client_create,
                     .PJRT_Client_Destroy = client_destroy,
                     .PJRT_Client_PlatformName = platform_name,
                     .PJRT_Client_PlatformVersion = platform_version,
                     .PJRT_Client_Devices = devices,
                     .PJRT_Device_GetDescription = description,
                     .PJRT_DeviceDescription_Id = device_id,
                     .PJRT_DeviceDescription_ProcessIndex = device_process,
                     .PJRT_Device_IsAddressable = device_is_local,
                     .PJRT_Device_MemoryStats = memory_stats};
    return &api;
}
