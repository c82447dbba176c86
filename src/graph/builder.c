/* The public face of a graph under construction: life cycle, the sticky error, and annotations. Invariant: an
 * annotation never changes what a node computes; on a failed builder or a null value it does nothing. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "graph/program.h"

enum { TEXT = 1024 };

trd_status trd_builder_create(trd_builder **builder)
{
    *builder = NULL;
    trd_builder *b = trd__calloc(1, sizeof *b);
    if (!b) return TRD_NO_MEMORY;
    b->graph.arena = trd__arena_create();
    if (!b->graph.arena) {
        trd__free(b);
        return TRD_NO_MEMORY;
    }
    *builder = b;
    return TRD_OK;
}

void trd_builder_free(trd_builder *builder)
{
    if (!builder) return;
    for (int i = 0; i < builder->body_count; i++) trd__program_free(builder->bodies[i]);
    trd__free(builder->bodies);
    trd__free(builder->message);
    trd__free(builder->graph.nodes);
    trd__arena_free(builder->graph.arena);
    trd__free(builder);
}

trd_status trd_builder_status(const trd_builder *builder)
{
    if (builder->status != TRD_OK)
        trd__set_error_message(builder->message ? builder->message : trd_status_text(builder->status));
    return builder->status;
}

trd_value trd_builder_fail(trd_builder *builder, trd_status status, const char *format, ...)
{
    char text[TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (builder->status == TRD_OK) {
        trd__fail(status, "%s", text);
        trd__builder_stick(builder, status);
    }
    return (trd_value){NULL, 0};
}

trd_shape trd_value_shape(trd_value v)
{
    return v.node ? trd__type_of(v)->shape : (trd_shape){.rank = 0};
}

trd_dtype trd_value_dtype(trd_value v)
{
    return v.node ? trd__type_of(v)->dtype : TRD_F32;
}

/* The writable node behind v, NULL where an annotation has nothing to do. */
static trd_node *annotated(trd_builder *b, trd_value v)
{
    if (b->status != TRD_OK || trd_is_null(v)) return NULL;
    return trd__owns(b, v) ? b->graph.nodes[v.node->id] : NULL;
}

trd_value trd_name(trd_builder *builder, trd_value v, const char *format, ...)
{
    trd_node *n = annotated(builder, v);
    if (!n) return v;
    char text[TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    n->name = trd__arena_strdup(builder->graph.arena, text);
    if (!n->name) trd__builder_stick(builder, TRD_NO_MEMORY);
    return v;
}

trd_value trd_axes(trd_builder *builder, trd_value v, const char *const *axes)
{
    trd_node *n = annotated(builder, v);
    if (!n) return v;
    trd__type *type = &n->results[v.result];
    for (int i = 0; i < type->shape.rank; i++) {
        type->axes[i] = axes[i] ? trd__arena_strdup(builder->graph.arena, axes[i]) : NULL;
        if (axes[i] && !type->axes[i]) trd__builder_stick(builder, TRD_NO_MEMORY);
    }
    return v;
}

trd_value trd_layer_boundary(trd_builder *builder, trd_value v)
{
    trd_node *n = annotated(builder, v);
    if (n) n->layer_boundary = true;
    return v;
}

trd_value trd__autodiff_current(const trd_builder *b, trd_value v)
{
    for (int i = 0; i < b->merged_count; i++)
        if (trd_same(b->merged[i].from, v)) v = b->merged[i].to;
    return v;
}
