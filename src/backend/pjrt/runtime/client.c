/* Creating a client and asking it what it is. */
#include "backend/pjrt/runtime/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/pjrt/runtime/devices.h"
#include "backend/pjrt/runtime/serve.h"
#include "base/alloc.h"
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

static trd_status refuse(const trd__pjrt_client *c, size_t found, int64_t needed)
{
    if (!found)
        return trd__fail(TRD_NOT_FOUND, "backend pjrt: the plugin for %s has no device in this process",
                         c->platform);
    return trd__fail(
        TRD_NOT_FOUND,
        "backend pjrt: the mesh needs %lld devices, the plugin for %s has %zu; make the product of "
        "the mesh's axes %zu or less, or run where there are more devices",
        (long long)needed, c->platform, found, found);
}

/* Without peers each process would train alone, and all but one of them for nothing. list: by process. */
static trd_status check_peers(const trd__pjrt_client *c, int processes, const trd__pjrt_device *list,
                              size_t count)
{
    if (processes <= 1 || count == 0 || list[0].process != list[count - 1].process) return TRD_OK;
    return trd__fail(
        TRD_UNSUPPORTED,
        "backend pjrt: num_processes is %d, but the plugin for %s knows the devices of one process "
        "only; %s (docs/meshes.md)",
        processes, c->platform,
        c->is_host ? "it takes part in no mesh over processes: set num_processes=1"
                   : "set coordinator_address, by which they find one another");
}

static trd_status choose_devices(trd__pjrt_client *c, int processes, const trd__placement *placement)
{
    trd__pjrt_device *list;
    size_t found;
    int64_t needed = trd__mesh_devices(placement);
    TRD_TRY(trd__pjrt_devices_list(c->api, c->client, &list, &found));
    trd_status status = check_peers(c, processes, list, found);
    if (!status)
        status = (int64_t)found < needed ? refuse(c, found, needed)
                                         : trd__pjrt_devices_choose(placement, list, &c->mesh);
    trd__free(list);
    if (status) return status;
    c->mesh_count = (int)needed;
    c->devices = trd__calloc((size_t)needed, sizeof *c->devices);
    if (!c->devices) return TRD_NO_MEMORY;
    for (int d = 0; d < c->mesh_count; d++)
        if (c->mesh[d].local) c->devices[c->device_count++] = c->mesh[d];
    if (c->device_count) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT,
                     "backend pjrt: none of the mesh's %d devices is this process's; make the mesh larger or "
                     "start fewer processes",
                     c->mesh_count);
}

/* Not every plugin tells; that is no failure. */
static void ask_memory(trd__pjrt_client *c)
{
    PJRT_Device_MemoryStats_Args stats =
        TRD__PJRT(PJRT_Device_MemoryStats_Args, .device = c->devices[0].device);
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
    for (int d = 0; d < c->mesh_count; d++)
        hash = trd__checksum_more(hash, &c->mesh[d].id, sizeof c->mesh[d].id);
    const char *flags = getenv("XLA_FLAGS");
    if (flags) hash = trd__checksum_more(hash, flags, strlen(flags));
    return c->is_host ? add_processor(hash) : hash;
}

static PJRT_NamedValue number(const char *name, int64_t value)
{
    return TRD__PJRT(PJRT_NamedValue, .name = name, .name_size = strlen(name), .type = PJRT_NamedValue_kInt64,
                     .int64_value = value, .value_size = 1);
}

/* devices: how many a plugin for the host is to make, 0: as many as it likes. */
static trd_status create(trd__pjrt_client *c, const trd__backend_options *options, int64_t devices)
{
    PJRT_NamedValue values[3];
    PJRT_Client_Create_Args args = TRD__PJRT(PJRT_Client_Create_Args, .create_options = values);
    if (devices) values[args.num_options++] = number("cpu_device_count", devices);
    if (c->exchange) {
        values[args.num_options++] = number("node_id", options->process);
        values[args.num_options++] = number("num_nodes", options->processes);
        trd__pjrt_exchange_serve(c->exchange, &args);
    }
    trd_status status =
        trd__pjrt_check(c->api, c->api->PJRT_Client_Create(&args), "backend pjrt: creating a client");
    if (status && c->exchange)
        return trd__fail_in(status, "process %d of %d (not every plugin takes part in a mesh over processes)",
                            options->process, options->processes);
    TRD_TRY(status);
    c->client = args.client;
    return describe(c);
}

static void destroy(trd__pjrt_client *c)
{
    if (c->client)
        (void)trd__pjrt_check(
            c->api, c->api->PJRT_Client_Destroy(&TRD__PJRT(PJRT_Client_Destroy_Args, .client = c->client)),
            "closing a client");
    c->client = NULL;
}

/* The plugin for the host counts a process's devices so far; a device beyond is another process's to it. */
enum { MOST_HOST_DEVICES = 2048 };

/* Other plugins refuse the option for the host, so which it is must be known first. */
static trd_status fill(trd__pjrt_client *c, const trd__backend_options *options,
                       const trd__placement *placement)
{
    if (options->processes > 1 && options->coordinator_address)
        TRD_TRY(trd__exchange_open(options->coordinator_address, options->process, &c->exchange));
    TRD_TRY(create(c, options, 0));
    if (c->is_host && trd__mesh_devices(placement) > 1) {
        if (trd__mesh_devices(placement) > MOST_HOST_DEVICES)
            return trd__fail(TRD_UNSUPPORTED,
                             "backend pjrt: the mesh needs %lld devices, the plugin for %s makes at most %d",
                             (long long)trd__mesh_devices(placement), c->platform, MOST_HOST_DEVICES);
        destroy(c);
        TRD_TRY(create(c, options, trd__mesh_devices(placement)));
    }
    return choose_devices(c, options->processes, placement);
}

trd_status trd__pjrt_client_open(const trd__backend_options *options, const trd__placement *placement,
                                 trd__pjrt_client *c)
{
    memset(c, 0, sizeof *c);
    uint64_t identity;
    TRD_TRY(trd__pjrt_plugin_open(options->plugin_path, &c->api, &identity));
    trd_status status = fill(c, options, placement);
    if (status) {
        trd__pjrt_client_close(c);
        return status;
    }
    ask_memory(c);
    c->fingerprint = fingerprint_of(c, identity);
    return TRD_OK;
}

trd_status trd__pjrt_client_use_flags(trd__pjrt_client *c, const char *text)
{
    if (!text) return TRD_OK;
    c->arena = trd__arena_create();
    if (!c->arena) return TRD_NO_MEMORY;
    TRD_TRY(trd__xla_flags_parse(c->arena, text, &c->flags));
    c->fingerprint = trd__checksum_more(c->fingerprint, text, strlen(text));
    return TRD_OK;
}

void trd__pjrt_client_close(trd__pjrt_client *c)
{
    destroy(c);
    trd__exchange_close(c->exchange);
    trd__arena_free(c->arena);
    trd__free(c->devices);
    trd__free(c->mesh);
    memset(c, 0, sizeof *c);
}
