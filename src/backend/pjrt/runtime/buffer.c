/* Buffers on a device: from the host, to the host. Every buffer is dense and row-major. */
#include "backend/pjrt/runtime/client.h"
#include "base/shape.h"

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

trd_status trd__pjrt_buffer_create(const trd__pjrt_client *c, int device, trd_dtype dtype,
                                   const trd_shape *shape, const void *data, const int64_t *strides,
                                   PJRT_Buffer **buffer)
{
    *buffer = NULL;
    PJRT_Client_BufferFromHostBuffer_Args from =
        TRD__PJRT(PJRT_Client_BufferFromHostBuffer_Args, .client = c->client, .data = data,
                  .type = type_of(dtype), .dims = shape->dim, .num_dims = (size_t)shape->rank,
                  .byte_strides = strides, .num_byte_strides = strides ? (size_t)shape->rank : 0,
                  .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
                  .device = c->devices[device].device);
    TRD_TRY(trd__pjrt_check(c->api, c->api->PJRT_Client_BufferFromHostBuffer(&from), "to the device"));
    trd__pjrt_event_free(c->api, from.done_with_host_buffer);
    *buffer = from.buffer;
    return TRD_OK;
}

trd_status trd__pjrt_buffer_read(const trd__pjrt_client *c, PJRT_Buffer *buffer, trd_dtype dtype,
                                 const trd_shape *shape, void *data)
{
    int rank = shape->rank;
    int64_t minor_to_major[TRD_MAX_RANK];
    for (int i = 0; i < rank; i++) minor_to_major[i] = rank - 1 - i;
    PJRT_Buffer_MemoryLayout layout =
        TRD__PJRT(PJRT_Buffer_MemoryLayout, .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
                  .tiled = TRD__PJRT(PJRT_Buffer_MemoryLayout_Tiled, .minor_to_major = minor_to_major,
                                     .minor_to_major_size = (size_t)rank));
    PJRT_Buffer_ToHostBuffer_Args to =
        TRD__PJRT(PJRT_Buffer_ToHostBuffer_Args, .src = buffer, .host_layout = &layout, .dst = data,
                  .dst_size = trd__tensor_bytes(shape, dtype));
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
