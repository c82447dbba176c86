/* TensorBoard event files. A record is: u64 length, u32 masked CRC-32C of the length, the message, u32 masked
 * CRC of the message, all little-endian (TensorFlow's record_writer.h). Records are collected in memory and
 * written in one call, so that a reader meets whole records. */
#include "formats/tfevents.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <tfevents.pb-c.h> /* generated from tfevents.proto */
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

enum { BUFFER_BYTES = 1 << 16, FRAME_BYTES = 16, CRC_TABLE = 256, TRIES = 1000 };

struct trd__tfevents {
    char *path;
    int fd;
    size_t used;
    unsigned char *buffer;
    uint32_t crc[CRC_TABLE];
};

static void make_crc_table(uint32_t *table)
{
    for (uint32_t i = 0; i < CRC_TABLE; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0);
        table[i] = value;
    }
}

static uint32_t masked_crc(const uint32_t *table, const void *data, size_t bytes)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) crc = table[(crc ^ ((const unsigned char *)data)[i]) & 255] ^ crc >> 8;
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

trd_status trd__tfevents_flush(trd__tfevents *e)
{
    size_t done = 0;
    while (done < e->used) {
        ssize_t written = write(e->fd, e->buffer + done, e->used - done);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            int error = errno;
            memmove(e->buffer, e->buffer + done, e->used - done);
            e->used -= done;
            return trd__fail(TRD_IO, "writing %s: %s", e->path, strerror(error));
        }
        done += (size_t)written;
    }
    e->used = 0;
    return TRD_OK;
}

static trd_status append(trd__tfevents *e, const Trd__Event *event)
{
    size_t bytes = trd__event__get_packed_size(event);
    if (bytes > BUFFER_BYTES - FRAME_BYTES)
        return trd__fail(TRD_INVALID_ARGUMENT, "writing %s: an event of %zu bytes is too long", e->path,
                         bytes);
    if (bytes + FRAME_BYTES > BUFFER_BYTES - e->used) TRD_TRY(trd__tfevents_flush(e));
    unsigned char *record = e->buffer + e->used;
    uint64_t length = htole64(bytes);
    memcpy(record, &length, 8);
    uint32_t crc = htole32(masked_crc(e->crc, record, 8));
    memcpy(record + 8, &crc, 4);
    trd__event__pack(event, record + 12);
    crc = htole32(masked_crc(e->crc, record + 12, bytes));
    memcpy(record + 12 + bytes, &crc, 4);
    e->used += bytes + FRAME_BYTES;
    return TRD_OK;
}

static Trd__Event event_now(void)
{
    Trd__Event event = TRD__EVENT__INIT;
    event.has_wall_time = 1;
    event.wall_time = trd__wall_seconds();
    return event;
}

static trd_status create_file(trd__tfevents *e, const char *folder)
{
    char host[64] = "host";
    gethostname(host, sizeof host - 1);
    for (int n = 0; n < TRIES; n++) {
        trd__free(e->path);
        e->path = trd__format("%s/events.out.tfevents.%010lld.%s.%ld.%d", folder,
                              (long long)trd__wall_seconds(), host, (long)getpid(), n);
        if (!e->path) return TRD_NO_MEMORY;
        e->fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (e->fd >= 0) return TRD_OK;
        if (errno != EEXIST) break;
    }
    return trd__fail(errno == ENOENT ? TRD_NOT_FOUND : TRD_IO, "creating %s: %s", e->path, strerror(errno));
}

static trd_status begin(trd__tfevents *e, const char *folder)
{
    static char version[] = "brain.Event:2"; /* protobuf-c wants it mutable and leaves it alone */
    e->buffer = trd__alloc(BUFFER_BYTES, 1);
    if (!e->buffer) return TRD_NO_MEMORY;
    make_crc_table(e->crc);
    TRD_TRY(create_file(e, folder));
    Trd__Event event = event_now();
    event.file_version = version;
    TRD_TRY(append(e, &event));
    return trd__tfevents_flush(e);
}

trd_status trd__tfevents_open(const char *folder, trd__tfevents **out)
{
    *out = NULL;
    trd__tfevents *e = trd__calloc(1, sizeof *e);
    if (!e) return TRD_NO_MEMORY;
    e->fd = -1;
    trd_status status = begin(e, folder);
    if (status) {
        e->used = 0;
        trd__tfevents_close(e);
        return status;
    }
    *out = e;
    return TRD_OK;
}

trd_status trd__tfevents_scalar(trd__tfevents *e, const char *tag, int64_t step, double value)
{
    Trd__Event event = event_now();
    Trd__Summary summary = TRD__SUMMARY__INIT;
    Trd__Scalar scalar = TRD__SCALAR__INIT, *scalars = &scalar;
    scalar.tag = (char *)(uintptr_t)tag; /* read only */
    scalar.has_simple_value = 1;
    scalar.simple_value = (float)value;
    summary.n_value = 1;
    summary.value = &scalars;
    event.has_step = 1;
    event.step = step;
    event.summary = &summary;
    return append(e, &event);
}

trd_status trd__tfevents_close(trd__tfevents *e)
{
    if (!e) return TRD_OK;
    trd_status status = e->fd >= 0 ? trd__tfevents_flush(e) : TRD_OK;
    if (e->fd >= 0 && close(e->fd) != 0 && !status)
        status = trd__fail(TRD_IO, "closing %s: %s", e->path, strerror(errno));
    trd__free(e->path);
    trd__free(e->buffer);
    trd__free(e);
    return status;
}
