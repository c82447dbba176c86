/* A set on a device is a buffer for each entry. One that was never written has none and reads as zeros, so
 * that accumulators and results cost nothing before the program that defines them. */
#include "backend/entries.h"
#include "backend/pjrt/runtime/pjrt.h"
#include "base/alloc.h"

static trd_status fill(trd__pjrt_set *set, const char *name, const trd__entry *entries, int count)
{
    set->arena = trd__arena_create();
    if (!set->arena) return TRD_NO_MEMORY;
    set->buffers = trd__arena_alloc(set->arena, (size_t)count + 1, sizeof(PJRT_Buffer *));
    set->base.name = trd__arena_strdup(set->arena, name);
    if (!set->buffers || !set->base.name) return TRD_NO_MEMORY;
    TRD_TRY(trd__entries_copy(set->arena, name, entries, count, &set->base.entries));
    set->base.entry_count = count;
    set->key = trd__entries_key(entries, count);
    for (int i = 0; i < count; i++) set->bytes += trd__entry_bytes(&entries[i]);
    return TRD_OK;
}

trd_status trd__pjrt_set_create(const char *name, const trd__entry *entries, int count, trd__pjrt_set **out)
{
    *out = NULL;
    trd__pjrt_set *set = trd__calloc(1, sizeof *set);
    if (!set) return TRD_NO_MEMORY;
    trd_status status = fill(set, name, entries, count);
    if (status) {
        trd__pjrt_set_free(NULL, set);
        return status;
    }
    *out = set;
    return TRD_OK;
}

void trd__pjrt_set_free(const trd__pjrt_client *client, trd__pjrt_set *set)
{
    if (!set) return;
    for (int i = 0; i < set->base.entry_count; i++) trd__pjrt_buffer_free(client, set->buffers[i]);
    trd__arena_free(set->arena);
    trd__free(set);
}
