/* State as everybody but the device sees it: an array that each place along the mesh's data axis has its own
 * share of is read as the sum of the shares, and written as the first of them with zeros behind. Invariant:
 * what leaves and enters here has the shape of engine->layout. */
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "engine/internal.h"

static const trd__entry *own_entry(const trd_engine *engine, trd__role role, int i)
{
    const trd__entry *entry = &trd__mesh_device_layout(engine, role)->entries[i];
    return entry->replica == TRD__REPLICA_OWN ? entry : NULL;
}

/* Shares lie one after the other; count elements from `first` on, summed in float64 and rounded once. */
static void add_shares(const trd__entry *entry, const char *shares, size_t first, size_t count, void *sum)
{
    size_t replicas = (size_t)entry->shape.dim[0], each = (size_t)trd__shape_count(&entry->shape) / replicas;
    for (size_t k = 0; k < count; k++) {
        double total = 0;
        for (size_t r = 0; r < replicas; r++) total += trd__load(entry->dtype, shares, r * each + first + k);
        trd__store(entry->dtype, sum, k, total);
    }
}

static trd_status read_own(trd_engine *engine, trd__role role, int i, const trd__entry *own, size_t first,
                           size_t count, void *data)
{
    size_t bytes = trd__entry_bytes(own);
    char *shares = trd__map(bytes);
    if (!shares) return TRD_NO_MEMORY;
    trd_status status = engine->backend->table->set_read(engine->backend, engine->state[role], i, shares);
    if (status == TRD_OK) add_shares(own, shares, first, count, data);
    trd__unmap(shares, bytes);
    return status;
}

trd_status trd__entry_read(trd_engine *engine, trd__role role, int i, void *data)
{
    const trd__entry *own = own_entry(engine, role, i);
    if (!own) return engine->backend->table->set_read(engine->backend, engine->state[role], i, data);
    const trd_shape *shape = &engine->layout[role].entries[i].shape;
    return read_own(engine, role, i, own, 0, (size_t)trd__shape_count(shape), data);
}

trd_status trd__entry_read_part(trd_engine *engine, trd__role role, int i, size_t offset, size_t bytes,
                                void *data)
{
    const trd__backend_table *table = engine->backend->table;
    const trd__entry *own = own_entry(engine, role, i);
    if (!own) return table->set_read_part(engine->backend, engine->state[role], i, offset, bytes, data);
    size_t size = trd_dtype_bytes(own->dtype);
    return read_own(engine, role, i, own, offset / size, bytes / size, data);
}

trd_status trd__entry_write(trd_engine *engine, trd__role role, int i, const void *data)
{
    const trd__backend_table *table = engine->backend->table;
    const trd__entry *own = own_entry(engine, role, i);
    if (!own) return table->set_write(engine->backend, engine->state[role], i, data);
    size_t bytes = trd__entry_bytes(own);
    char *shares = trd__map(bytes); /* zeros */
    if (!shares) return TRD_NO_MEMORY;
    memcpy(shares, data, trd__entry_bytes(&engine->layout[role].entries[i]));
    trd_status status = table->set_write(engine->backend, engine->state[role], i, shares);
    trd__unmap(shares, bytes);
    return status;
}
