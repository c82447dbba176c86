/* The frame of the lowering: a private copy of the program in ops that have a row, the arguments and results
 * of @main, and the nodes in order. See lower.h. */
#include "backend/pjrt/lower.h"

#include <string.h>

#include "backend/pjrt/emit.h"
#include "base/alloc.h"
#include "graph/passes.h"

#define TRD_OP(name, family) extern const trd__pjrt_op trd__pjrt_##family[];
#include "ops/ops.def"
#undef TRD_OP

static const struct {
    const trd_op *op;
    const trd__pjrt_op *family;
} ops[] = {
#define TRD_OP(name, family) {&trd__op_##name, trd__pjrt_##family},
#include "ops/ops.def"
#undef TRD_OP
};

const trd__pjrt_op *trd__pjrt_find(const trd_op *op)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (ops[i].op != op) continue;
        for (const trd__pjrt_op *row = ops[i].family; row->op; row++)
            if (row->op == op) return row;
    }
    return NULL;
}

static bool has_row(const trd_node *n, void *user)
{
    (void)user;
    return trd__pjrt_find(n->op) != NULL;
}

static trd_status run_passes(trd__program *program)
{
    TRD_TRY(trd__dce(program));
    TRD_TRY(trd__cse(program));
    TRD_TRY(trd__expand(program, has_row, NULL));
    TRD_TRY(trd__cse(program));
    TRD_TRY(trd__fuse_accumulate(program));
    TRD_TRY(trd__dce(program));
    return trd__verify(program);
}

/* Number of the output that writes the entry, -1. */
static int output_of(const trd__program *program, int slot, int entry)
{
    for (int i = 0; i < program->output_count; i++)
        if (program->outputs[i].slot == slot && program->outputs[i].entry == entry) return i;
    return -1;
}

/* Whether an entry that is written and not read is donated too, for its memory: making and freeing what is
 * large costs the host page by page. Within a computation of several replicas it would have to be passed on.
 */
static bool gives_memory(const trd__program *program, int slot, int entry)
{
    enum { LARGE_BYTES = 1 << 20 };
    const trd__slot *s = &program->slots[slot];
    return s->access == TRD__WRITE && s->written[entry] && program->replicas <= 1 &&
           trd__entry_bytes(&s->entries[entry]) >= LARGE_BYTES;
}

static trd_status bind(const trd__program *program, trd__pjrt_module *module)
{
    int most = program->output_count;
    for (int s = 0; s < program->slot_count; s++)
        for (int i = 0; i < program->slots[s].entry_count; i++)
            most += !trd_is_null(program->slots[s].leaves[i]);
    module->arguments = trd__calloc((size_t)most + 1, sizeof *module->arguments);
    module->results = trd__calloc((size_t)program->output_count + 1, sizeof *module->results);
    if (!module->arguments || !module->results) return TRD_NO_MEMORY;
    module->result_count = program->output_count;
    for (int i = 0; i < program->output_count; i++)
        module->results[i] =
            (trd__pjrt_binding){program->outputs[i].slot, program->outputs[i].entry, .alias = -1};
    for (int s = 0; s < program->slot_count; s++)
        for (int i = 0; i < program->slots[s].entry_count; i++) {
            if (trd_is_null(program->slots[s].leaves[i]) && !gives_memory(program, s, i)) continue;
            int result = output_of(program, s, i);
            if (result >= 0) module->results[result].alias = module->argument_count;
            module->arguments[module->argument_count++] = (trd__pjrt_binding){s, i, .alias = result};
        }
    return TRD_OK;
}

/* Of an argument or result; alias -1: it is not donated. */
static void emit_attributes(trd__emitter *e, int alias, const trd__entry *entry)
{
    const char *sharding = trd__hlo_entry_sharding(e, entry);
    if (alias < 0 && !sharding) return;
    trd__emit_text(e, " {");
    if (alias >= 0) trd__emit_text(e, "tf.aliasing_output = %d : i32%s", alias, sharding ? ", " : "");
    trd__emit_text(e, "%s}", sharding ? sharding : "");
}

static void emit_arguments(trd__emitter *e, const trd__program *program, const trd__pjrt_module *module)
{
    for (int i = 0; i < module->argument_count; i++) {
        const trd__pjrt_binding *argument = &module->arguments[i];
        const trd__slot *slot = &program->slots[argument->slot];
        const trd_node *leaf = slot->leaves[argument->entry].node; /* NULL: only its memory is taken */
        const char *label =
            trd__hlo_word(e, trd__hlo_text(e, "%s.%s", slot->name, slot->entries[argument->entry].name));
        const trd__entry *entry = &slot->entries[argument->entry];
        trd__hlo value = {.name = leaf ? trd__hlo_name(e, label, leaf->id)
                                       : trd__hlo_text(e, "%%%s_memory", label),
                          .type = trd__hlo_type(e, entry->dtype, &entry->shape),
                          .dtype = entry->dtype,
                          .shape = entry->shape};
        if (leaf) e->values[leaf->id][0] = value;
        trd__emit_text(e, "%s\n      %s: %s", i ? "," : "", value.name, value.type);
        emit_attributes(e, argument->alias, entry);
        trd__emit_text(e, " loc(\"%s\")", label);
    }
}

static void emit_result_types(trd__emitter *e, const trd__program *program)
{
    for (int i = 0; i < program->output_count; i++) {
        const trd__output *o = &program->outputs[i];
        const trd__slot *slot = &program->slots[o->slot];
        const trd__entry *entry = &slot->entries[o->entry];
        trd__emit_text(e, "\n      %s", trd__hlo_type(e, entry->dtype, &entry->shape));
        emit_attributes(e, -1, entry);
        trd__emit_text(e, "%s // %s.%s", i + 1 < program->output_count ? "," : "",
                       trd__hlo_word(e, slot->name), trd__hlo_word(e, entry->name));
    }
}

static trd_status emit_results(trd__emitter *e, const trd__program *program, const trd__pjrt_module *module)
{
    int count = module->result_count;
    trd__hlo *results = trd__arena_alloc(e->arena, (size_t)count + 1, sizeof *results);
    if (!results) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++)
        results[i] = e->values[program->outputs[i].value.node->id][program->outputs[i].value.result];
    trd__emit_replicas_end(e, program, module, results);
    trd__emit_text(e, "    return %s :", trd__hlo_names(e, results, count));
    for (int i = 0; i < count; i++) trd__emit_text(e, "%s %s", i ? "," : "", results[i].type);
    trd__emit_text(e, " loc(\"results\")\n");
    return TRD_OK;
}

static trd_status emit_node(trd__emitter *e, const trd_node *n)
{
    if (n->op == &trd__op_input) return TRD_OK;
    const trd__pjrt_op *row = trd__pjrt_find(n->op);
    if (!row)
        return trd__fail(TRD_UNSUPPORTED,
                         "lowering %s \"%s\": expected an op with a StableHLO form or an "
                         "expansion, found neither",
                         n->op->name, n->name ? n->name : "");
    trd__emit_begin(e, n);
    trd__hlo *results = e->values[n->id];
    row->lower(e, n, row, results);
    for (int i = 0; i < n->result_count; i++)
        results[i] = trd__hlo_constrain(e, results[i], n->results[i].axes);
    return e->status;
}

static trd_status make_table(trd__emitter *e, const trd_graph *graph, trd__hlo ***table)
{
    *table = trd__arena_alloc(e->arena, (size_t)graph->node_count + 1, sizeof **table);
    for (int i = 0; *table && i < graph->node_count; i++) {
        (*table)[i] = trd__arena_alloc(e->arena, (size_t)graph->nodes[i]->result_count, sizeof ***table);
        if (!(*table)[i]) return TRD_NO_MEMORY;
    }
    return *table ? TRD_OK : TRD_NO_MEMORY;
}

trd_status trd__emit_tables(trd__emitter *e, const trd_graph *graph)
{
    TRD_TRY(make_table(e, graph, &e->values));
    return make_table(e, graph, &e->kept);
}

trd_status trd__emit_nodes(trd__emitter *e, const trd_graph *graph)
{
    for (int i = 0; i < graph->node_count; i++) TRD_TRY(emit_node(e, graph->nodes[i]));
    return TRD_OK;
}

static trd_status emit_module(trd__emitter *e, const trd__program *program, const trd__pjrt_module *module)
{
    const trd_graph *graph = &program->builder->graph;
    TRD_TRY(trd__emit_tables(e, graph));
    const char *name = trd__hlo_word(e, program->name);
    trd__emit_text(e, "module @%s {\n", name);
    trd__emit_mesh(e);
    trd__emit_text(e, "  func.func public @main(");
    emit_arguments(e, program, module);
    trd__emit_text(e, "\n  ) -> (");
    emit_result_types(e, program);
    trd__emit_text(e, "\n  ) {\n");
    trd__emit_replicas_begin(e, program, module);
    TRD_TRY(trd__emit_nodes(e, graph));
    TRD_TRY(emit_results(e, program, module));
    trd__emit_text(e, "  } loc(\"%s\")\n} loc(\"%s\")\n", name, name);
    return e->status;
}

static trd_status lower(trd__program *program, const trd__placement *placement, trd__pjrt_module *module)
{
    TRD_TRY(run_passes(program));
    TRD_TRY(bind(program, module));
    if (trd__mesh_devices(placement) == 1) placement = NULL;
    TRD_TRY(trd__emit_replicas_check(program, placement));
    trd__placement named = {0};
    if (placement) named = *placement;
    if (program->replicas > 1) named.size[TRD__MESH_DATA] = 1; /* a replica's values are its own */
    trd__emitter e = {.arena = trd__arena_create(),
                      .precision = program->precision,
                      .scope = "",
                      .indent = 4,
                      .placement = placement,
                      .named = named.explicit_mode && trd__mesh_devices(&named) > 1 ? &named : NULL,
                      .replicas = program->replicas};
    if (!e.arena) return TRD_NO_MEMORY;
    trd_status status = emit_module(&e, program, module);
    trd__arena_free(e.arena);
    module->text = e.text;
    module->bytes = e.bytes;
    module->node_count = program->builder->graph.node_count;
    return status;
}

trd_status trd__pjrt_lower(const trd__program *program, const trd__placement *placement,
                           trd__pjrt_module *module)
{
    *module = (trd__pjrt_module){0};
    trd__program *copy;
    TRD_TRY(trd__program_copy(program, &copy));
    trd_status status = lower(copy, placement, module);
    trd__program_free(copy);
    if (status != TRD_OK) trd__pjrt_module_free(module);
    return status;
}

void trd__pjrt_module_free(trd__pjrt_module *module)
{
    trd__free(module->text);
    trd__free(module->arguments);
    trd__free(module->results);
    *module = (trd__pjrt_module){0};
}
