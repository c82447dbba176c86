/* A set is a buffer for each entry on each device. One that was never written has none and reads as zeros, so
 * that accumulators and results cost nothing before the program that defines them. */
#include "backend/entries.h"
#include "backend/pjrt/runtime/pjrt.h"
#include "base/alloc.h"

trd_status trd__pjrt_splits_create(trd__arena *arena, const trd__placement *placement,
                                   const trd__entry *entries, int count, const trd__pjrt_split **out,
                                   trd__pjrt_key *key)
{
    trd__pjrt_split *splits = trd__arena_alloc(arena, (size_t)count + 1, sizeof *splits);
    if (!splits) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++) splits[i] = trd__pjrt_split_of(placement, &entries[i]);
    *out = splits;
    *key = (trd__pjrt_key){trd__entries_key(entries, count), trd__pjrt_splits_key(splits, count)};
    return TRD_OK;
}

static trd_status fill(const trd__pjrt_backend *backend, trd__pjrt_set *set, const char *name,
                       const trd__entry *entries, int count)
{
    set->arena = trd__arena_create();
    if (!set->arena) return TRD_NO_MEMORY;
    set->buffers = trd__arena_alloc(set->arena, (size_t)count * (size_t)backend->client.device_count + 1,
                                    sizeof(PJRT_Buffer *));
    set->base.name = trd__arena_strdup(set->arena, name);
    if (!set->buffers || !set->base.name) return TRD_NO_MEMORY;
    TRD_TRY(trd__entries_copy(set->arena, name, entries, count, &set->base.entries));
    TRD_TRY(trd__pjrt_splits_create(set->arena, backend->placement, entries, count, &set->splits, &set->key));
    set->base.entry_count = count;
    for (int i = 0; i < count; i++) set->bytes += trd__tensor_bytes(&set->splits[i].part, entries[i].dtype);
    return TRD_OK;
}

trd_status trd__pjrt_set_create(const trd__pjrt_backend *backend, const char *name, const trd__entry *entries,
                                int count, trd__pjrt_set **out)
{
    *out = NULL;
    trd__pjrt_set *set = trd__calloc(1, sizeof *set);
    if (!set) return TRD_NO_MEMORY;
    trd_status status = fill(backend, set, name, entries, count);
    if (status) {
        trd__pjrt_set_free(&backend->client, set);
        return status;
    }
    *out = set;
    return TRD_OK;
}

void trd__pjrt_set_free(const trd__pjrt_client *client, trd__pjrt_set *set)
{
    if (!set) return;
    for (int i = 0; i < set->base.entry_count; i++)
        trd__pjrt_parts_free(client, trd__pjrt_set_buffers(client, set, i));
    trd__arena_free(set->arena);
    trd__free(set);
}
