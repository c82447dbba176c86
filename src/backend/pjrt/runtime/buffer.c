/* Buffers on a device: from the host, to the host. Every buffer is dense and row-major. */
#include "backend/pjrt/runtime/client.h"
#include "base/alloc.h"

static PJRT_Buffer_Type type_of(trd_dtype dtype)
{
    static const PJRT_Buffer_Type types[TRD_DTYPE_COUNT] = {[TRD_F32] = PJRT_Buffer_Type_F32,
                                                            [TRD_F64] = PJRT_Buffer_Type_F64,
                                                            [TRD_BF16] = PJRT_Buffer_Type_BF16,
                                                            [TRD_F16] = PJRT_Buffer_Type_F16,
                                                            [TRD_I32] = PJRT_Buffer_Type_S32,
                                                            [TRD_I64] = PJRT_Buffer_Type_S64,
                                                            [TRD_U8] = PJRT_Buffer_Type_U8,
                                                            [TRD_BOOL] = PJRT_Buffer_Type_PRED,
                                                            [TRD_F8_E4M3] = PJRT_Buffer_Type_F8E4M3FN,
                                                            [TRD_F8_E5M2] = PJRT_Buffer_Type_F8E5M2};
    return types[dtype];
}

static trd_status upload(const trd__pjrt_client *c, const trd__entry *entry, const void *data,
                         PJRT_Buffer **buffer)
{
    PJRT_Client_BufferFromHostBuffer_Args from = TRD__PJRT(
        PJRT_Client_BufferFromHostBuffer_Args, .client = c->client, .data = data,
        .type = type_of(entry->dtype), .dims = entry->shape.dim, .num_dims = (size_t)entry->shape.rank,
        .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall, .device = c->device);
    TRD_TRY(trd__pjrt_check(c->api, c->api->PJRT_Client_BufferFromHostBuffer(&from), "to the device"));
    trd__pjrt_event_free(c->api, from.done_with_host_buffer);
    *buffer = from.buffer;
    return TRD_OK;
}

trd_status trd__pjrt_buffer_create(const trd__pjrt_client *c, const trd__entry *entry, const void *data,
                                   PJRT_Buffer **buffer)
{
    *buffer = NULL;
    if (data) return upload(c, entry, data, buffer);
    size_t bytes = trd__entry_bytes(entry) + 1; /* a map is never empty */
    void *zeros = trd__map(bytes);
    if (!zeros) return TRD_NO_MEMORY;
    trd_status status = upload(c, entry, zeros, buffer);
    trd__unmap(zeros, bytes);
    return status;
}

trd_status trd__pjrt_buffer_read(const trd__pjrt_client *c, PJRT_Buffer *buffer, const trd__entry *entry,
                                 void *data)
{
    int rank = entry->shape.rank;
    int64_t minor_to_major[TRD_MAX_RANK];
    for (int i = 0; i < rank; i++) minor_to_major[i] = rank - 1 - i;
    PJRT_Buffer_MemoryLayout layout =
        TRD__PJRT(PJRT_Buffer_MemoryLayout, .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
                  .tiled = TRD__PJRT(PJRT_Buffer_MemoryLayout_Tiled, .minor_to_major = minor_to_major,
                                     .minor_to_major_size = (size_t)rank));
    PJRT_Buffer_ToHostBuffer_Args to =
        TRD__PJRT(PJRT_Buffer_ToHostBuffer_Args, .src = buffer, .host_layout = &layout, .dst = data,
                  .dst_size = trd__entry_bytes(entry));
    TRD_TRY(trd__pjrt_check(c->api, c->api->PJRT_Buffer_ToHostBuffer(&to), "from the device"));
    return trd__pjrt_await(c->api, to.event, "from the device");
}

void trd__pjrt_buffer_free(const trd__pjrt_client *c, PJRT_Buffer *buffer)
{
    if (buffer)
        (void)trd__pjrt_check(
            c->api, c->api->PJRT_Buffer_Destroy(&TRD__PJRT(PJRT_Buffer_Destroy_Args, .buffer = buffer)),
            "freeing a buffer");
}
