/* A set on the CPU is one mapped buffer with its entries packed at 64-byte boundaries. */
#include "backend/cpu/cpu.h"
#include "backend/entries.h"
#include "base/alloc.h"

size_t trd__cpu_layout(const trd__entry *entries, int count, size_t *offsets)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++) {
        if (offsets) offsets[i] = bytes;
        size_t size = trd__entry_bytes(&entries[i]);
        bytes += trd__align_up(size);
    }
    return bytes;
}

static trd_status copy_entries(trd__cpu_set *set, const char *name, const trd__entry *entries, int count)
{
    set->offsets = trd__arena_alloc(set->arena, (size_t)count, sizeof *set->offsets);
    set->base.name = trd__arena_strdup(set->arena, name);
    if (!set->offsets || !set->base.name) return TRD_NO_MEMORY;
    TRD_TRY(trd__entries_copy(set->arena, name, entries, count, &set->base.entries));
    set->base.entry_count = count;
    return TRD_OK;
}

trd_status trd__cpu_set_create(const char *name, const trd__entry *entries, int count, trd__cpu_set **out)
{
    *out = NULL;
    trd__cpu_set *set = trd__calloc(1, sizeof *set);
    if (!set) return TRD_NO_MEMORY;
    set->arena = trd__arena_create();
    trd_status status = set->arena ? copy_entries(set, name, entries, count) : TRD_NO_MEMORY;
    if (!status) {
        set->bytes = trd__cpu_layout(entries, count, set->offsets);
        set->layout = trd__entries_key(entries, count);
        set->memory = trd__map(set->bytes);
        if (!set->memory) status = trd__fail_in(TRD_NO_MEMORY, "set \"%s\"", name);
    }
    if (status) {
        trd__cpu_set_free(set);
        return status;
    }
    *out = set;
    return TRD_OK;
}

void trd__cpu_set_free(trd__cpu_set *set)
{
    if (!set) return;
    trd__unmap(set->memory, set->bytes);
    trd__arena_free(set->arena);
    trd__free(set);
}
