/* Entries of sets and slots, for all backends. */
#include "backend/entries.h"

#include "base/checksum.h"

trd_status trd__entries_copy(trd__arena *arena, const char *name, const trd__entry *entries, int count,
                             const trd__entry **out)
{
    trd__entry *copy = trd__arena_alloc(arena, (size_t)count + 1, sizeof *copy);
    if (!copy) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        copy[i] = entries[i];
        copy[i].name = trd__arena_strdup(arena, entries[i].name);
        if (!copy[i].name) return TRD_NO_MEMORY;
        for (int axis = 0; axis < TRD_MAX_RANK; axis++)
            if (entries[i].axes[axis] &&
                !(copy[i].axes[axis] = trd__arena_strdup(arena, entries[i].axes[axis])))
                return TRD_NO_MEMORY;
        if (trd__shape_count(&entries[i].shape) < 0)
            return trd__fail(TRD_INVALID_ARGUMENT, "set \"%s\": the size of entry \"%s\" overflows", name,
                             entries[i].name);
    }
    *out = copy;
    return TRD_OK;
}

uint64_t trd__entries_key(const trd__entry *entries, int count)
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

trd_status trd__entries_refuse(const char *program, const trd__slot *slot, const trd__set *set)
{
    int i = 0;
    while (i < slot->entry_count && i < set->entry_count && set->entries[i].dtype == slot->entries[i].dtype &&
           trd__shape_equal(&set->entries[i].shape, &slot->entries[i].shape))
        i++;
    if (i == slot->entry_count || i == set->entry_count)
        return trd__fail(TRD_SHAPE, "execute \"%s\": slot \"%s\" expected %d entries, set \"%s\" has %d",
                         program, slot->name, slot->entry_count, set->name, set->entry_count);
    char expected[TRD__SHAPE_TEXT], found[TRD__SHAPE_TEXT];
    return trd__fail(TRD_SHAPE, "execute \"%s\": slot \"%s\", entry \"%s\": expected %s %s, found %s %s",
                     program, slot->name, slot->entries[i].name,
                     trd__shape_text(&slot->entries[i].shape, expected),
                     trd_dtype_name(slot->entries[i].dtype), trd__shape_text(&set->entries[i].shape, found),
                     trd_dtype_name(set->entries[i].dtype));
}
