/* Kernels of the ops that move elements: each is one or a few strided copies. reshape never runs (it is a
 * view), but is listed so that nobody takes it for missing. */
#include "backend/cpu/kernel.h"

enum { PARALLEL_ELEMENTS = 1 << 15 };

/* A box of elements and how far apart they lie on both sides, in elements. */
typedef struct box {
    int rank;
    int64_t dim[TRD_MAX_RANK], from[TRD_MAX_RANK], to[TRD_MAX_RANK];
    size_t element_bytes;
} box;

static void row_strides(const trd_shape *shape, int64_t *strides)
{
    int64_t stride = 1;
    for (int i = shape->rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape->dim[i];
    }
}

/* Joins neighbouring axes that are one run on both sides, and drops axes of length 1. */
static void collapse(box *b)
{
    int rank = 0;
    for (int i = 0; i < b->rank; i++) {
        if (b->dim[i] == 1) continue;
        if (rank > 0 && b->from[rank - 1] == b->from[i] * b->dim[i] &&
            b->to[rank - 1] == b->to[i] * b->dim[i]) {
            b->dim[rank - 1] *= b->dim[i];
        } else {
            b->dim[rank++] = b->dim[i];
        }
        b->from[rank - 1] = b->from[i];
        b->to[rank - 1] = b->to[i];
    }
    if (rank == 0) b->dim[rank++] = 1;
    b->rank = rank;
}

#define COPY_RUN(type)                                                                                       \
    for (int64_t i = 0; i < count; i++) ((type *)to)[i * to_step] = ((const type *)from)[i * from_step]

static void copy_run(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t count,
                     size_t bytes)
{
    if (to_step == 1 && from_step == 1) {
        memcpy(to, from, (size_t)count * bytes);
        return;
    }
    switch (bytes) {
    case 1:
        COPY_RUN(uint8_t);
        break;
    case 2:
        COPY_RUN(uint16_t);
        break;
    case 4:
        COPY_RUN(uint32_t);
        break;
    default:
        COPY_RUN(uint64_t);
        break;
    }
}

/* Worker's share of the copy, by rows of the last axis (by parts of it where it is the only one). */
static void copy_box(const trd__cpu_call *call, box b, void *to, const void *from)
{
    collapse(&b);
    int last = b.rank - 1;
    int64_t rows = 1, begin, end;
    for (int i = 0; i < last; i++) rows *= b.dim[i];
    if (rows == 0 || b.dim[last] == 0) return;
    if (rows == 1) {
        trd__partition(call->worker, call->workers, b.dim[last], 64, &begin, &end);
        copy_run((char *)to + begin * b.to[last] * (int64_t)b.element_bytes, b.to[last],
                 (const char *)from + begin * b.from[last] * (int64_t)b.element_bytes, b.from[last],
                 end - begin, b.element_bytes);
        return;
    }
    trd__partition(call->worker, call->workers, rows, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        int64_t rest = row, to_at = 0, from_at = 0;
        for (int i = last - 1; i >= 0; i--) {
            to_at += rest % b.dim[i] * b.to[i];
            from_at += rest % b.dim[i] * b.from[i];
            rest /= b.dim[i];
        }
        copy_run((char *)to + to_at * (int64_t)b.element_bytes, b.to[last],
                 (const char *)from + from_at * (int64_t)b.element_bytes, b.from[last], b.dim[last],
                 b.element_bytes);
    }
}

static box box_of(const trd_shape *shape, trd_dtype dtype)
{
    box b = {.rank = shape->rank, .element_bytes = trd_dtype_bytes(dtype)};
    memcpy(b.dim, shape->dim, sizeof b.dim);
    return b;
}

static void run_transpose(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    const trd__transpose_attr *attr = n->attr;
    int64_t strides[TRD_MAX_RANK];
    box b = box_of(&n->results[0].shape, n->results[0].dtype);
    row_strides(&n->results[0].shape, b.to);
    row_strides(&trd__type_of(n->inputs[0])->shape, strides);
    for (int i = 0; i < b.rank; i++) b.from[i] = strides[attr->permutation[i]];
    copy_box(call, b, call->outputs[0], call->inputs[0]);
}

static void run_broadcast(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    const trd_shape *in = &trd__type_of(n->inputs[0])->shape;
    int64_t strides[TRD_MAX_RANK];
    box b = box_of(&n->results[0].shape, n->results[0].dtype);
    row_strides(&n->results[0].shape, b.to);
    row_strides(in, strides);
    int lead = b.rank - in->rank;
    for (int i = 0; i < b.rank; i++) b.from[i] = i < lead || in->dim[i - lead] == 1 ? 0 : strides[i - lead];
    copy_box(call, b, call->outputs[0], call->inputs[0]);
}

static void run_slice(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    const trd__slice_attr *attr = n->attr;
    box b = box_of(&n->results[0].shape, n->results[0].dtype);
    row_strides(&n->results[0].shape, b.to);
    row_strides(&trd__type_of(n->inputs[0])->shape, b.from);
    copy_box(call, b, call->outputs[0],
             (const char *)call->inputs[0] + attr->begin * b.from[attr->axis] * (int64_t)b.element_bytes);
}

/* Phase 0 fills, phase 1 copies: the parts of the workers differ. */
static void run_pad(const trd__cpu_call *call, int phase)
{
    const trd_node *n = call->node;
    const trd__pad_attr *attr = n->attr;
    const trd__type *out = &n->results[0];
    if (phase == 0) {
        int64_t begin, end;
        trd__partition(call->worker, call->workers, trd__shape_count(&out->shape), 64, &begin, &end);
        for (int64_t i = begin; i < end; i++)
            trd__store(out->dtype, call->outputs[0], (size_t)i, attr->value);
        return;
    }
    box b = box_of(&trd__type_of(n->inputs[0])->shape, out->dtype);
    row_strides(&out->shape, b.to);
    row_strides(&trd__type_of(n->inputs[0])->shape, b.from);
    copy_box(call, b, (char *)call->outputs[0] + attr->before * b.to[attr->axis] * (int64_t)b.element_bytes,
             call->inputs[0]);
}

static void run_concat(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd_node *n = call->node;
    const trd__concat_attr *attr = n->attr;
    int64_t at = 0;
    for (int i = 0; i < n->input_count; i++) {
        const trd__type *in = trd__type_of(n->inputs[i]);
        box b = box_of(&in->shape, in->dtype);
        row_strides(&n->results[0].shape, b.to);
        row_strides(&in->shape, b.from);
        copy_box(call, b, (char *)call->outputs[0] + at * b.to[attr->axis] * (int64_t)b.element_bytes,
                 call->inputs[i]);
        at += in->shape.dim[attr->axis];
    }
}

static void run_reshape(const trd__cpu_call *call, int phase)
{
    (void)phase;
    const trd__type *out = &call->node->results[0];
    int64_t begin, end, size = (int64_t)trd_dtype_bytes(out->dtype);
    trd__partition(call->worker, call->workers, trd__shape_count(&out->shape) * size, 64, &begin, &end);
    memcpy((char *)call->outputs[0] + begin, (const char *)call->inputs[0] + begin, (size_t)(end - begin));
}

static trd_status plan(const trd_node *n, trd__cpu_plan *p)
{
    p->workers = trd__shape_count(&n->results[0].shape) < PARALLEL_ELEMENTS ? 1 : 0;
    p->phases = n->op == &trd__op_pad ? 2 : 1;
    return TRD_OK;
}

#define SHAPE_OPS(X) X(reshape) X(transpose) X(broadcast) X(slice) X(pad) X(concat)
#define VARIANTS(op_name)                                                                                    \
    static const trd__cpu_kernel op_name##_reference = {                                                     \
        .name = "reference", .plan = plan, .run = run_##op_name};                                            \
    static const trd__cpu_kernel *const op_name##_variants[] = {&op_name##_reference, NULL};
SHAPE_OPS(VARIANTS)

#define ROW(op_name) {.op = &trd__op_##op_name, .variants = op_name##_variants},
const trd__cpu_op trd__cpu_shape[] = {SHAPE_OPS(ROW){0}};
