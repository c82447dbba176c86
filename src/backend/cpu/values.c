/* Values and what they are stored in: which nodes only view another value's bytes, which constants need no
 * step, which value becomes which output. */
#include <string.h>

#include "backend/cpu/lower.h"
#include "base/alloc.h"
#include "base/shape.h"

enum { POOLED_BYTES = 64 }; /* constants up to this size are kept with the executable */

static trd_status infer_copy(const trd_node *n, trd__type *results)
{
    results[0] = *trd__type_of(n->inputs[0]);
    return TRD_OK;
}

const trd_op trd__op_copy = {.name = "copy",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .results = 1,
                             .flags = TRD__OP_NO_CSE,
                             .infer = infer_copy};

static void run_copy(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const size_t *bytes = call->state;
    int64_t begin, end;
    trd__partition(call->worker, call->workers, (int64_t)*bytes, 64, &begin, &end);
    if (end > begin)
        memmove((unsigned char *)call->outputs[0] + begin, (const unsigned char *)call->inputs[0] + begin,
                (size_t)(end - begin));
}

static trd_status plan_copy(const trd_node *n, trd__cpu_plan *plan)
{
    const trd__type *type = &n->results[0];
    size_t *bytes = trd__arena_alloc(plan->arena, 1, sizeof *bytes);
    if (!bytes) return TRD_NO_MEMORY;
    *bytes = trd__tensor_bytes(&type->shape, type->dtype);
    plan->state = bytes;
    plan->workers = *bytes < (1u << 16) ? 1 : 0;
    return TRD_OK;
}

const trd__cpu_kernel trd__kernel_copy = {.name = "copy", .plan = plan_copy, .run = run_copy};

static size_t bytes_of(const trd__type *type)
{
    return trd__tensor_bytes(&type->shape, type->dtype);
}

/* True when n's result is bytes of its first input, `offset` bytes in. */
static bool is_view(const trd_node *n, size_t *offset)
{
    *offset = 0;
    if (n->input_count == 0 || !n->inputs[0].node) return false;
    const trd__type *in = trd__type_of(n->inputs[0]), *out = &n->results[0];
    if (n->op == &trd__op_reshape || n->op == &trd__op_stop_gradient) return true;
    if (n->op == &trd__op_cast) return in->dtype == out->dtype;
    if (n->op == &trd__op_broadcast) return trd__shape_count(&in->shape) == trd__shape_count(&out->shape);
    if (n->op == &trd__op_slice) {
        const trd__slice_attr *attr = n->attr;
        size_t inner = trd_dtype_bytes(in->dtype);
        for (int64_t axis = 0; axis < in->shape.rank; axis++) {
            if (axis < attr->axis && in->shape.dim[axis] != 1) return false;
            if (axis > attr->axis) inner *= (size_t)in->shape.dim[axis];
        }
        *offset = (size_t)attr->begin * inner;
        return true;
    }
    if (n->op == &trd__op_transpose) { /* moving axes of length 1 moves no element */
        const trd__transpose_attr *attr = n->attr;
        int last = -1;
        for (int i = 0; i < out->shape.rank; i++) {
            if (out->shape.dim[i] == 1) continue;
            if (attr->permutation[i] < last) return false;
            last = attr->permutation[i];
        }
        return true;
    }
    return false;
}

/* The value whose bytes v is a view of; whole: all of them, from the first. */
static trd_value origin(trd_value v, bool *whole)
{
    size_t offset;
    *whole = true;
    while (is_view(v.node, &offset)) {
        trd_value from = v.node->inputs[0];
        if (offset != 0 || bytes_of(trd__type_of(from)) != bytes_of(trd__type_of(v))) *whole = false;
        v = from;
    }
    return v;
}

static bool bound_before(const trd__program *program, int output, trd_value root)
{
    bool whole;
    for (int i = 0; i < output; i++)
        if (trd_same(origin(program->outputs[i].value, &whole), root)) return true;
    return false;
}

static bool is_own_entry(const trd__output *o, trd_value root)
{
    if (root.node->op != &trd__op_input) return false;
    const trd__input_attr *attr = root.node->attr;
    return attr->slot == o->slot && attr->entry == o->entry;
}

trd_status trd__normalize_outputs(trd__program *program)
{
    trd_builder *b = program->builder;
    int kept = 0;
    for (int i = 0; i < program->output_count; i++) {
        trd__output o = program->outputs[i];
        bool whole;
        trd_value root = origin(o.value, &whole);
        if (whole && is_own_entry(&o, root)) continue; /* keeps its value */
        bool constant = root.node->op == &trd__op_constant;
        if (whole && constant && bytes_of(trd__type_of(root)) > POOLED_BYTES)
            o.value = trd__add_node(b, root.node->op, root.node->attr, NULL, 0);
        else if (!whole || constant || root.node->op == &trd__op_input || bound_before(program, kept, root))
            o.value = trd__add_node(b, &trd__op_copy, NULL, &o.value, 1);
        program->outputs[kept++] = o;
    }
    program->output_count = kept;
    return trd_builder_status(b);
}

static bool is_pooled_constant(const trd_node *n)
{
    return n->op == &trd__op_constant && bytes_of(&n->results[0]) <= POOLED_BYTES;
}

static void describe(trd__lowering *l, const trd_node *n)
{
    for (int r = 0; r < n->result_count; r++) {
        int v = l->first_value[n->id] + r;
        trd__storage *s = &l->values[v];
        *s = (trd__storage){.value = trd__result(n, r),
                            .root = v,
                            .bytes = bytes_of(&n->results[r]),
                            .def = -1,
                            .last = -1,
                            .output = -1,
                            .buffer = -1,
                            .row = -1,
                            .leaf = n->op == &trd__op_input,
                            .constant = n->op == &trd__op_constant};
        size_t offset;
        if (!is_view(n, &offset)) continue;
        const trd__storage *from = &l->values[trd__value_number(l, n->inputs[0])];
        s->root = from->root;
        s->offset = from->offset + offset;
    }
}

bool trd__starts_from_zero(const trd__lowering *l, const trd_node *n, int i)
{
    const trd__storage *root = trd__root_of(l, trd__value_number(l, n->inputs[i]));
    return (n->op->flags & TRD__OP_ALIASES) && i == n->op->alias_input && root->constant &&
           ((const trd__constant_attr *)root->value.node->attr)->value == 0;
}

static void count_uses(trd__lowering *l)
{
    size_t offset;
    for (int i = 0; i < l->graph->node_count; i++) {
        const trd_node *n = l->graph->nodes[i];
        for (int j = 0; !is_view(n, &offset) && j < n->input_count; j++)
            if (n->inputs[j].node && !trd__starts_from_zero(l, n, j))
                trd__root_of(l, trd__value_number(l, n->inputs[j]))->uses++;
    }
    for (int i = 0; i < l->program->output_count; i++)
        trd__root_of(l, trd__value_number(l, l->program->outputs[i].value))->uses++;
}

static void pool_constants(trd__lowering *l)
{
    for (int i = 0; i < l->graph->node_count; i++) {
        if (!is_pooled_constant(l->graph->nodes[i])) continue;
        trd__storage *s = &l->values[l->first_value[i]];
        s->placed = true;
        s->place = (trd__place){.region = TRD__REGION_CONSTANTS, .offset = l->executable->constant_bytes};
        l->executable->constant_bytes += POOLED_BYTES;
    }
}

void trd__fill_constants(const trd__lowering *l)
{
    for (int i = 0; i < l->graph->node_count; i++) {
        if (!is_pooled_constant(l->graph->nodes[i])) continue;
        const trd__constant_attr *attr = l->graph->nodes[i]->attr;
        unsigned char *at = l->executable->constants + l->values[l->first_value[i]].place.offset;
        int64_t count = trd__shape_count(&attr->shape);
        for (int64_t j = 0; j < count; j++) trd__store(attr->dtype, at, (size_t)j, attr->value);
    }
}

static trd__place entry_place(const trd__lowering *l, int slot, int entry)
{
    return (trd__place){.region = TRD__REGION_ENTRY + l->first_entry[slot] + entry};
}

/* Numbers the entries of all slots. Those of a program's own slots are where its sets keep them. */
static trd_status number_entries(trd__lowering *l)
{
    const trd__program *program = l->program;
    int count = 0;
    size_t most = 0;
    for (int s = 0; s < program->slot_count; s++) {
        l->first_entry[s] = count;
        count += program->slots[s].entry_count;
        if (most < (size_t)program->slots[s].entry_count) most = (size_t)program->slots[s].entry_count;
    }
    l->entries = trd__arena_alloc(l->arena, (size_t)count + 1, sizeof *l->entries);
    size_t *offsets = trd__arena_alloc(l->arena, most + 1, sizeof *offsets);
    if (!l->entries || !offsets) return TRD_NO_MEMORY;
    for (int s = 0; !l->loop && s < program->slot_count; s++) {
        trd__cpu_layout(program->slots[s].entries, program->slots[s].entry_count, offsets);
        for (int e = 0; e < program->slots[s].entry_count; e++)
            l->entries[l->first_entry[s] + e] = (trd__place){.region = s, .offset = offsets[e]};
    }
    return TRD_OK;
}

trd_status trd__number_values(trd__lowering *l)
{
    TRD_TRY(number_entries(l));
    int nodes = l->graph->node_count;
    l->first_value = trd__alloc((size_t)nodes + 1, sizeof *l->first_value);
    if (!l->first_value) return TRD_NO_MEMORY;
    for (int i = 0; i < nodes; i++) {
        l->first_value[i] = l->value_count;
        l->value_count += l->graph->nodes[i]->result_count;
    }
    l->values = trd__alloc((size_t)l->value_count + 1, sizeof *l->values);
    if (!l->values) return TRD_NO_MEMORY;
    for (int i = 0; i < nodes; i++) {
        const trd_node *n = l->graph->nodes[i];
        describe(l, n);
        if (n->op != &trd__op_input) continue;
        const trd__input_attr *attr = n->attr;
        trd__storage *s = &l->values[l->first_value[i]];
        s->placed = true;
        s->place = entry_place(l, attr->slot, attr->entry);
    }
    for (int i = 0; i < l->program->output_count; i++) {
        const trd__output *o = &l->program->outputs[i];
        trd__storage *s = trd__root_of(l, trd__value_number(l, o->value));
        s->output = i;
        s->output_place = entry_place(l, o->slot, o->entry);
    }
    count_uses(l);
    pool_constants(l);
    return TRD_OK;
}
