/* The JSON writer. Invariant: until the first failure, text holds valid JSON up to what is still open. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "formats/json.h"

static void append(trd__json_writer *w, const char *text, size_t bytes)
{
    if (w->status) return;
    if (bytes >= w->capacity - w->bytes) { /* one byte stays free for the terminator */
        size_t capacity = w->capacity ? w->capacity : 256;
        while (capacity - w->bytes <= bytes && capacity <= SIZE_MAX / 2) capacity *= 2;
        char *grown = trd__realloc(w->text, capacity, 1);
        if (!grown || capacity - w->bytes <= bytes) {
            if (grown) w->text = grown;
            w->status = TRD_NO_MEMORY;
            return;
        }
        w->text = grown;
        w->capacity = capacity;
    }
    memcpy(w->text + w->bytes, text, bytes);
    w->bytes += bytes;
}

static void new_line(trd__json_writer *w)
{
    static const char spaces[] = "                                ";
    if (w->indent <= 0) return;
    append(w, "\n", 1);
    for (size_t left = (size_t)w->indent * (size_t)w->depth; left > 0;) {
        size_t part = left < sizeof spaces - 1 ? left : sizeof spaces - 1;
        append(w, spaces, part);
        left -= part;
    }
}

/* What goes before a value or key: a comma after an earlier one, and the line break. */
static void separate(trd__json_writer *w)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->filled[w->depth])
        append(w, w->indent || w->depth == 0 ? "," : ", ", w->indent || w->depth == 0 ? 1 : 2);
    if (w->depth > 0) new_line(w);
    w->filled[w->depth] = true;
}

static void open_container(trd__json_writer *w, char opener, char closer)
{
    separate(w);
    if (w->depth == TRD__JSON_WRITE_DEPTH) {
        if (!w->status) w->status = trd__fail(TRD_UNSUPPORTED, "writing JSON: nesting deeper than 64 levels");
        return;
    }
    append(w, &opener, 1);
    w->closers[w->depth++] = closer;
    w->filled[w->depth] = false;
}

void trd__json_open_object(trd__json_writer *w)
{
    open_container(w, '{', '}');
}
void trd__json_open_array(trd__json_writer *w)
{
    open_container(w, '[', ']');
}

void trd__json_close(trd__json_writer *w)
{
    if (w->depth == 0) return;
    bool filled = w->filled[w->depth];
    w->depth--;
    if (filled) new_line(w);
    append(w, &w->closers[w->depth], 1);
}

static void quote(trd__json_writer *w, const char *text, size_t bytes)
{
    append(w, "\"", 1);
    size_t start = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        append(w, text + start, i - start);
        start = i + 1;
        char escape[8];
        static const char named[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
        const char *found = c ? strchr(named, c) : NULL;
        int length = found ? snprintf(escape, sizeof escape, "\\%c", letters[found - named])
                           : snprintf(escape, sizeof escape, "\\u%04x", c);
        append(w, escape, (size_t)length);
    }
    append(w, text + start, bytes - start);
    append(w, "\"", 1);
}

void trd__json_write_key(trd__json_writer *w, const char *key)
{
    separate(w);
    quote(w, key, strlen(key));
    append(w, ": ", 2);
    w->after_key = true;
}

void trd__json_write_bytes(trd__json_writer *w, const char *text, size_t bytes)
{
    separate(w);
    quote(w, text, bytes);
}

void trd__json_write_string(trd__json_writer *w, const char *text)
{
    trd__json_write_bytes(w, text, strlen(text));
}

void trd__json_write_raw(trd__json_writer *w, const char *json, size_t bytes)
{
    separate(w);
    append(w, json, bytes);
}

static void word(trd__json_writer *w, const char *text)
{
    trd__json_write_raw(w, text, strlen(text));
}

void trd__json_write_bool(trd__json_writer *w, bool flag)
{
    word(w, flag ? "true" : "false");
}
void trd__json_write_null(trd__json_writer *w)
{
    word(w, "null");
}

void trd__json_write_i64(trd__json_writer *w, int64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, number);
    word(w, text);
}

void trd__json_write_f64(trd__json_writer *w, double number)
{
    char text[40];
    if (!isfinite(number)) {
        trd__json_write_null(w);
        return;
    }
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, number);
        if (strtod(text, NULL) == number) break;
    }
    if (!strpbrk(text, ".e")) strcat(text, ".0"); /* stays a float for readers that tell them apart */
    word(w, text);
}

void trd__json_write_value(trd__json_writer *w, trd__json value)
{
    const char *text = "";
    double number = 0;
    int64_t whole = 0;
    bool flag = false;
    switch (trd__json_kind_of(value)) {
    case TRD__JSON_STRING:
        trd__json_as_string(value, &text);
        trd__json_write_string(w, text);
        break;
    case TRD__JSON_NUMBER:
        trd__json_as_f64(value, &number);
        if (number == trunc(number) && fabs(number) <= 9007199254740992.0) {
            whole = (int64_t)number;
            trd__json_write_i64(w, whole);
        } else {
            trd__json_write_f64(w, number);
        }
        break;
    case TRD__JSON_BOOL:
        trd__json_as_bool(value, &flag);
        trd__json_write_bool(w, flag);
        break;
    case TRD__JSON_ARRAY:
    case TRD__JSON_OBJECT: {
        bool object = trd__json_kind_of(value) == TRD__JSON_OBJECT;
        int depth = w->depth;
        open_container(w, object ? '{' : '[', object ? '}' : ']');
        for (trd__json v = trd__json_first(value); !w->status && trd__json_exists(v); v = trd__json_next(v)) {
            if (object) trd__json_write_key(w, trd__json_key(v));
            trd__json_write_value(w, v);
        }
        if (w->depth > depth) trd__json_close(w);
        break;
    }
    default:
        trd__json_write_null(w);
    }
}

trd_status trd__json_finish(trd__json_writer *w)
{
    if (!w->status && w->depth > 0)
        w->status = trd__fail(TRD_INTERNAL, "writing JSON: %d objects or arrays are still open", w->depth);
    append(w, "", 0);
    if (w->status) return w->status;
    w->text[w->bytes] = '\0';
    return TRD_OK;
}

void trd__json_clear(trd__json_writer *w)
{
    w->bytes = 0;
    w->depth = 0;
    w->after_key = false;
    w->status = TRD_OK;
    w->filled[0] = false;
}

void trd__json_writer_free(trd__json_writer *w)
{
    trd__free(w->text);
    *w = (trd__json_writer){0};
}

#define PUTTERS(name, type)                                                                                  \
    void trd__json_put_##name(trd__json_writer *w, const char *key, type value)                              \
    {                                                                                                        \
        trd__json_write_key(w, key);                                                                         \
        trd__json_write_##name(w, value);                                                                    \
    }
PUTTERS(string, const char *)
PUTTERS(i64, int64_t)
PUTTERS(f64, double)
PUTTERS(bool, bool)
#undef PUTTERS
