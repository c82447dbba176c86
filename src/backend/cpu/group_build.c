/* From a unit of fused nodes to a group that runs: its members, and what is inlined in them, become ops on
 * virtual registers in the graph's order; loads are put before their first use; then registers are assigned
 * by the last use. Values that are stored keep their register to the end of the tile. */
#include <stdio.h>
#include <string.h>

#include "backend/cpu/group_build.h"
#include "base/alloc.h"

static int new_entry(trd__group_build *g, trd__group_entry e)
{
    if (g->entry_count == TRD__GROUP_VALUES) {
        g->overflow = true;
        return 0;
    }
    e.first_op = e.last_op = -1;
    e.reg = -1;
    g->entries[g->entry_count] = e;
    return g->entry_count++;
}

static int input_number(trd__group_build *g, int value)
{
    for (int i = 0; i < g->input_count; i++)
        if (g->inputs[i] == value) return i;
    g->inputs[g->input_count] = value;
    return g->input_count++;
}

/* Strides of a broadcast operand over the group's index space, with joinable axes joined. */
static void set_strides(trd__group_load *load, const trd_shape *from, const trd_shape *to)
{
    int64_t stride = 1, dims[TRD_MAX_RANK], strides[TRD_MAX_RANK];
    int lead = to->rank - from->rank;
    for (int i = to->rank - 1; i >= 0; i--) {
        int64_t dim = i < lead ? 1 : from->dim[i - lead];
        dims[i] = to->dim[i];
        strides[i] = dim == 1 ? 0 : stride;
        stride *= dim;
    }
    for (int i = 0; i < to->rank; i++) {
        if (dims[i] == 1) continue;
        int at = load->rank - 1;
        if (load->rank > 0 && load->stride[at] == strides[i] * dims[i]) {
            load->dim[at] *= dims[i];
            load->stride[at] = strides[i];
        } else {
            load->dim[load->rank] = dims[i];
            load->stride[load->rank++] = strides[i];
        }
    }
    if (load->rank == 0) load->dim[load->rank++] = 1;
}

static float rounded(double value, trd_dtype dtype)
{
    unsigned char one[8];
    trd__store(dtype, one, 0, value);
    return (float)trd__load(dtype, one, 0);
}

static bool same_load(const trd__group_build *g, int i, const trd__group_load *load, const trd__read *read)
{
    const trd__group_load *known = &g->loads[i];
    if (known->kind != load->kind || known->dtype != load->dtype) return false;
    if (load->kind == TRD__LOAD_CONSTANT) return memcmp(&known->value, &load->value, sizeof load->value) == 0;
    return trd_same(g->load_sources[i], read->source) && g->load_broadcasts[i] == read->node;
}

static int load_entry(trd__group_build *g, const trd__read *read, trd_dtype dtype)
{
    static const trd__load_kind kinds[] = {[TRD__READ_CONSTANT] = TRD__LOAD_CONSTANT,
                                           [TRD__READ_SCALAR] = TRD__LOAD_SCALAR,
                                           [TRD__READ_STRIDED] = TRD__LOAD_STRIDED,
                                           [TRD__READ_FULL] = TRD__LOAD_FULL,
                                           [TRD__READ_NODE] = TRD__LOAD_FULL};
    trd__group_load load = {.kind = kinds[read->kind], .input = -1, .dtype = dtype, .last_op = -1};
    trd__read key = *read;
    if (read->kind == TRD__READ_NODE) key.node = NULL;
    if (load.kind == TRD__LOAD_CONSTANT) load.value = rounded(read->value, dtype);
    for (int i = 0; i < g->load_count; i++)
        if (same_load(g, i, &load, &key))
            for (int e = 0; e < g->entry_count; e++)
                if (g->entries[e].load == i) return e;
    if (load.kind == TRD__LOAD_STRIDED)
        set_strides(&load, &trd__type_of(read->source)->shape, &read->node->results[0].shape);
    if (load.kind != TRD__LOAD_CONSTANT) load.input = input_number(g, trd__value_number(g->l, read->source));
    g->load_sources[g->load_count] = key.source;
    g->load_broadcasts[g->load_count] = key.node;
    g->loads[g->load_count] = load;
    bool persistent = load.kind == TRD__LOAD_CONSTANT || load.kind == TRD__LOAD_SCALAR;
    return new_entry(g, (trd__group_entry){.root = -1, .load = g->load_count++, .persistent = persistent});
}

static int find_result(const trd__group_build *g, int root)
{
    for (int e = 0; e < g->entry_count; e++)
        if (g->entries[e].root == root) return e;
    return -1;
}

static int add_op(trd__group_build *g, const trd_node *n);

static int operand(trd__group_build *g, trd_value v)
{
    trd__read read = trd__read_of(g->f, v);
    if (read.kind == TRD__READ_NODE) {
        int known = find_result(g, g->l->first_value[read.node->id]);
        if (known >= 0) return known;
        if (g->f->inlined[read.node->id]) return add_op(g, read.node);
    }
    return load_entry(g, &read, trd__type_of(v)->dtype);
}

/* The tile function of n; NULL copies. */
static trd__tile_function function_of(const trd__group_build *g, const trd_node *n)
{
    if (n->op != &trd__op_cast) return trd__tile_find(g->f->tiles, n->op);
    bool to_bool = n->results[0].dtype == TRD_BOOL && trd__type_of(n->inputs[0])->dtype != TRD_BOOL;
    return to_bool ? g->f->tiles->to_bool : NULL;
}

/* Adds n's op (and what is inlined in its operands) and returns its result. */
static int add_op(trd__group_build *g, const trd_node *n)
{
    int in[TRD__TILE_OPERANDS] = {0};
    for (int i = 0; i < n->input_count; i++) in[i] = operand(g, n->inputs[i]);
    for (int i = n->input_count; i < TRD__TILE_OPERANDS; i++) in[i] = in[0];
    int out = new_entry(g, (trd__group_entry){.root = g->l->first_value[n->id], .load = -1});
    if (g->overflow || g->op_count == TRD__GROUP_VALUES) {
        g->overflow = true;
        return out;
    }
    trd_dtype dtype = n->results[0].dtype;
    g->ops[g->op_count++] = (trd__group_op){.run = function_of(g, n),
                                            .out = out,
                                            .in = {in[0], in[1], in[2], in[3]},
                                            .operands = n->input_count,
                                            .round = dtype == TRD_BOOL ? TRD_F32 : dtype,
                                            .keep = -1,
                                            .other = -1,
                                            .store = -1,
                                            .reduction = -1};
    return out;
}

static void add_reduction(trd__group_build *g, const trd_node *n)
{
    int in = operand(g, n->inputs[0]);
    if (g->overflow || g->op_count == TRD__GROUP_VALUES) {
        g->overflow = true;
        return;
    }
    g->ops[g->op_count++] = (trd__group_op){.out = in,
                                            .in = {in, in, in, in},
                                            .operands = 1,
                                            .round = TRD_F32,
                                            .keep = -1,
                                            .other = -1,
                                            .store = -1,
                                            .reduction = g->reduction_count};
    g->reductions[g->reduction_count++] = (trd__group_reduction){
        .output = g->output_count, .squares = n->op == &trd__op_sum_squares, .dtype = n->results[0].dtype};
    g->outputs[g->output_count++] = g->l->first_value[n->id];
}

/* Reads of n's result by members of the unit. */
static int reads_within(const trd__group_build *g, const trd_node *n)
{
    const trd__unit *u = &g->f->units[g->unit];
    int reads = 0;
    for (int id = u->min; id <= u->max; id++) {
        const trd_node *m = g->l->graph->nodes[id];
        if (g->f->unit[id] != g->unit) continue;
        for (int i = 0; i < m->input_count; i++) {
            trd__read read = trd__read_of(g->f, m->inputs[i]);
            if (read.kind == TRD__READ_NODE && read.node == n) reads++;
        }
    }
    return reads;
}

static void add_member(trd__group_build *g, const trd_node *n)
{
    if (g->f->reduction[n->id]) {
        add_reduction(g, n);
        return;
    }
    int out = add_op(g, n), root = g->l->first_value[n->id];
    if (g->overflow) return;
    if (g->f->stored_uses[root] == 0 && g->f->register_uses[root] == reads_within(g, n)) return;
    trd__group_op *op = &g->ops[g->op_count - 1];
    g->entries[out].stored = true;
    op->store = g->store_count;
    g->stores[g->store_count++] = (trd__group_store){
        .output = g->output_count, .reg = out, .op = g->op_count - 1, .dtype = n->results[0].dtype};
    g->outputs[g->output_count++] = root;
}

/* -- Registers -- */

static void find_lifetimes(trd__group_build *g)
{
    for (int k = 0; k < g->op_count; k++) {
        trd__group_op *op = &g->ops[k];
        const int operands[] = {op->in[0], op->in[1], op->in[2], op->in[3], op->keep, op->other};
        for (int i = 0; i < TRD__TILE_OPERANDS + 2; i++) {
            if (operands[i] < 0) continue;
            trd__group_entry *e = &g->entries[operands[i]];
            if (e->first_op < 0) e->first_op = k;
            e->last_op = k;
        }
        if (op->reduction >= 0) continue;
        g->entries[op->out].first_op = k;
        if (g->entries[op->out].last_op < k) g->entries[op->out].last_op = k;
    }
    for (int e = 0; e < g->entry_count; e++) {
        if (g->entries[e].load >= 0) g->loads[g->entries[e].load].last_op = g->entries[e].last_op;
        if (g->entries[e].stored || g->entries[e].persistent) g->entries[e].last_op = g->op_count;
        if (g->entries[e].persistent) g->entries[e].first_op = 0;
    }
}

/* Lowest register that no entry uses during ops first .. last. */
static int free_register(const trd__group_build *g, int first, int last)
{
    bool taken[TRD__GROUP_REGISTERS] = {false};
    for (int e = 0; e < g->entry_count; e++) {
        const trd__group_entry *other = &g->entries[e];
        if (other->reg >= 0 && other->first_op <= last && first <= other->last_op) taken[other->reg] = true;
    }
    for (int r = 0; r < TRD__GROUP_REGISTERS; r++)
        if (!taken[r]) return r;
    return -1;
}

static int assign_registers(trd__group_build *g)
{
    int count = 0;
    for (int e = 0; e < g->entry_count; e++) {
        trd__group_entry *it = &g->entries[e];
        it->reg = free_register(g, it->first_op, it->last_op);
        if (it->reg < 0) {
            g->overflow = true;
            return 0;
        }
        if (it->reg + 1 > count) count = it->reg + 1;
    }
    return count;
}

/* -- The group and its draft -- */

static void *copy(trd__arena *arena, const void *data, int count, size_t size)
{
    void *block = trd__arena_alloc(arena, (size_t)count + 1, size);
    if (block && count) memcpy(block, data, (size_t)count * size);
    return block;
}

/* Loads in the order of the ops that need them first; constants and scalars are filled before any op. */
static trd_status place_loads(const trd__group_build *g, trd__group *group, trd__arena *arena)
{
    group->loads = trd__arena_alloc(arena, (size_t)g->load_count + 1, sizeof *group->loads);
    if (!group->loads) return TRD_NO_MEMORY;
    for (int k = -1; k < group->op_count; k++) {
        if (k >= 0) group->ops[k].first_load = group->load_count;
        for (int e = 0; e < g->entry_count; e++) {
            const trd__group_entry *it = &g->entries[e];
            if (it->load < 0 || (it->persistent ? -1 : it->first_op) != k) continue;
            group->loads[group->load_count] = g->loads[it->load];
            group->loads[group->load_count++].reg = it->reg;
        }
        if (k >= 0) group->ops[k].load_count = group->load_count - group->ops[k].first_load;
    }
    return TRD_OK;
}

/* The reductions that read their operand right from memory. */
static void mark_streamed(trd__group *group)
{
    for (int k = 0; k < group->op_count; k++) {
        trd__group_op *op = &group->ops[k];
        if (op->reduction < 0 || !group->reductions[op->reduction].squares || op->load_count != 1) continue;
        const trd__group_load *load = &group->loads[op->first_load];
        op->streamed = load->kind == TRD__LOAD_FULL && load->last_op == k &&
                       (load->dtype == TRD_F32 || load->dtype == TRD_BF16);
    }
}

static trd_status finish_group(trd__group_build *g, trd__group *group)
{
    trd__arena *arena = g->l->arena;
    trd__group_simplify(g);
    find_lifetimes(g);
    *group = (trd__group){.tiles = g->f->tiles,
                          .count = g->elements,
                          .register_count = assign_registers(g),
                          .op_count = g->op_count,
                          .store_count = g->store_count,
                          .reduction_count = g->reduction_count};
    if (g->overflow || g->input_count > TRD__KERNEL_INPUTS || g->output_count > TRD__KERNEL_RESULTS)
        return trd__fail(TRD_INTERNAL, "fuser: a group of %d ops is too large", g->op_count);
    for (int s = 0; s < g->store_count; s++) g->stores[s].reg = g->entries[g->stores[s].reg].reg;
    for (int k = 0; k < g->op_count; k++) {
        g->ops[k].out = g->entries[g->ops[k].out].reg;
        for (int i = 0; i < TRD__TILE_OPERANDS; i++) g->ops[k].in[i] = g->entries[g->ops[k].in[i]].reg;
        if (g->ops[k].keep < 0) continue;
        g->ops[k].keep = g->entries[g->ops[k].keep].reg;
        g->ops[k].other = g->entries[g->ops[k].other].reg;
    }
    group->ops = copy(arena, g->ops, g->op_count, sizeof *g->ops);
    group->stores = copy(arena, g->stores, g->store_count, sizeof *g->stores);
    group->reductions = copy(arena, g->reductions, g->reduction_count, sizeof *g->reductions);
    if (!group->ops || !group->stores || !group->reductions) return TRD_NO_MEMORY;
    TRD_TRY(place_loads(g, group, arena));
    mark_streamed(group);
    return TRD_OK;
}

/* Inputs that are read element by element only may hand their buffer to a result of the same width. */
static bool is_reusable(const trd__group *group, int input)
{
    bool full = false, other = false;
    for (int i = 0; i < group->load_count; i++) {
        if (group->loads[i].input != input) continue;
        full |= group->loads[i].kind == TRD__LOAD_FULL;
        other |= group->loads[i].kind != TRD__LOAD_FULL;
    }
    return full && !other;
}

/* "fused square+mul+add": the members' ops, each once, in the order they come first. */
static trd_status name_draft(const trd__group_build *g, trd__draft *d)
{
    enum { NAME_TEXT = 64 };
    const trd__unit *u = &g->f->units[g->unit];
    const trd_op *known[TRD__UNIT_MEMBERS];
    char text[NAME_TEXT] = "fused ";
    int count = 0;
    for (int id = u->min; id <= u->max; id++) {
        const trd_op *op = g->l->graph->nodes[id]->op;
        bool repeated = g->f->unit[id] != g->unit;
        for (int i = 0; i < count; i++) repeated |= known[i] == op;
        if (repeated) continue;
        size_t used = strlen(text);
        if (used + strlen(op->name) + sizeof "+..." > NAME_TEXT) {
            strcpy(text + used, "...");
            break;
        }
        snprintf(text + used, NAME_TEXT - used, "%s%s", count ? "+" : "", op->name);
        known[count++] = op;
    }
    d->name = trd__arena_strdup(g->l->arena, text);
    return d->name ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status add_draft(trd__group_build *g, trd__group *group)
{
    const trd__unit *u = &g->f->units[g->unit];
    trd__draft *d = trd__draft_add(g->l, g->l->graph->nodes[u->max], g->input_count, g->output_count);
    if (!d) return TRD_NO_MEMORY;
    d->kernel = &trd__kernel_group;
    d->plan.state = group;
    d->plan.phases = g->reduction_count ? 2 : 1;
    d->plan.workers = trd__group_workers(group);
    d->plan.worker_bytes = trd__group_scratch(group);
    d->plan.shared_bytes =
        (size_t)g->l->info->workers * (size_t)g->reduction_count * TRD__PARTIALS * sizeof(double);
    for (int i = 0; i < g->input_count; i++) {
        d->inputs[i] = g->inputs[i];
        d->bytes_read += g->l->values[g->inputs[i]].bytes;
    }
    for (int r = 0; r < g->output_count; r++) {
        d->outputs[r] = g->outputs[r];
        d->bytes_written += g->l->values[g->outputs[r]].bytes;
    }
    for (int s = 0; s < g->store_count; s++)
        for (int i = 0; i < g->input_count; i++)
            d->reuse[g->stores[s].output * g->input_count + i] = is_reusable(group, i);
    return name_draft(g, d);
}

trd_status trd__build_group(trd__fusion *f, int unit)
{
    trd__group_build *g = trd__calloc(1, sizeof *g);
    if (!g) return TRD_NO_MEMORY;
    g->f = f;
    g->l = f->l;
    g->unit = unit;
    const trd__unit *u = &f->units[unit];
    g->elements = trd__unit_elements(f->l->graph->nodes[u->min]);
    for (int id = u->min; id <= u->max && !g->overflow; id++)
        if (f->unit[id] == unit) add_member(g, f->l->graph->nodes[id]);
    trd__group *group = trd__arena_alloc(f->l->arena, 1, sizeof *group);
    trd_status status = group ? finish_group(g, group) : TRD_NO_MEMORY;
    if (!status) status = add_draft(g, group);
    trd__free(g);
    return status;
}
