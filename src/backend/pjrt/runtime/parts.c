/* See parts.h. A part is a box in the whole: rows of `run` elements that follow one another in both. */
#include "backend/pjrt/runtime/parts.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/shape.h"

trd__pjrt_split trd__pjrt_split_of(const trd__placement *placement, const trd__entry *entry)
{
    trd__pjrt_split split = {.dtype = entry->dtype, .shape = entry->shape};
    split.sharding = trd__shard(placement, &entry->shape, entry->axes, entry->over_data);
    split.part = trd__shard_shape(placement, &split.sharding, &entry->shape);
    return split;
}

uint64_t trd__pjrt_splits_key(const trd__pjrt_split *splits, int count)
{
    uint64_t key = (uint64_t)count;
    for (int i = 0; i < count; i++)
        key = trd__checksum_more(key, &splits[i].sharding, sizeof splits[i].sharding);
    return key;
}

/* Bytes from element to element of each dimension of the whole. */
static void find_strides(const trd__pjrt_split *s, int64_t *strides)
{
    int64_t stride = (int64_t)trd_dtype_bytes(s->dtype);
    for (int d = s->shape.rank - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= s->shape.dim[d];
    }
}

/* Where the part of the client's device number `device` begins, in bytes. */
static size_t find_offset(const trd__pjrt_client *c, const trd__placement *placement,
                          const trd__pjrt_split *s, const int64_t *strides, int device)
{
    int64_t origin[TRD_MAX_RANK], offset = 0;
    if (trd__sharding_is_whole(&s->sharding)) return 0;
    trd__shard_origin(placement, &s->sharding, &s->part, c->devices[device].place, origin);
    for (int d = 0; d < s->shape.rank; d++) offset += origin[d] * strides[d];
    return (size_t)offset;
}

/* The dimensions before it count the runs of a part; the runs span it and all behind it. */
static int run_dimension(const trd__pjrt_split *s)
{
    int split = 0;
    for (int d = 0; d < s->shape.rank; d++)
        if (s->sharding.axis_count[d]) split = d;
    return split;
}

static int64_t count_of(const trd_shape *shape, int begin, int end)
{
    int64_t count = 1;
    for (int d = begin; d < end; d++) count *= shape->dim[d];
    return count;
}

static trd_status create_all(const trd__pjrt_client *c, const trd__placement *placement,
                             const trd__pjrt_split *s, const unsigned char *data, PJRT_Buffer **buffers)
{
    int64_t strides[TRD_MAX_RANK];
    bool whole = trd__sharding_is_whole(&s->sharding);
    find_strides(s, strides);
    for (int d = 0; d < c->device_count; d++)
        TRD_TRY(trd__pjrt_buffer_create(c, d, s->dtype, &s->part,
                                        data + find_offset(c, placement, s, strides, d),
                                        whole ? NULL : strides, &buffers[d]));
    return TRD_OK;
}

static trd_status create_zeros(const trd__pjrt_client *c, const trd__pjrt_split *s, PJRT_Buffer **buffers)
{
    size_t bytes = trd__tensor_bytes(&s->part, s->dtype) + 1; /* a map is never empty */
    void *zeros = trd__map(bytes);
    trd_status status = zeros ? TRD_OK : TRD_NO_MEMORY;
    for (int d = 0; !status && d < c->device_count; d++)
        status = trd__pjrt_buffer_create(c, d, s->dtype, &s->part, zeros, NULL, &buffers[d]);
    trd__unmap(zeros, bytes);
    return status;
}

trd_status trd__pjrt_parts_create(const trd__pjrt_client *c, const trd__placement *placement,
                                  const trd__pjrt_split *s, const void *data, PJRT_Buffer **buffers)
{
    for (int d = 0; d < c->device_count; d++) buffers[d] = NULL;
    trd_status status = data ? create_all(c, placement, s, data, buffers) : create_zeros(c, s, buffers);
    if (status) trd__pjrt_parts_free(c, buffers);
    return status;
}

void trd__pjrt_parts_free(const trd__pjrt_client *c, PJRT_Buffer **buffers)
{
    for (int d = 0; d < c->device_count; d++) {
        trd__pjrt_buffer_free(c, buffers[d]);
        buffers[d] = NULL;
    }
}

/* Lays a part's runs into the whole, whose first element of the part is at data. */
static void lay(const trd__pjrt_split *s, const int64_t *strides, const unsigned char *part,
                unsigned char *data)
{
    int outer = run_dimension(s);
    size_t bytes = (size_t)count_of(&s->part, outer, s->part.rank) * trd_dtype_bytes(s->dtype);
    int64_t runs = count_of(&s->part, 0, outer);
    for (int64_t r = 0; r < runs; r++, part += bytes) {
        int64_t rest = r, offset = 0;
        for (int d = outer - 1; d >= 0; d--) {
            offset += rest % s->part.dim[d] * strides[d];
            rest /= s->part.dim[d];
        }
        memcpy(data + offset, part, bytes);
    }
}

/* One part, straight into its place where it is one run, else through temporary. */
static trd_status read_part(const trd__pjrt_client *c, const trd__pjrt_split *s, const int64_t *strides,
                            PJRT_Buffer *buffer, void *temporary, unsigned char *data)
{
    if (!temporary) return trd__pjrt_buffer_read(c, buffer, s->dtype, &s->part, data);
    TRD_TRY(trd__pjrt_buffer_read(c, buffer, s->dtype, &s->part, temporary));
    lay(s, strides, temporary, data);
    return TRD_OK;
}

trd_status trd__pjrt_parts_read(const trd__pjrt_client *c, const trd__placement *placement,
                                const trd__pjrt_split *s, PJRT_Buffer *const *buffers, void *data)
{
    int64_t strides[TRD_MAX_RANK];
    void *temporary = NULL;
    trd_status status = TRD_OK;
    find_strides(s, strides);
    if (count_of(&s->part, 0, run_dimension(s)) > 1) {
        temporary = trd__alloc(1, trd__tensor_bytes(&s->part, s->dtype));
        if (!temporary) return TRD_NO_MEMORY;
    }
    int64_t missing = count_of(&s->shape, 0, s->shape.rank);
    for (int d = 0; !status && d < c->device_count; d++) {
        size_t offset = find_offset(c, placement, s, strides, d);
        bool seen = false;
        for (int e = 0; e < d && !seen; e++) seen = find_offset(c, placement, s, strides, e) == offset;
        if (seen) continue;
        status = read_part(c, s, strides, buffers[d], temporary, (unsigned char *)data + offset);
        missing -= count_of(&s->part, 0, s->part.rank);
    }
    trd__free(temporary);
    if (status || missing == 0) return status;
    return trd__fail(TRD_UNSUPPORTED,
                     "expected every part on a device of this process, found %" PRId64
                     " elements on other hosts; only the data axis may lie between hosts",
                     missing);
}
