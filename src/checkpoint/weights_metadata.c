/* Renders metadata values: a scalar as its number, an array as its first elements and its length. */
#include "checkpoint/weights_metadata.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN_ELEMENTS = 4, SHOWN_BYTES = 200, ELEMENT_BYTES = SHOWN_BYTES + 8, VALUE_BYTES = 1024 };

static int render_element(const trd__gguf_value *value, size_t i, char *text, size_t bytes)
{
    if (value->strings) {
        trd__gguf_string s = value->strings[i];
        bool cut = s.bytes > SHOWN_BYTES;
        size_t shown = cut ? SHOWN_BYTES : s.bytes;
        while (cut && shown > 0 && ((unsigned char)s.text[shown] & 0xc0) == 0x80)
            shown--; /* whole characters */
        return snprintf(text, bytes, "%.*s%s", (int)shown, s.text, cut ? "..." : "");
    }
    double number = trd__gguf_number(value, i);
    if (value->element_kind == TRD__GGUF_BOOL)
        return snprintf(text, bytes, "%s", number != 0 ? "true" : "false");
    bool real = value->element_kind == TRD__GGUF_F32;
    return snprintf(text, bytes, real ? "%.9g" : "%.17g", number);
}

static char *render(const trd__gguf_value *value, trd__arena *arena)
{
    char text[VALUE_BYTES], element[ELEMENT_BYTES];
    if (value->kind != TRD__GGUF_ARRAY) {
        render_element(value, 0, text, sizeof text);
        return trd__arena_strdup(arena, text);
    }
    size_t used = (size_t)snprintf(text, sizeof text, "[");
    for (size_t i = 0; i < value->count && i < SHOWN_ELEMENTS; i++) {
        render_element(value, i, element, sizeof element);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "", element);
    }
    if (value->count > SHOWN_ELEMENTS)
        snprintf(text + used, sizeof text - used, ", ...] (%zu)", value->count);
    else
        snprintf(text + used, sizeof text - used, "]");
    return trd__arena_strdup(arena, text);
}

trd_status trd__weights_describe(const trd__gguf *gguf, const trd__safetensors *file, const char *config,
                                 trd__arena *arena, trd__pair **pairs, size_t *count)
{
    const trd__pair *own = NULL;
    size_t values = gguf ? trd__gguf_value_count(gguf) : 0,
           owned = file ? trd__safetensors_metadata(file, &own) : 0;
    *count = 0;
    *pairs = trd__arena_alloc(arena, values + owned + 1, sizeof **pairs);
    if (!*pairs) return TRD_NO_MEMORY;
    for (size_t i = 0; i < values; i++) {
        const trd__gguf_value *value = trd__gguf_value_at(gguf, i);
        char *text = render(value, arena);
        if (!text) return TRD_NO_MEMORY;
        (*pairs)[(*count)++] = (trd__pair){value->key, text};
    }
    for (size_t i = 0; i < owned; i++) (*pairs)[(*count)++] = own[i];
    if (config) (*pairs)[(*count)++] = (trd__pair){"config.json", config};
    return TRD_OK;
}
