/* See the header. Invariant: bytes < capacity whenever data is there. */
#include "report/text.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"

static int reserve(trd__text *text, size_t more)
{
    if (text->status) return 0;
    if (text->bytes + more + 1 <= text->capacity) return 1;
    size_t capacity = 2 * text->capacity + more + 1;
    char *grown = trd__realloc(text->data, capacity, 1);
    if (!grown) {
        text->status = TRD_NO_MEMORY;
        return 0;
    }
    text->data = grown;
    text->capacity = capacity;
    return 1;
}

void trd__text_put(trd__text *text, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length > 0 && reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->bytes, (size_t)length + 1, format, again);
        text->bytes += (size_t)length;
    }
    va_end(again);
    va_end(arguments);
}

void trd__text_put_escaped(trd__text *text, const char *raw)
{
    for (; *raw; raw++) switch (*raw) {
        case '&':
            trd__text_put(text, "&amp;");
            break;
        case '<':
            trd__text_put(text, "&lt;");
            break;
        case '>':
            trd__text_put(text, "&gt;");
            break;
        case '"':
            trd__text_put(text, "&quot;");
            break;
        case '\'':
            trd__text_put(text, "&#39;");
            break;
        default:
            trd__text_put(text, "%c", *raw);
        }
}

void trd__text_free(trd__text *text)
{
    trd__free(text->data);
    *text = (trd__text){0};
}
