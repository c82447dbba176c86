/* A client's devices and which of them make up a mesh. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_DEVICES_H
#define TRD_BACKEND_PJRT_RUNTIME_DEVICES_H

#include "backend/pjrt/runtime/client.h"

/* All devices, by process and id; the caller frees the list. */
trd_status trd__pjrt_devices_list(const PJRT_Api *api, PJRT_Client *client, trd__pjrt_device **list,
                                  size_t *count);
/* Those of the mesh (NULL: the first of the list), in mesh order, from a list of at least as many; the caller
 * frees them. */
trd_status trd__pjrt_devices_choose(const trd__placement *placement, const trd__pjrt_device *list,
                                    trd__pjrt_device **chosen);
/* Where the mesh's device number `device` is in a list by host. */
int64_t trd__pjrt_mesh_place(const trd__placement *placement, int64_t device);

#endif
