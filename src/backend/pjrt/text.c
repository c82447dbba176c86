/* The pieces that StableHLO text is made of: types, literals, names, lists. Invariant: every literal reads
 * back as the same bits of its dtype. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/pjrt/emit.h"
#include "base/alloc.h"
#include "base/dtype.h"

enum { FIRST_CAPACITY = 1 << 14, LIST_TEXT = 24 * TRD_MAX_RANK };

static const char *const element_names[TRD_DTYPE_COUNT] = {
    [TRD_F32] = "f32",          [TRD_F64] = "f64",       [TRD_BF16] = "bf16", [TRD_F16] = "f16",
    [TRD_I32] = "i32",          [TRD_I64] = "i64",       [TRD_U8] = "ui8",    [TRD_BOOL] = "i1",
    [TRD_F8_E4M3] = "f8E4M3FN", [TRD_F8_E5M2] = "f8E5M2"};

/* Makes room for `more` bytes and the zero behind them. */
static bool reserve(trd__emitter *e, size_t more)
{
    if (e->status != TRD_OK) return false;
    if (e->bytes + more < e->capacity) return true;
    size_t capacity = e->capacity ? e->capacity : FIRST_CAPACITY;
    while (capacity <= e->bytes + more) capacity *= 2;
    char *larger = trd__realloc(e->text, capacity, 1);
    if (!larger) {
        e->status = TRD_NO_MEMORY;
        return false;
    }
    e->text = larger;
    e->capacity = capacity;
    return true;
}

void trd__emit_text_list(trd__emitter *e, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length > 0 && reserve(e, (size_t)length)) {
        vsnprintf(e->text + e->bytes, e->capacity - e->bytes, format, again);
        e->bytes += (size_t)length;
    }
    va_end(again);
}

void trd__emit_text(trd__emitter *e, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    trd__emit_text_list(e, format, arguments);
    va_end(arguments);
}

/* What the arena gave, or an empty text with the failure kept. */
static const char *kept(trd__emitter *e, const char *text)
{
    if (text) return text;
    if (e->status == TRD_OK) e->status = TRD_NO_MEMORY;
    return "";
}

const char *trd__hlo_type(trd__emitter *e, trd_dtype dtype, const trd_shape *shape)
{
    char dims[LIST_TEXT] = "";
    size_t used = 0;
    for (int i = 0; i < shape->rank; i++)
        used += (size_t)snprintf(dims + used, sizeof dims - used, "%" PRId64 "x", shape->dim[i]);
    return kept(e, trd__arena_format(e->arena, "tensor<%s%s>", dims, element_names[dtype]));
}

static const char *bits_literal(trd__emitter *e, trd_dtype dtype, double value)
{
    uint64_t bits = 0;
    trd__store(dtype, &bits, 0, value);
    int digits = 2 * (int)trd_dtype_bytes(dtype);
    return kept(e, trd__arena_format(e->arena, "0x%0*" PRIX64, digits, bits));
}

/* The shortest decimal that reads back as value; MLIR wants a point in it. */
static const char *decimal_literal(trd__emitter *e, trd_dtype dtype, double value)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits, value);
        double read = strtod(text, NULL);
        if (dtype == TRD_F64 ? read == value : (float)read == (float)value) break;
    }
    return kept(e, trd__arena_strdup(e->arena, text));
}

const char *trd__hlo_literal(trd__emitter *e, trd_dtype dtype, double value)
{
    uint64_t bits = 0;
    trd__store(dtype, &bits, 0, value);
    double rounded = trd__load(dtype, &bits, 0);
    if (dtype == TRD_BOOL) return rounded != 0 ? "true" : "false";
    if (!trd__dtype_is_float(dtype))
        return kept(e, trd__arena_format(e->arena, "%" PRId64, (int64_t)rounded));
    return isfinite(rounded) ? decimal_literal(e, dtype, rounded) : bits_literal(e, dtype, rounded);
}

const char *trd__hlo_list(trd__emitter *e, const int64_t *numbers, int count)
{
    char text[LIST_TEXT] = "";
    size_t used = 0;
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRId64, i ? ", " : "", numbers[i]);
    return kept(e, trd__arena_strdup(e->arena, text));
}

const char *trd__hlo_names(trd__emitter *e, const trd__hlo *values, int count)
{
    size_t bytes = 1, used = 0;
    for (int i = 0; i < count; i++) bytes += strlen(values[i].name) + 2;
    char *text = trd__arena_alloc(e->arena, bytes, 1);
    for (int i = 0; text && i < count; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", values[i].name);
    return kept(e, text);
}

const char *trd__hlo_text(trd__emitter *e, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = trd__arena_alloc(e->arena, (size_t)length + 1, 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return kept(e, text);
}

static bool in_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

const char *trd__hlo_word(trd__emitter *e, const char *name)
{
    bool begins = (name[0] >= '0' && name[0] <= '9') || name[0] == '\0';
    char *word = trd__arena_format(e->arena, "%s%s", begins ? "_" : "", name);
    for (char *c = word; c && *c; c++)
        if (!in_word(*c)) *c = '_';
    return kept(e, word);
}

const char *trd__hlo_name(trd__emitter *e, const char *base, int number)
{
    return kept(e, trd__arena_format(e->arena, "%%%s_%d%s", trd__hlo_word(e, base), number, e->scope));
}

const char *trd__hlo_signature(trd__emitter *e, const trd__hlo *operands, int count, const char *type)
{
    if (!count) return type;
    size_t bytes = strlen(type) + 8;
    for (int i = 0; i < count; i++) bytes += strlen(operands[i].type) + 2;
    char *text = trd__arena_alloc(e->arena, bytes, 1);
    if (!text) return kept(e, text);
    size_t used = 0;
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "(", operands[i].type);
    snprintf(text + used, bytes - used, ") -> %s", type);
    return text;
}
