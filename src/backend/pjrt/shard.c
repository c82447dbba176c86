/* A mesh in the module's text, in Shardy's words: the mesh itself, where each argument and result lies, and
 * in explicit mode where each named value lies. XLA's partitioner makes the rest of it.
 *
 * Invariant: without a mesh nothing is written, so that the text for one device does not change. */
#include <inttypes.h>

#include "backend/pjrt/emit.h"

void trd__emit_mesh(trd__emitter *e)
{
    const trd__placement *p = e->placement;
    if (!p) return;
    trd__emit_text(e, "  sdy.mesh @mesh = <[");
    for (int a = 0, listed = 0; a < TRD__MESH_AXIS_COUNT; a++)
        if (p->size[a] > 1)
            trd__emit_text(e, "%s\"%s\"=%" PRId64, listed++ ? ", " : "",
                           trd__mesh_axis_name((trd__mesh_axis)a), p->size[a]);
    trd__emit_text(e, "]>\n");
}

/* "{"data", "fsdp"}": what dimension d is split over. open: the partitioner may split it further. */
static const char *dimension(trd__emitter *e, const trd__sharding *sharding, int d, bool open)
{
    const char *axes = "";
    for (int i = 0; i < sharding->axis_count[d]; i++)
        axes = trd__hlo_text(e, "%s%s\"%s\"", axes, i ? ", " : "", trd__mesh_axis_name(sharding->axes[d][i]));
    return trd__hlo_text(e, "{%s%s%s}", axes, *axes && open ? ", " : "", open ? "?" : "");
}

const char *trd__hlo_sharding(trd__emitter *e, const trd__sharding *sharding, int rank, unsigned open)
{
    const char *dimensions = "";
    for (int d = 0; d < rank; d++)
        dimensions =
            trd__hlo_text(e, "%s%s%s", dimensions, d ? ", " : "", dimension(e, sharding, d, open >> d & 1u));
    return trd__hlo_text(e, "<@mesh, [%s]>", dimensions);
}

const char *trd__hlo_entry_sharding(trd__emitter *e, const trd__entry *entry)
{
    if (!e->placement) return NULL;
    trd__sharding sharding = trd__shard(e->placement, &entry->shape, entry->axes, entry->over_data);
    return trd__hlo_text(e, "sdy.sharding = #sdy.sharding%s",
                         trd__hlo_sharding(e, &sharding, entry->shape.rank, 0));
}

trd__hlo trd__hlo_constrain(trd__emitter *e, trd__hlo x, const char *const *axes)
{
    unsigned open = 0, all = (1u << x.shape.rank) - 1;
    if (!e->named) return x;
    for (int d = 0; d < x.shape.rank; d++) open |= axes[d] ? 0 : 1u << d;
    if (open == all) return x;
    trd__sharding sharding = trd__shard(e->named, &x.shape, axes, false);
    return trd__emit(e, x.dtype, &x.shape, &x, 1,
                     "\"sdy.sharding_constraint\"(%s) <{sharding = #sdy.sharding%s}>", x.name,
                     trd__hlo_sharding(e, &sharding, x.shape.rank, open));
}
