/* Lines of StableHLO and the small compositions every family needs; see emit.h. */
#include "backend/pjrt/emit.h"
#include "base/shape.h"

void trd__emit_begin(trd__emitter *e, const trd_node *n)
{
    e->node = n;
    e->lines = 0;
    e->name = trd__hlo_name(e, n->name ? n->name : n->op->name, n->id);
}

/* The value of the next line, and the line's beginning. */
static trd__hlo begin_line(trd__emitter *e, trd_dtype dtype, const trd_shape *shape)
{
    trd__hlo value = {
        .name = e->name, .type = trd__hlo_type(e, dtype, shape), .dtype = dtype, .shape = *shape};
    if (e->lines > 0) value.name = trd__arena_format(e->arena, "%s.%d", e->name, e->lines);
    if (!value.name) {
        value.name = "";
        e->status = e->status == TRD_OK ? TRD_NO_MEMORY : e->status;
    }
    e->lines++;
    trd__emit_text(e, "%*s%s = ", e->indent, "", value.name);
    return value;
}

static void end_line(trd__emitter *e, const char *signature)
{
    const trd_node *n = e->node;
    trd__emit_text(e, " : %s loc(\"%s%s%s\")\n", signature, n->name ? trd__hlo_word(e, n->name) : "",
                   n->name ? "/" : "", n->op->name);
}

trd__hlo trd__emit(trd__emitter *e, trd_dtype dtype, const trd_shape *shape, const trd__hlo *operands,
                   int count, const char *format, ...)
{
    trd__hlo value = begin_line(e, dtype, shape);
    va_list arguments;
    va_start(arguments, format);
    trd__emit_text_list(e, format, arguments);
    va_end(arguments);
    end_line(e, trd__hlo_signature(e, operands, count, value.type));
    return value;
}

trd__hlo trd__emit_elementwise(trd__emitter *e, const char *word, const trd__hlo *operands, int count)
{
    trd__hlo value = begin_line(e, operands[0].dtype, &operands[0].shape);
    trd__emit_text(e, "stablehlo.%s", word);
    for (int i = 0; i < count; i++) trd__emit_text(e, "%s %s", i ? "," : "", operands[i].name);
    end_line(e, value.type);
    return value;
}

trd__hlo trd__hlo_read(trd__emitter *e, const trd_node *n, trd_value v)
{
    trd__hlo value = e->values[v.node->id][v.result], *kept = &e->kept[v.node->id][v.result];
    if (!n->recomputed || v.node->recomputed || v.node->op->flags & TRD__OP_LEAF) return value;
    if (!kept->name) *kept = trd__emit_elementwise(e, "optimization_barrier", &value, 1);
    return *kept;
}

trd__hlo trd__hlo_operand(trd__emitter *e, const trd_node *n, int i)
{
    return trd__hlo_read(e, n, n->inputs[i]);
}

trd__hlo trd__hlo_convert(trd__emitter *e, trd__hlo x, trd_dtype dtype)
{
    if (x.dtype == dtype) return x;
    return trd__emit(e, dtype, &x.shape, &x, 1, "stablehlo.convert %s", x.name);
}

trd__hlo trd__hlo_reshape(trd__emitter *e, trd__hlo x, const trd_shape *shape)
{
    if (trd__shape_equal(&x.shape, shape)) return x;
    return trd__emit(e, x.dtype, shape, &x, 1, "stablehlo.reshape %s", x.name);
}

trd__hlo trd__hlo_broadcast(trd__emitter *e, trd__hlo x, const trd_shape *shape, const int64_t *axes)
{
    if (trd__shape_equal(&x.shape, shape)) return x;
    return trd__emit(e, x.dtype, shape, &x, 1, "stablehlo.broadcast_in_dim %s, dims = [%s]", x.name,
                     trd__hlo_list(e, axes, x.shape.rank));
}

trd__hlo trd__hlo_fill(trd__emitter *e, trd_dtype dtype, const trd_shape *shape, double value)
{
    return trd__emit(e, dtype, shape, NULL, 0, "stablehlo.constant dense<%s>",
                     trd__hlo_literal(e, dtype, value));
}

trd__hlo trd__hlo_iota(trd__emitter *e, trd_dtype dtype, const trd_shape *shape, int axis)
{
    return trd__emit(e, dtype, shape, NULL, 0, "stablehlo.iota dim = %d", axis);
}

trd__hlo trd__hlo_reduce(trd__emitter *e, const char *word, trd__hlo x, unsigned axes_mask, double start)
{
    if (!axes_mask) return x;
    const trd_shape scalar = trd__shape_scalar();
    trd_shape shape = {0};
    int64_t axes[TRD_MAX_RANK];
    int reduced = 0;
    for (int i = 0; i < x.shape.rank; i++) {
        if (axes_mask >> i & 1u)
            axes[reduced++] = i;
        else
            shape.dim[shape.rank++] = x.shape.dim[i];
    }
    trd__hlo operands[2] = {x, trd__hlo_fill(e, x.dtype, &scalar, start)};
    return trd__emit(e, x.dtype, &shape, operands, 2,
                     "stablehlo.reduce(%s init: %s) applies stablehlo.%s across dimensions = [%s]", x.name,
                     operands[1].name, word, trd__hlo_list(e, axes, reduced));
}
