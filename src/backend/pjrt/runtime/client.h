/* A plugin's client: its devices, what it says of itself, and buffers on its first device. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_CLIENT_H
#define TRD_BACKEND_PJRT_RUNTIME_CLIENT_H

#include "backend/pjrt/runtime/plugin.h"
#include "graph/program.h"

typedef struct trd__pjrt_client {
    const PJRT_Api *api;
    PJRT_Client *client;
    PJRT_Device *device;
    int device_id;
    char platform[64];     /* "cpu", "cuda", "tpu" */
    char version[256];     /* the platform's, for logs and fingerprints */
    uint64_t fingerprint;  /* of all that decides what a compiled program is: plugin, platform, processor */
    bool is_host;          /* the device's memory is this process's */
    uint64_t memory_limit; /* of the device in bytes, 0: it does not tell */
} trd__pjrt_client;

trd_status trd__pjrt_client_open(const char *plugin_path, trd__pjrt_client *client);
void trd__pjrt_client_close(trd__pjrt_client *client); /* safe on a zeroed one */

/* A buffer with a copy of data, row-major in the entry's dtype; NULL: zeros. */
trd_status trd__pjrt_buffer_create(const trd__pjrt_client *client, const trd__entry *entry, const void *data,
                                   PJRT_Buffer **buffer);
/* Copies a buffer out, row-major; waits for what computes it. */
trd_status trd__pjrt_buffer_read(const trd__pjrt_client *client, PJRT_Buffer *buffer, const trd__entry *entry,
                                 void *data);
void trd__pjrt_buffer_free(const trd__pjrt_client *client, PJRT_Buffer *buffer); /* NULL is fine */

#endif
