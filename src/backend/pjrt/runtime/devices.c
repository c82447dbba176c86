/* Which devices make up the mesh, and in which order. The mesh counts its devices with the last axis fastest;
 * of an axis that also lies between hosts that part counts slowest of all, so that a host's devices, which
 * follow one another by process, are neighbours in everything else. */
#include "backend/pjrt/runtime/devices.h"

#include <stdlib.h>

#include "base/alloc.h"

static trd_status describe(const PJRT_Api *api, PJRT_Device *device, trd__pjrt_device *to)
{
    PJRT_Device_GetDescription_Args description =
        TRD__PJRT(PJRT_Device_GetDescription_Args, .device = device);
    TRD_TRY(trd__pjrt_check(api, api->PJRT_Device_GetDescription(&description), "backend pjrt: device"));
    PJRT_DeviceDescription_Id_Args id =
        TRD__PJRT(PJRT_DeviceDescription_Id_Args, .device_description = description.device_description);
    TRD_TRY(trd__pjrt_check(api, api->PJRT_DeviceDescription_Id(&id), "backend pjrt: device"));
    PJRT_DeviceDescription_ProcessIndex_Args process = TRD__PJRT(
        PJRT_DeviceDescription_ProcessIndex_Args, .device_description = description.device_description);
    TRD_TRY(trd__pjrt_check(api, api->PJRT_DeviceDescription_ProcessIndex(&process), "backend pjrt: device"));
    PJRT_Device_IsAddressable_Args local = TRD__PJRT(PJRT_Device_IsAddressable_Args, .device = device);
    TRD_TRY(trd__pjrt_check(api, api->PJRT_Device_IsAddressable(&local), "backend pjrt: device"));
    *to = (trd__pjrt_device){
        .device = device, .id = id.id, .process = process.process_index, .local = local.is_addressable};
    return TRD_OK;
}

static int by_process(const void *left, const void *right)
{
    const trd__pjrt_device *a = left, *b = right;
    if (a->process != b->process) return a->process < b->process ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

int64_t trd__pjrt_mesh_place(const trd__placement *p, int64_t device)
{
    int64_t host = 0, hosts = 1, local = 0, locals = 1;
    for (int a = TRD__MESH_AXIS_COUNT - 1; a >= 0; a--) {
        int64_t near = p->size[a] / p->hosts[a], index = device % p->size[a];
        device /= p->size[a];
        host += index / near * hosts;
        local += index % near * locals;
        hosts *= p->hosts[a];
        locals *= near;
    }
    return host * locals + local;
}

trd_status trd__pjrt_devices_list(const PJRT_Api *api, PJRT_Client *client, trd__pjrt_device **list,
                                  size_t *count)
{
    PJRT_Client_Devices_Args devices = TRD__PJRT(PJRT_Client_Devices_Args, .client = client);
    TRD_TRY(trd__pjrt_check(api, api->PJRT_Client_Devices(&devices), "backend pjrt: devices"));
    *count = devices.num_devices;
    *list = trd__calloc(*count + 1, sizeof **list);
    trd_status status = *list ? TRD_OK : TRD_NO_MEMORY;
    for (size_t i = 0; !status && i < *count; i++) status = describe(api, devices.devices[i], &(*list)[i]);
    if (status) {
        trd__free(*list);
        *list = NULL;
        return status;
    }
    qsort(*list, *count, sizeof **list, by_process);
    return TRD_OK;
}

trd_status trd__pjrt_devices_choose(const trd__placement *placement, const trd__pjrt_device *list,
                                    trd__pjrt_device **chosen)
{
    int64_t count = trd__mesh_devices(placement);
    *chosen = trd__calloc((size_t)count, sizeof **chosen);
    if (!*chosen) return TRD_NO_MEMORY;
    for (int64_t d = 0; d < count; d++) {
        (*chosen)[d] = list[placement ? trd__pjrt_mesh_place(placement, d) : 0];
        (*chosen)[d].place = (int)d;
    }
    return TRD_OK;
}
