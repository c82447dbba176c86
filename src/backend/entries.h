/* What every backend does with the entries of sets and slots: keeping them, and matching a set to a slot. */
#ifndef TRD_BACKEND_ENTRIES_H
#define TRD_BACKEND_ENTRIES_H

#include "backend/backend.h"

/* A copy in arena, names and axes included. An entry whose size overflows is TRD_INVALID_ARGUMENT; name is
 * the set's or slot's, for messages. */
trd_status trd__entries_copy(trd__arena *arena, const char *name, const trd__entry *entries, int count,
                             const trd__entry **copy);
/* Equal for entries with the same dtypes and shapes in the same order. */
uint64_t trd__entries_key(const trd__entry *entries, int count);
/* TRD_SHAPE: says where a set's entries first differ from those of the slot it is bound to. */
trd_status trd__entries_refuse(const char *program, const trd__slot *slot, const trd__set *set);

#endif
