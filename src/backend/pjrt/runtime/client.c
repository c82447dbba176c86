/* Creating a client and asking it what it is. */
#include "backend/pjrt/runtime/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"

static trd_status describe(trd__pjrt_client *c)
{
    PJRT_Client_PlatformName_Args name = TRD__PJRT(PJRT_Client_PlatformName_Args, .client = c->client);
    TRD_TRY(trd__pjrt_check(c->api, c->api->PJRT_Client_PlatformName(&name), "backend pjrt: platform"));
    snprintf(c->platform, sizeof c->platform, "%.*s", (int)name.platform_name_size, name.platform_name);
    PJRT_Client_PlatformVersion_Args version =
        TRD__PJRT(PJRT_Client_PlatformVersion_Args, .client = c->client);
    TRD_TRY(trd__pjrt_check(c->api, c->api->PJRT_Client_PlatformVersion(&version), "backend pjrt: version"));
    snprintf(c->version, sizeof c->version, "%.*s", (int)version.platform_version_size,
             version.platform_version);
    c->is_host = strcmp(c->platform, "cpu") == 0;
    return TRD_OK;
}

static trd_status choose_device(trd__pjrt_client *c)
{
    PJRT_Client_AddressableDevices_Args devices =
        TRD__PJRT(PJRT_Client_AddressableDevices_Args, .client = c->client);
    TRD_TRY(
        trd__pjrt_check(c->api, c->api->PJRT_Client_AddressableDevices(&devices), "backend pjrt: devices"));
    if (!devices.num_addressable_devices)
        return trd__fail(TRD_NOT_FOUND, "backend pjrt: the plugin for %s has no device in this process",
                         c->platform);
    c->device = devices.addressable_devices[0];
    PJRT_Device_GetDescription_Args description =
        TRD__PJRT(PJRT_Device_GetDescription_Args, .device = c->device);
    TRD_TRY(
        trd__pjrt_check(c->api, c->api->PJRT_Device_GetDescription(&description), "backend pjrt: device"));
    PJRT_DeviceDescription_Id_Args id =
        TRD__PJRT(PJRT_DeviceDescription_Id_Args, .device_description = description.device_description);
    TRD_TRY(trd__pjrt_check(c->api, c->api->PJRT_DeviceDescription_Id(&id), "backend pjrt: device"));
    c->device_id = id.id;
    return TRD_OK;
}

/* Not every plugin tells; that is no failure. */
static void ask_memory(trd__pjrt_client *c)
{
    PJRT_Device_MemoryStats_Args stats = TRD__PJRT(PJRT_Device_MemoryStats_Args, .device = c->device);
    trd_status status = trd__pjrt_check(c->api, c->api->PJRT_Device_MemoryStats(&stats), "memory");
    if (!status && stats.bytes_limit_is_set && stats.bytes_limit > 0)
        c->memory_limit = (uint64_t)stats.bytes_limit;
}

/* What the system says of its first processor: programs for a host are made for its instruction set. */
static uint64_t add_processor(uint64_t hash)
{
    char line[4096];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file) && line[0] != '\n')
        if (strncmp(line, "flags", 5) == 0 || strncmp(line, "model name", 10) == 0)
            hash = trd__checksum_more(hash, line, strlen(line));
    if (file) fclose(file);
    return hash;
}

static uint64_t fingerprint_of(const trd__pjrt_client *c, uint64_t identity)
{
    uint64_t hash = trd__checksum_more(identity, c->platform, strlen(c->platform));
    hash = trd__checksum_more(hash, c->version, strlen(c->version));
    hash = trd__checksum_more(hash, &c->device_id, sizeof c->device_id);
    const char *flags = getenv("XLA_FLAGS");
    if (flags) hash = trd__checksum_more(hash, flags, strlen(flags));
    return c->is_host ? add_processor(hash) : hash;
}

trd_status trd__pjrt_client_open(const char *plugin_path, trd__pjrt_client *c)
{
    memset(c, 0, sizeof *c);
    uint64_t identity;
    TRD_TRY(trd__pjrt_plugin_open(plugin_path, &c->api, &identity));
    PJRT_Client_Create_Args create = TRD__PJRT(PJRT_Client_Create_Args);
    TRD_TRY(trd__pjrt_check(c->api, c->api->PJRT_Client_Create(&create), "backend pjrt: creating a client"));
    c->client = create.client;
    trd_status status = describe(c);
    if (!status) status = choose_device(c);
    if (status) {
        trd__pjrt_client_close(c);
        return status;
    }
    ask_memory(c);
    c->fingerprint = fingerprint_of(c, identity);
    return TRD_OK;
}

void trd__pjrt_client_close(trd__pjrt_client *c)
{
    if (c->client)
        (void)trd__pjrt_check(
            c->api, c->api->PJRT_Client_Destroy(&TRD__PJRT(PJRT_Client_Destroy_Args, .client = c->client)),
            "closing a client");
    memset(c, 0, sizeof *c);
}
