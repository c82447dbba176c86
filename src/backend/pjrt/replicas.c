/* Programs of several replicas (graph/program.h): @main has the entries' types, and all nodes are in one
 * sdy.manual_computation over the mesh's data axis, where they have the replicas' types. The other axes stay
 * the partitioner's. replica_sum is an all-reduce along the data axis.
 *
 * Invariant: a program has replicas here only where the mesh's data axis has as many places. */
#include <inttypes.h>

#include "backend/pjrt/emit.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "ops/rules.h"

trd_status trd__emit_replicas_check(const trd__program *program, const trd__placement *placement)
{
    int64_t places = placement ? placement->size[TRD__MESH_DATA] : 1;
    if (program->replicas <= 1 || program->replicas == places) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT,
                     "program %s: expected as many replicas as the mesh's data axis has places (%" PRId64
                     "), found %" PRId64,
                     program->name, places, program->replicas);
}

/* "<@mesh, [{"data", ?}, {?}]>": the first dimension is the replicas', everything else may be split freely.
 */
static const char *sharding_of(trd__emitter *e, const trd__entry *entry)
{
    trd__sharding sharding = {.axes = {{TRD__MESH_DATA}}};
    sharding.axis_count[0] = entry->replica != TRD__REPLICA_SHARED;
    return trd__hlo_sharding(e, &sharding, entry->shape.rank, (1u << entry->shape.rank) - 1);
}

/* The part of an entry that one replica is given: with the first dimension of an OWN entry, of length 1. */
static trd_shape given_shape(const trd__program *program, const trd__entry *entry)
{
    trd_shape shape = trd__program_shape(program, entry);
    if (entry->replica != TRD__REPLICA_OWN) return shape;
    shape = trd__shape_of(entry->shape.rank, entry->shape.dim);
    shape.dim[0] = 1;
    return shape;
}

static void emit_shardings(trd__emitter *e, const trd__program *program, const trd__pjrt_binding *bindings,
                           int count)
{
    for (int i = 0; i < count; i++)
        trd__emit_text(e, "%s\n        %s", i ? "," : "",
                       sharding_of(e, &program->slots[bindings[i].slot].entries[bindings[i].entry]));
}

/* Inside, the leaf is called as outside with ".own" behind. */
static void emit_block_arguments(trd__emitter *e, const trd__program *program, const trd__pjrt_module *module)
{
    for (int i = 0; i < module->argument_count; i++) {
        const trd__pjrt_binding *from = &module->arguments[i];
        const trd__slot *slot = &program->slots[from->slot];
        trd__hlo *value = &e->values[slot->leaves[from->entry].node->id][0];
        value->shape = given_shape(program, &slot->entries[from->entry]);
        value->type = trd__hlo_type(e, value->dtype, &value->shape);
        value->name = trd__hlo_text(e, "%s.own", value->name);
        trd__emit_text(e, "%s\n      %s: %s", i ? "," : "", value->name, value->type);
    }
}

/* OWN leaves lose the first dimension. */
static void reshape_leaves(trd__emitter *e, const trd__program *program, const trd__pjrt_module *module)
{
    for (int i = 0; i < module->argument_count; i++) {
        const trd__pjrt_binding *from = &module->arguments[i];
        const trd_node *leaf = program->slots[from->slot].leaves[from->entry].node;
        trd__hlo *value = &e->values[leaf->id][0];
        trd__emit_begin(e, leaf);
        *value = trd__hlo_reshape(e, *value, &leaf->results[0].shape);
    }
}

void trd__emit_replicas_begin(trd__emitter *e, const trd__program *program, const trd__pjrt_module *module)
{
    if (program->replicas <= 1) return;
    trd__emit_text(e, "    %%replicas:%d = sdy.manual_computation(", module->result_count);
    for (int i = 0; i < module->argument_count; i++) {
        const trd__pjrt_binding *from = &module->arguments[i];
        trd__emit_text(e, "%s%s", i ? ", " : "",
                       e->values[program->slots[from->slot].leaves[from->entry].node->id][0].name);
    }
    trd__emit_text(e, ")\n      in_shardings=[");
    emit_shardings(e, program, module->arguments, module->argument_count);
    trd__emit_text(e, "]\n      out_shardings=[");
    emit_shardings(e, program, module->results, module->result_count);
    trd__emit_text(e, "]\n      manual_axes={\"data\"} (");
    emit_block_arguments(e, program, module);
    trd__emit_text(e, ") {\n");
    e->indent += 2;
    reshape_leaves(e, program, module);
}

static void emit_entry_types(trd__emitter *e, const trd__program *program, const trd__pjrt_binding *bindings,
                             int count)
{
    for (int i = 0; i < count; i++) {
        const trd__entry *entry = &program->slots[bindings[i].slot].entries[bindings[i].entry];
        trd__emit_text(e, "%s%s", i ? ", " : "", trd__hlo_type(e, entry->dtype, &entry->shape));
    }
}

void trd__emit_replicas_end(trd__emitter *e, const trd__program *program, const trd__pjrt_module *module,
                            trd__hlo *results)
{
    if (program->replicas <= 1) return;
    for (int i = 0; i < module->result_count; i++) {
        const trd__output *o = &program->outputs[i];
        trd_shape shape = given_shape(program, &program->slots[o->slot].entries[o->entry]);
        trd__emit_begin(e, o->value.node);
        e->name = trd__hlo_text(e, "%s.own_%d", e->name, i);
        results[i] = trd__hlo_reshape(e, results[i], &shape);
    }
    e->indent -= 2;
    trd__emit_text(e, "      sdy.return %s :", trd__hlo_names(e, results, module->result_count));
    for (int i = 0; i < module->result_count; i++) trd__emit_text(e, "%s %s", i ? "," : "", results[i].type);
    trd__emit_text(e, " loc(\"results\")\n    } : (");
    emit_entry_types(e, program, module->arguments, module->argument_count);
    trd__emit_text(e, ") -> (");
    emit_entry_types(e, program, module->results, module->result_count);
    trd__emit_text(e, ") loc(\"replicas\")\n");
    for (int i = 0; i < module->result_count; i++) {
        const trd__output *o = &program->outputs[i];
        const trd__entry *entry = &program->slots[o->slot].entries[o->entry];
        results[i].name = trd__hlo_text(e, "%%replicas#%d", i);
        results[i].type = trd__hlo_type(e, entry->dtype, &entry->shape);
    }
}

/* "[[0, 2], [1, 3]]": the devices along the data axis, for each place along all others. */
static const char *data_groups(trd__emitter *e)
{
    int64_t places = e->replicas, others = trd__mesh_devices(e->placement) / places;
    const char *groups = "";
    for (int64_t o = 0; o < others; o++) {
        groups = trd__hlo_text(e, "%s%s[", groups, o ? ", " : "");
        for (int64_t p = 0; p < places; p++)
            groups = trd__hlo_text(e, "%s%s%" PRId64, groups, p ? ", " : "", p * others + o);
        groups = trd__hlo_text(e, "%s]", groups);
    }
    return trd__hlo_text(e, "dense<[%s]> : tensor<%" PRId64 "x%" PRId64 "xi64>", groups, others, places);
}

/* Narrow floats are summed in float32. */
void trd__pjrt_replica_sum(trd__emitter *e, const trd_node *n, const trd__pjrt_op *row, trd__hlo *results)
{
    (void)row;
    trd__hlo x = trd__hlo_operand(e, n, 0);
    results[0] = x;
    if (e->replicas <= 1) return;
    const trd_shape scalar = trd__shape_scalar();
    trd_dtype dtype = trd__dtype_is_float(x.dtype) ? trd__compute_dtype(x.dtype) : x.dtype;
    const char *element = trd__hlo_type(e, dtype, &scalar);
    trd__hlo wide = trd__hlo_convert(e, x, dtype);
    trd__hlo sum = trd__emit(
        e, dtype, &x.shape, &wide, 1,
        "\"stablehlo.all_reduce\"(%s) <{channel_handle = #stablehlo.channel_handle<handle = %d, type = 1>, "
        "replica_groups = %s, use_global_device_ids}> ({\n"
        "    ^bb0(%%one: %s, %%other: %s):\n"
        "      %%both = stablehlo.add %%one, %%other : %s\n"
        "      stablehlo.return %%both : %s\n    })",
        wide.name, ++e->collectives, data_groups(e), element, element, element, element);
    results[0] = trd__hlo_convert(e, sum, x.dtype);
}
