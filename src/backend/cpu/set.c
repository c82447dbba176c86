/* A set on the CPU is one mapped buffer with its entries packed at 64-byte boundaries. */
#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/checksum.h"

size_t trd__cpu_layout(const trd__entry *entries, int count, size_t *offsets)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++) {
        if (offsets) offsets[i] = bytes;
        size_t size = trd__entry_bytes(&entries[i]);
        bytes += (size + TRD__ALIGNMENT - 1) & ~(size_t)(TRD__ALIGNMENT - 1);
    }
    return bytes;
}

uint64_t trd__cpu_layout_key(const trd__entry *entries, int count)
{
    uint64_t key = (uint64_t)count;
    for (int i = 0; i < count; i++) {
        const trd_shape *shape = &entries[i].shape;
        int head[2] = {(int)entries[i].dtype, shape->rank};
        key = trd__checksum_more(key, head, sizeof head);
        key = trd__checksum_more(key, shape->dim, (size_t)shape->rank * sizeof *shape->dim);
    }
    return key;
}

static trd_status copy_entries(trd__cpu_set *set, const char *name, const trd__entry *entries, int count)
{
    trd__entry *copy = trd__arena_alloc(set->arena, (size_t)count, sizeof *copy);
    set->offsets = trd__arena_alloc(set->arena, (size_t)count, sizeof *set->offsets);
    set->base.name = trd__arena_strdup(set->arena, name);
    if (!copy || !set->offsets || !set->base.name) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        copy[i] = entries[i];
        copy[i].name = trd__arena_strdup(set->arena, entries[i].name);
        if (!copy[i].name) return TRD_NO_MEMORY;
        for (int axis = 0; axis < TRD_MAX_RANK; axis++)
            if (entries[i].axes[axis] &&
                !(copy[i].axes[axis] = trd__arena_strdup(set->arena, entries[i].axes[axis])))
                return TRD_NO_MEMORY;
        if (trd__shape_count(&entries[i].shape) < 0)
            return trd__fail(TRD_INVALID_ARGUMENT, "set \"%s\": the size of entry \"%s\" overflows", name,
                             entries[i].name);
    }
    set->base.entries = copy;
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
        set->layout = trd__cpu_layout_key(entries, count);
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
