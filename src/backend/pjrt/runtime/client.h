/* A plugin's client: its devices in the order of the mesh, what it says of itself, and buffers. Of a mesh
 * over several processes each has all devices in `mesh` and its own in `devices`: buffers are on those only.
 */
#ifndef TRD_BACKEND_PJRT_RUNTIME_CLIENT_H
#define TRD_BACKEND_PJRT_RUNTIME_CLIENT_H

#include "backend/backend.h"
#include "backend/pjrt/flags.h"
#include "backend/pjrt/runtime/exchange.h"
#include "backend/pjrt/runtime/plugin.h"

typedef struct trd__pjrt_device {
    PJRT_Device *device;
    int id, process;
    int place;  /* in the mesh */
    bool local; /* this process's */
} trd__pjrt_device;

typedef struct trd__pjrt_client {
    const PJRT_Api *api;
    PJRT_Client *client;
    trd__exchange *exchange; /* with the other processes; NULL: there are none */
    trd__pjrt_device *mesh;  /* in mesh order */
    int mesh_count;
    trd__pjrt_device *devices; /* those of the mesh that are this process's, in the same order */
    int device_count;
    char platform[64];     /* "cpu", "cuda", "tpu" */
    char version[256];     /* the platform's, for logs and fingerprints */
    uint64_t fingerprint;  /* of all that decides what a compiled program is: plugin, platform, processor */
    trd__arena *arena;     /* of the flags, NULL: there are none */
    trd__xla_flags flags;  /* of every compile */
    bool is_host;          /* the devices' memory is this process's */
    uint64_t memory_limit; /* of each device in bytes, 0: it does not tell */
} trd__pjrt_client;

/* Of the options: plugin, mesh and processes. placement NULL: the first device. Fewer devices than the mesh
 * has are TRD_NOT_FOUND; a plugin for the host makes as many as it is asked for. */
trd_status trd__pjrt_client_open(const trd__backend_options *options, const trd__placement *placement,
                                 trd__pjrt_client *client);
/* Flags of every compile from now on, as compile_xla_flags gives them; NULL: none. */
trd_status trd__pjrt_client_use_flags(trd__pjrt_client *client, const char *text);
void trd__pjrt_client_close(trd__pjrt_client *client); /* safe on a zeroed one */

/* A buffer with a copy of the data on a device of the mesh. strides: bytes from element to element of each
 * dimension of data; NULL: it is dense and row-major. */
trd_status trd__pjrt_buffer_create(const trd__pjrt_client *client, int device, trd_dtype dtype,
                                   const trd_shape *shape, const void *data, const int64_t *strides,
                                   PJRT_Buffer **buffer);
/* Copies a buffer of that type out, dense and row-major; waits for what computes it. */
trd_status trd__pjrt_buffer_read(const trd__pjrt_client *client, PJRT_Buffer *buffer, trd_dtype dtype,
                                 const trd_shape *shape, void *data);
void trd__pjrt_buffer_free(const trd__pjrt_client *client, PJRT_Buffer *buffer); /* NULL is fine */

#endif
