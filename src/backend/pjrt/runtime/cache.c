/* A cache file: a header with both keys, the size and the checksum of what follows, then what the plugin
 * gave. Bytes reach the plugin only when the checksum holds: it may end the process over others. */
#include "backend/pjrt/runtime/cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"

#define MAGIC 0x31636578656a7270ull /* "prjexec1", little-endian */

typedef struct header {
    uint64_t magic;
    uint64_t keys[2];         /* of the module and of who compiles it, from different seeds */
    uint64_t bytes, checksum; /* of what follows */
} header;

static header header_of(const trd__pjrt_client *c, const trd__pjrt_module *module)
{
    header h = {.magic = MAGIC};
    for (uint64_t i = 0; i < 2; i++)
        h.keys[i] = trd__checksum_more(c->fingerprint + i, module->text, module->bytes);
    return h;
}

static char *path_of(const char *folder, const header *h)
{
    char name[64];
    snprintf(name, sizeof name, "program-%016" PRIx64 ".bin", h->keys[0]);
    return trd__path_join(folder, name);
}

static bool fits(const trd__file_map *map, const header *expected)
{
    header h;
    if (map->bytes < sizeof h) return false;
    memcpy(&h, map->data, sizeof h);
    return h.magic == expected->magic && memcmp(h.keys, expected->keys, sizeof h.keys) == 0 &&
           h.bytes == map->bytes - sizeof h && h.checksum == trd__checksum(map->data + sizeof h, h.bytes);
}

static trd_status load(const trd__pjrt_client *c, const trd__file_map *map, PJRT_LoadedExecutable **loaded)
{
    PJRT_Executable_DeserializeAndLoad_Args args =
        TRD__PJRT(PJRT_Executable_DeserializeAndLoad_Args, .client = c->client,
                  .serialized_executable = (const char *)map->data + sizeof(header),
                  .serialized_executable_size = map->bytes - sizeof(header));
    TRD_TRY(trd__pjrt_check(c->api, c->api->PJRT_Executable_DeserializeAndLoad(&args),
                            "loading a compiled program"));
    *loaded = args.loaded_executable;
    return TRD_OK;
}

trd_status trd__pjrt_cache_load(const trd__pjrt_client *c, const char *folder, const trd__pjrt_module *module,
                                PJRT_LoadedExecutable **loaded)
{
    header expected = header_of(c, module);
    trd__file_map map = {0};
    trd_status status = TRD_OK;
    *loaded = NULL;
    char *path = path_of(folder, &expected);
    if (!path) return TRD_NO_MEMORY;
    if (trd__file_exists(path)) status = trd__file_map_open(path, &map);
    if (!status && map.data && fits(&map, &expected)) status = load(c, &map, loaded);
    trd__file_map_close(&map);
    trd__free(path);
    return status;
}

static trd_status write_file(const char *folder, const header *h, const char *bytes)
{
    trd__file_writer *writer;
    char *path = path_of(folder, h);
    if (!path) return TRD_NO_MEMORY;
    trd_status status = trd__make_directories(folder);
    if (!status) status = trd__file_writer_open(path, &writer);
    trd__free(path);
    if (status) return status;
    (void)trd__file_write(writer, h, sizeof *h); /* errors stick: commit reports them */
    (void)trd__file_write(writer, bytes, h->bytes);
    return trd__file_writer_commit(writer);
}

trd_status trd__pjrt_cache_save(const trd__pjrt_client *c, const char *folder, const trd__pjrt_module *module,
                                PJRT_LoadedExecutable *loaded)
{
    PJRT_Executable *executable;
    TRD_TRY(trd__pjrt_executable_of(c->api, loaded, &executable));
    PJRT_Executable_Serialize_Args args = TRD__PJRT(PJRT_Executable_Serialize_Args, .executable = executable);
    trd_status status =
        trd__pjrt_check(c->api, c->api->PJRT_Executable_Serialize(&args), "serializing a compiled program");
    if (!status) {
        header h = header_of(c, module);
        h.bytes = args.serialized_bytes_size;
        h.checksum = trd__checksum(args.serialized_bytes, h.bytes);
        status = write_file(folder, &h, args.serialized_bytes);
        args.serialized_executable_deleter(args.serialized_executable);
    }
    trd__pjrt_executable_release(c->api, executable);
    return status;
}
