/* The entries of a set on the devices of a mesh: a buffer for each entry and device, with the part of the
 * entry that the device holds. Parts of the host's copy are sent from and read into where they lie. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_PARTS_H
#define TRD_BACKEND_PJRT_RUNTIME_PARTS_H

#include "backend/pjrt/runtime/client.h"

/* How one entry is split, and the shape of a device's part of it. */
typedef struct trd__pjrt_split {
    trd_dtype dtype;
    trd_shape shape, part;
    trd__sharding sharding;
} trd__pjrt_split;

trd__pjrt_split trd__pjrt_split_of(const trd__placement *placement, const trd__entry *entry);
/* Equal for entries that are split in the same way, in the same order. */
uint64_t trd__pjrt_splits_key(const trd__pjrt_split *splits, int count);

/* Fills buffers, one a device, with the parts of data, row-major; NULL: zeros. On failure all are NULL. */
trd_status trd__pjrt_parts_create(const trd__pjrt_client *client, const trd__placement *placement,
                                  const trd__pjrt_split *split, const void *data, PJRT_Buffer **buffers);
/* Puts the parts together; each is read once, however many devices hold it. */
trd_status trd__pjrt_parts_read(const trd__pjrt_client *client, const trd__placement *placement,
                                const trd__pjrt_split *split, PJRT_Buffer *const *buffers, void *data);
void trd__pjrt_parts_free(const trd__pjrt_client *client, PJRT_Buffer **buffers); /* leaves NULL */

#endif
